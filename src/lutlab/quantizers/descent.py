"""Coordinate descent on the codes of a group: W_hat_j = nearest(W_hat_j + (H E)_j / H_jj), one column after another.

H E is brought up to date with every column that moved: small products within SPAN columns, a large one behind them.
"""

from __future__ import annotations

from collections.abc import Callable

from lutlab.lazy import torch
from lutlab.quantizers.columns import Columns
from lutlab.quantizers.one_thread import one_thread

SPAN = 128  # columns after which H E is made anew, at least; groups of fewer share one product


class Descent(Columns):
    """Coordinate descent on the codes of one group, column after column.

    hessian: [length, length]; inverse: [length, 1], 1 / H_jj; wanted: W_hat + (H E) / H_jj; value: W_hat, both
    [length, N]; nearest_to: level and value of a column [N], as columns.Columns.nearest.
    """

    def __init__(
        self,
        hessian: torch.Tensor,
        inverse: torch.Tensor,
        wanted: torch.Tensor,
        value: torch.Tensor,
        nearest_to: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
    ) -> None:
        super().__init__(hessian, wanted, value)
        self.inverse, self.nearest_to = inverse, nearest_to

    def weights(self, later: slice, earlier: slice) -> torch.Tensor:
        """H_ji / H_jj, of column i on column j."""
        return super().weights(later, earlier) * self.inverse[later]

    def nearest(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Level [N] and value [N] of column k."""
        return self.nearest_to(self.columns[k])

    def run(self) -> torch.Tensor:
        """Run the descent; returns levels [length, N]."""
        length = len(self.current)
        for first in range(0, length, SPAN):
            last = min(first + SPAN, length)
            with one_thread():
                self.halve(first, last)
            self.pass_on(first, last, length)
        return torch.stack(self.levels)
