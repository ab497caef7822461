"""The engine by transformers' own modules: every family, every device, a row at a time. The others are checked by it.

Its cache grows; the cost of a token is mostly Python's (0.85 ms of each layer of a small model on a CPU).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from lutlab.base.lazy import PreTrainedModel, transformers
from lutlab.base.registry import register
from lutlab.generate.contract import Engine
from lutlab.kernels import ran
from lutlab.models import fits
from lutlab.models.families import forward_with_cache


@register("engine", "transformers")
class Eager(Engine):
    """The model's forward pass, with a cache of each row's own.

    Attributes:
        token_bytes: bytes of the keys and values of a token in one row.
    """

    devices: ClassVar[tuple[str, ...]] = ("cpu", "cuda")

    def __init__(self, model: PreTrainedModel, batch: int, length: int, cache: str = "") -> None:
        super().__init__(model, batch, length)
        self.token_bytes = fits.cache_bytes(model.config, 1, 1, model.dtype.itemsize)
        self._names: list[str] = []
        self._empty()

    def _empty(self) -> None:
        # without a config: layers whose window slides keep all tokens too, so that they can be rewound
        self._rows: list[transformers.DynamicCache] = [
            transformers.DynamicCache() for _ in range(self.batch)
        ]
        self.positions = [0] * self.batch

    def prefill(self, prompts: Sequence[torch.Tensor]) -> torch.Tensor:
        """One forward pass a row, into an empty cache."""
        self.check_prompts(prompts)
        self._empty()
        return self._forward(prompts)

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """One forward pass a row."""
        self.check_step(ids)
        return self._forward(ids[:, None].unbind())

    def rewind(self, tokens: int = 0) -> None:
        """Crop the cache of each row."""
        self.check_rewind(tokens)
        if not tokens:
            self._empty()
            return
        for row, position in zip(self._rows, self.positions, strict=True):
            if position > tokens:
                row.crop(tokens - position)  # negative: so many of the last
        self.positions = [tokens] * self.batch

    @torch.inference_mode()
    def _forward(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Read more tokens in every row; the logits after the last."""
        ran.take()
        logits = []
        for row, ids in enumerate(rows):
            at = torch.arange(self.positions[row], self.positions[row] + len(ids))
            out = forward_with_cache(
                self.model,
                self._rows[row],
                input_ids=ids[None].to(self.model.device),
                position_ids=at[None].to(self.model.device),
                logits_to_keep=1,
            )
            logits.append(out.logits[0, -1].float())
            self.positions[row] += len(ids)
        self._names = ran.take() or ["torch matmul"]
        return torch.stack(logits)

    def bytes_read(self, context: int) -> dict[str, int]:
        """Of the cache the tokens that there are, in every row."""
        return self.modules_read() | {"cache": self.batch * self.token_bytes * context}

    def facts(self) -> dict[str, Any]:
        """`cache_bytes`: of full rows; `kernel`: of the last pass."""
        cache = self.batch * self.length * self.token_bytes
        return self.modules_facts("transformers", self._names, cache)
