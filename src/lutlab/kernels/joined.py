"""Layers that read the same x as one product: q, k and v, or gate and up, in one launch.

    Whole       the execution of all their rows (formats/cut.py): multiplies when the first part is called with an x
    RowsOf      the execution of one of them: its rows of that product

A part that is called again with the same x, as by another pass, makes a new product; the last one is kept until every
part has had its rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from lutlab.formats import cut
from lutlab.formats.contract import Format
from lutlab.kernels.contract import Execution


@dataclass(eq=False)
class Whole:
    """A product [..., N] of all rows, and who still has to have its rows of it.

    Attributes:
        execution: execution of all rows.
        spans: rows of each part.
    """

    execution: Execution
    spans: tuple[range, ...]
    _x: torch.Tensor | None = None
    _y: torch.Tensor | None = None
    _waiting: set[range] = field(default_factory=set)

    def rows(self, span: range, x: torch.Tensor) -> torch.Tensor:
        """The product of a part, a view [..., len(span)]."""
        y = self._y
        if y is None or x is not self._x or span not in self._waiting:
            y = self.execution(x)
            self._x, self._y, self._waiting = x, y, set(self.spans)
        self._waiting.remove(span)
        if not self._waiting:
            self._x = self._y = None
        return y[..., span.start : span.stop]

    def parts(self) -> list[RowsOf]:
        """Executions of the parts, in order."""
        return [RowsOf(self, span) for span in self.spans]


@dataclass(frozen=True, eq=False)
class RowsOf(Execution):
    """Some rows of a whole."""

    replaces: ClassVar[bool] = True

    whole: Whole
    span: range

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.whole.execution.device

    @property
    def packed(self) -> Format:
        """Cut out of the whole."""
        return cut.rows(self.whole.execution.packed, [self.span])

    def takes(self, x: torch.Tensor) -> bool:
        """What the whole takes."""
        return self.whole.execution.takes(x)

    def __call__(self, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Its rows of the whole's product."""
        y = self.whole.rows(self.span, x)
        return y if bias is None else y + bias

    def dense(self) -> torch.Tensor:
        """Its rows of the whole's dense weight."""
        return self.whole.execution.dense()[self.span.start : self.span.stop]

    def describe(self, rows: int, dtype: torch.dtype) -> str:
        """The description of the whole product."""
        return self.whole.execution.describe(rows, dtype)

    def bytes_read(self, rows: int, dtype: torch.dtype) -> int:
        """Bytes by its share of the rows; all parts together read the whole's."""
        size, total = self.whole.execution.bytes_read(rows, dtype), self.whole.spans[-1].stop
        return size * self.span.stop // total - size * self.span.start // total

    @property
    def buffers(self) -> tuple[torch.Tensor, ...]:
        """Tensors of the whole, which other parts hold too."""
        return self.whole.execution.buffers

    def copy(self) -> RowsOf:
        """A copy over a whole of its own."""
        return RowsOf(Whole(self.whole.execution.copy(), self.whole.spans), self.span)
