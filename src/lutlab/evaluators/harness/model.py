"""A transformers model as lm-eval asks it, where one example that cannot be scored does not end the others.

lm-eval alone stops at a continuation longer than the context, with an empty AssertionError, and takes a likelihood of
NaN for the largest one. Here such an example has a likelihood of -inf and is named, so that it can be left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lm_eval.models.huggingface import HFLM

from lutlab.base.lazy import PreTrainedModel, PreTrainedTokenizerBase, torch

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

# ((context, continuation), ids of the context, ids of the continuation)
Request = tuple[tuple[str, str], list[int], list[int]]
_NONE = (-math.inf, False)


class CountingLM(HFLM):
    """A model in lm-eval that notes by document what was cut and what has no likelihood.

    Attributes:
        cut: documents whose context lost its beginning.
        unfit: documents with a continuation of no tokens or more than the window, or with nothing to predict it from.
        not_finite: documents with a likelihood that is NaN or infinite.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        bos: str,
        batch_size: int,
        window: int,
    ) -> None:
        known = (tokenizer.bos_token_id, tokenizer.eos_token_id)
        self._begins = any(token is not None for token in known)
        super().__init__(
            pretrained=model,
            backend="causal",
            tokenizer=tokenizer,
            batch_size=batch_size,
            max_length=window,
            add_bos_token=None if bos == "tokenizer" else False,
            # without BOS and EOS lm-eval decodes None; the id is used for empty contexts only, which are unfit then
            prefix_token_id=None if self._begins else 0,
            softmax_dtype="float32",
        )
        self._documents: list[int] | None = None  # of the requests that are being answered
        self.cut: set[int] = set()
        self.unfit: set[int] = set()
        self.not_finite: set[int] = set()

    @property
    def left_out(self) -> set[int]:
        """Indices of documents without a likelihood."""
        return self.unfit | self.not_finite

    def facts(self) -> dict[str, list[int]]:
        """Documents by what happened to them, sorted."""
        return {name: sorted(getattr(self, name)) for name in ("cut", "unfit", "not_finite")}

    def _model_call(self, inps: torch.Tensor, **_: Any) -> torch.Tensor:
        """Logits [B, S, V] of ids [B, S]; HFLM's own call would keep every layer's keys and values."""
        return self.model(input_ids=inps, use_cache=False).logits

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = True
    ) -> list[tuple[float, bool]]:
        """HFLM's method, which notes the document of each request while it is answered."""
        self._documents = [request.doc_id for request in requests]
        try:
            return super().loglikelihood(requests, disable_tqdm=True)
        finally:
            self._documents = None

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = True
    ) -> list[float]:
        """HFLM's method, which notes likelihoods that are not finite."""
        values = super().loglikelihood_rolling(requests, disable_tqdm=True)
        for request, value in zip(requests, values, strict=True):
            if not math.isfinite(value):
                self.not_finite.add(request.doc_id)
        return [value if math.isfinite(value) else -math.inf for value in values]

    def _loglikelihood_tokens(
        self, requests: Sequence[Request], disable_tqdm: bool = True, **options: Any
    ) -> list[tuple[float, bool]]:
        if self._documents is None:  # windows of loglikelihood_rolling
            return super()._loglikelihood_tokens(requests, disable_tqdm=True, **options)
        pairs = list(zip(self._documents, requests, strict=True))
        fitting = [self._fits(document, request) for document, request in pairs]
        some = [request for request, fits in zip(requests, fitting, strict=True) if fits]
        scored = iter(super()._loglikelihood_tokens(some, disable_tqdm=True, **options))
        answers = []
        for document, fits in zip(self._documents, fitting, strict=True):
            answer = next(scored) if fits else _NONE
            if fits and not math.isfinite(answer[0]):
                self.not_finite.add(document)
                answer = _NONE
            answers.append(answer)
        return answers

    def _fits(self, document: int, request: Request) -> bool:
        (context, _), context_ids, ids = request
        if not 1 <= len(ids) <= self.max_length or not (context or self._begins):
            self.unfit.add(document)
            return False
        # The last id is predicted, never read.
        if len(context_ids) + len(ids) > self.max_length + 1:
            self.cut.add(document)
        return True
