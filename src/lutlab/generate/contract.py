"""Contract of an engine: a model made ready to decode, with a key-value cache of a fixed length and one call a token.

    logits = engine.prefill(prompts)        [B, V]: prompts into the empty cache, the logits that follow each
    logits = engine.step(ids)               [B, V]: one token more in every row
    engine.rewind(tokens)                   every row forgets what came after its first `tokens`

An engine owns the numbers of its cache and no text: text.py chooses tokens, and turns them into letters. It is
registered under `@register("engine", <name>)`; `generate.engine` chooses among them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedModel, nn, torch
from lutlab.formats.contract import dtype_name
from lutlab.models.families import linear_layers, weight_of


class Engine(ABC):
    """A model, a cache for `batch` rows of `length` tokens, and how many tokens each row has.

    Args, after `obstacle` was empty:
        model: in evaluation mode; the engine keeps it, and its weights are not copied.
        batch: number of rows, each a text of its own.
        length: tokens that a row of the cache holds, prompt included.
        cache: dtype of stored keys and values, `float32`, `float16` or `bfloat16`; empty: the engine's own choice,
            exact beside the model's own dtype.

    Attributes:
        devices: kinds of device that it decodes on, as torch names them.
        vocabulary: V, the logits of a row.
        positions: tokens that each row of the cache has now.
        of_ranks: facts of the ranks that share the model; none where there is one.
    """

    devices: ClassVar[tuple[str, ...]] = ()

    def __init__(self, model: PreTrainedModel, batch: int, length: int, cache: str = "") -> None:
        self.model, self.batch, self.length = model, batch, length
        self.vocabulary = model.config.vocab_size
        self.positions = [0] * batch
        self.of_ranks: dict[str, Any] = {}

    @classmethod
    def obstacle(cls, model: PreTrainedModel, cache: str) -> str:
        """Reason for not decoding a model with such a cache, here one of another dtype; empty where it can."""
        dtype = dtype_name(model.dtype)
        if cache in ("", dtype):
            return ""
        return f"its cache is of the model's dtype, {dtype}, not {cache}"

    @abstractmethod
    def prefill(self, prompts: Sequence[torch.Tensor]) -> torch.Tensor:
        """Empty the cache and read a prompt in every row; the float32 logits [B, V] after each prompt's last token.

        Args:
            prompts: [T] int64 of each row, of any lengths of at least 1 and at most `length`.

        Raises:
            LutlabError: not as many prompts as rows, an empty one, or one longer than the cache.
        """

    @abstractmethod
    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """Add a token to every row; the float32 logits [B, V] after it.

        Args:
            ids: [B] int64.

        Raises:
            LutlabError: the cache of a row is full, or ids are not [B] of the vocabulary.
        """

    @abstractmethod
    def rewind(self, tokens: int = 0) -> None:
        """Forget all tokens of every row but the first `tokens`; the next step follows them.

        Raises:
            LutlabError: a row has fewer.
        """

    @abstractmethod
    def bytes_read(self, context: int) -> dict[str, int]:
        """Bytes that one step at a context of so many tokens reads: of `weights`, `head`, `cache`."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Facts of a record: `engine` (its name, and why it is no better one), `kernel` (names), `cache`, `head` (their
        dtypes), `cache_bytes`, `threads`.
        """

    def greedy(self, ids: torch.Tensor, tokens: int) -> torch.Tensor:
        """Add a token to every row, and then the likeliest one, again and again.

        Args:
            ids: [B] int64, of the first step.
            tokens: number of steps.

        Returns:
            The tokens that the steps chose, [B, tokens] int64; the last one is not in the cache.

        Raises:
            LutlabError: the cache of a row is full, or ids are not [B] of the vocabulary.
        """
        chosen = []
        for _ in range(tokens):
            ids = self.step(ids).argmax(-1)
            chosen.append(ids)
        return torch.stack(chosen, 1) if chosen else ids.new_empty(len(ids), 0)

    # ---- what engines share ----

    def modules_facts(self, name: str, kernels: list[str], cache_bytes: int) -> dict[str, Any]:
        """Facts of an engine of transformers' own modules, whose cache and head have the model's dtype."""
        dtype = dtype_name(self.model.dtype)
        return {
            "engine": name,
            "kernel": kernels,
            "cache": dtype,
            "cache_bytes": cache_bytes,
            "head": dtype,
            "threads": torch.get_num_threads(),
            **self.of_ranks,
        }

    def modules_read(self) -> dict[str, int]:
        """Bytes of `weights` and `head` that transformers' own modules read in a step."""
        from lutlab.modules import QuantLinear  # of torch: --help reads this file without it

        rows, dtype = self.batch, self.model.dtype

        def read(layer: nn.Module) -> int:
            if isinstance(layer, QuantLinear):
                return layer.ready(rows, dtype).bytes_read(rows, dtype)
            return weight_of(layer).nbytes

        weights = sum(read(layer) for _, layer in linear_layers(self.model))
        return {"weights": weights, "head": read(self.model.get_output_embeddings())}

    def check_prompts(self, prompts: Sequence[torch.Tensor]) -> None:
        """Raises LutlabError as prefill says."""
        if len(prompts) != self.batch:
            raise LutlabError(
                f"{len(prompts)} prompts for an engine of {self.batch} rows: give one a row, or make one of "
                f"batch={len(prompts)}"
            )
        for row, ids in enumerate(prompts):
            if not 1 <= len(ids) <= self.length:
                longer = "shorten it, or make the cache longer (length=)"
                raise LutlabError(
                    f"prompt {row} has {len(ids)} tokens, and a row of the cache holds 1 to {self.length}: "
                    f"{longer if len(ids) else 'give at least one token'}"
                )
            self._check_ids(ids)

    def check_step(self, ids: torch.Tensor) -> None:
        """Raises LutlabError as step says."""
        if ids.shape != (self.batch,):
            raise LutlabError(
                f"ids have shape {list(ids.shape)}: give one token a row, [{self.batch}]"
            )
        self._check_ids(ids)
        if (fullest := max(self.positions)) >= self.length:
            raise LutlabError(
                f"the cache is full ({fullest} of {self.length} tokens in row {self.positions.index(fullest)}): make "
                "one that is longer (length=), or rewind"
            )

    def check_rewind(self, tokens: int) -> None:
        """Raises LutlabError as rewind says."""
        if not 0 <= tokens <= min(self.positions):
            raise LutlabError(
                f"rewind to {tokens} tokens, and the rows have {self.positions}: give 0 to {min(self.positions)}"
            )

    def _check_ids(self, ids: torch.Tensor) -> None:
        low, high = (int(bound) for bound in ids.aminmax())
        if low < 0 or high >= self.vocabulary:
            raise LutlabError(
                f"token ids from {low} to {high}, and the vocabulary is 0 to {self.vocabulary - 1}: use the model's "
                "own tokenizer"
            )
