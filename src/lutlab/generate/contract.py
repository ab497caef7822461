"""Contract of an engine: a model made ready to decode, with a key-value cache of a fixed length and one call a token.

    logits = engine.prefill(prompts)        [B, V]: prompts into the empty cache, the logits that follow each
    logits = engine.step(ids)               [B, V]: one token more in every row
    engine.rewind(tokens)                   every row forgets what came after its first `tokens`

An engine owns the numbers of its cache and no text: sampling.py chooses tokens, text.py turns them into letters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Engine(ABC):
    """A model, a cache for `batch` rows of `length` tokens, and how many tokens each row has.

    Attributes:
        batch: rows, each a text of its own.
        length: tokens that a row of the cache holds, prompt included.
        vocabulary: V, the logits of a row.
        positions: tokens that each row of the cache has now.
    """

    batch: int
    length: int
    vocabulary: int
    positions: list[int]

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
        """For a record: `engine` (its name, and why it is no better one), `kernel` (names), `cache`, `head` (their
        dtypes), `cache_bytes`, `threads`."""
