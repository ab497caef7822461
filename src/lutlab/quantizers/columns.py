"""Columns of a matrix [K, N] rounded one after another, each after it has taken in the changes of those before it.

    current_j += sum_{i<j} feedback_ji change_i,  change_i = value_i before - value_i rounded

A column is contiguous. A block of columns is halved again and again: the left half is rounded, one product brings its
changes to the right half. So most of the arithmetic is in products, and not in operations on single columns.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from lutlab.lazy import torch


class Columns(ABC):
    """Columns that are rounded in order.

    feedback: [K, K] float32, of which only what is below the diagonal is read.
    current: [K, N] float32, what a column is rounded from; columns: the same, one by one.
    changes: [K, N] float32, the value of a column before; once it is rounded, what its value lost.
    levels: of the columns rounded so far, as `nearest` gives them.
    """

    def __init__(
        self, feedback: torch.Tensor, current: torch.Tensor, changes: torch.Tensor
    ) -> None:
        self.feedback, self.current, self.changes = feedback, current, changes
        self.columns = current.unbind(0)
        self.levels: list[torch.Tensor] = []

    @abstractmethod
    def nearest(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Level [N] and nearest value [N] float32 of column k."""

    def halve(self, first: int, last: int) -> None:
        """Round columns first .. last-1, which have the changes of all columns before them."""
        if last - first == 1:
            self._round(first)
            return
        middle = first + (last - first) // 2
        self.halve(first, middle)
        self.pass_on(first, middle, last)
        self.halve(middle, last)

    def pass_on(self, first: int, middle: int, last: int) -> None:
        """Bring the changes of columns first .. middle-1 to columns middle .. last-1."""
        if middle < last:
            weights = self.weights(slice(middle, last), slice(first, middle))
            self.current[middle:last].addmm_(weights, self.changes[first:middle])

    def weights(self, later: slice, earlier: slice) -> torch.Tensor:
        """Feedback from columns to later ones, of which only this much is wanted at once."""
        return self.feedback[later, earlier]

    def _round(self, k: int) -> None:
        level, value = self.nearest(k)
        self.levels.append(level)
        change = self.changes[k]
        torch.sub(change, value, out=change)
