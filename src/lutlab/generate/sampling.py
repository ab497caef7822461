"""The next token of each row, by its logits: the largest, or drawn after transformers' own warpers.

p = softmax(top_p(top_k(logits / temperature)))          in transformers' order
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import torch
from pydantic import Field

from lutlab.errors import LutlabError
from lutlab.fields import check
from lutlab.lazy import transformers
from lutlab.limits import CountFrom0, a_seed


@dataclass(frozen=True)
class Sampling:
    """Way to choose a token.

    Attributes:
        temperature: divisor of the logits; 0 takes the largest.
        top_k: number of the most likely tokens to choose from; 0: all.
        top_p: probability that the most likely tokens to choose from have together; 1: all.
        seed: seed of all rows; each draws from a generator of its own, so that no row depends on the others.

    Raises:
        LutlabError: a value is out of range.
    """

    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    top_k: CountFrom0 = 0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, a_seed] = 0

    def __post_init__(self) -> None:
        check(self)

    @cached_property
    def _warpers(self) -> transformers.LogitsProcessorList:
        found = transformers.LogitsProcessorList()
        if self.temperature != 1:
            found.append(transformers.TemperatureLogitsWarper(float(self.temperature)))
        if self.top_k:
            found.append(transformers.TopKLogitsWarper(self.top_k))
        if self.top_p < 1:
            found.append(transformers.TopPLogitsWarper(float(self.top_p)))
        return found

    def chooser(self, batch: int) -> Chooser:
        """A chooser of tokens for `batch` rows, one text in each."""
        return Chooser(self, batch)


class Chooser:
    """Tokens of a batch, one call a step; its generators advance."""

    def __init__(self, sampling: Sampling, batch: int) -> None:
        self._sampling = sampling
        self._generators = [
            torch.Generator().manual_seed(sampling.seed + row) for row in range(batch)
        ]

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Choose by float32 logits [B, V]: ids [B] int64 on the CPU.

        Raises:
            LutlabError: a row has NaN logits.
        """
        if not self._sampling.temperature:
            ids = logits.argmax(-1).cpu()
            self._check(logits.gather(1, ids[:, None].to(logits.device)))
            return ids
        self._check(logits)
        shares = self._sampling._warpers(None, logits.float()).softmax(-1).cpu()
        rows = zip(shares, self._generators, strict=True)
        return torch.cat([torch.multinomial(row, 1, generator=one) for row, one in rows])

    def _check(self, logits: torch.Tensor) -> None:
        if logits.isnan().any():
            raise LutlabError(
                "the model's logits are NaN: it is broken, or quantized beyond use; no token can be chosen"
            )
