"""The decoder blocks of a model while it is quantized: here, all in memory (models/streamed.py: on disk)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from lutlab.lazy import PreTrainedModel, nn
from lutlab.models.families import decoder_blocks


class Blocks(Protocol):
    """The blocks of a model, one open at a time: its weights are in memory while it is."""

    def __len__(self) -> int:
        """Number of blocks."""

    def open(self, index: int) -> AbstractContextManager[nn.Module]:
        """A block with its full-precision weights."""


class Resident:
    """The blocks of a model that is in memory as a whole."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._blocks = decoder_blocks(model)

    def __len__(self) -> int:
        return len(self._blocks)

    @contextmanager
    def open(self, index: int) -> Iterator[nn.Module]:
        """The block; nothing to load or to free."""
        yield self._blocks[index]
