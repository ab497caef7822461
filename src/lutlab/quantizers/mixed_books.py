"""Code books of column groups of different widths, fitted as a sweep reaches them (compensation.CodeBooks)."""

from __future__ import annotations

from lutlab.lazy import torch
from lutlab.quantizers import second_order
from lutlab.tensors import BLOCK_SCALE_BITS, SCALE_BITS, MixedTensor

NARROW, WIDE = 2, 4


class MixedBooks:
    """The grids of all groups of a weight [N, G * g]. A level is code - zero; at an outlier 0.

    kept: [N, K] bool, outliers, or None; scale_group, by_row (groups of 4 bits have a scale a row), aligned,
    search_ranges: as mixed.Mixed has them.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        widths: torch.Tensor,
        g: int,
        kept: torch.Tensor | None,
        *,
        scale_group: int,
        by_row: bool,
        aligned: bool,
        search_ranges: bool,
    ) -> None:
        rows, groups = len(weight), len(widths)
        self.weight, self.widths, self.g = weight, widths, g
        self.scale_group, self.aligned = scale_group, aligned
        self.search = search_ranges
        self.width_of = widths.tolist()
        narrow = (widths == NARROW).cumsum(0) - 1
        turn = torch.tensor(BLOCK_SCALE_BITS, device=widths.device)[narrow % len(BLOCK_SCALE_BITS)]
        self.scale_bits = (turn if aligned else torch.full_like(turn, SCALE_BITS)).tolist()
        bands = -(-rows // scale_group)
        self.scale, self.zero, self.scale_code = (weight.new_zeros(groups, rows) for _ in range(3))
        self.scale_zero, self.scale_step = (weight.new_zeros(groups, bands) for _ in range(2))
        self.row = None
        self.kept, self.values = None, None
        if kept is not None:
            missing = weight.shape[1] - kept.shape[1]
            self.kept = torch.nn.functional.pad(kept, (0, missing)).t().contiguous()  # [K, N]
            self.values = weight.t().half()
        if by_row and WIDE in self.width_of:
            self._fit_rows()

    def _fit_rows(self) -> None:
        """One grid a row for all groups of 4 bits."""
        wide = self.widths == WIDE
        values = self.weight.view(len(self.weight), -1, self.g)[:, wide].flatten(1).t()
        self.row = second_order.fit_rows(values, WIDE, search=self.search)
        self.scale[wide], self.zero[wide] = self.row

    def begin(self, order: torch.Tensor) -> None:
        """Follow a sweep whose column j is channel order[j]."""
        self.channels = order.tolist()
        self.next = 0

    def fit(self, group: int, values: torch.Tensor) -> None:
        """Grid of the group that is the sweep's group-th, on its weights [g, N]."""
        at = self.channels[group * self.g] // self.g
        if self.row is not None and self.width_of[at] == WIDE:
            return
        if self.kept is not None:
            values = values.masked_fill(self.kept[at * self.g : (at + 1) * self.g], 0.0)
        self._set(at, second_order.fit_group(values, *self._bits(at), search=self.search))

    def _bits(self, group: int) -> tuple[int, int, int]:
        return self.width_of[group], self.scale_bits[group], self.scale_group

    def _set(self, at: int | torch.Tensor, grids: second_order.Grids) -> None:
        self.scale[at], self.zero[at] = grids.scale, grids.zero
        self.scale_code[at] = grids.scale_code
        self.scale_zero[at], self.scale_step[at] = grids.scale_zero, grids.scale_step

    def round(self, group: int, column: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Level and value [N] of the sweep's next column [N]."""
        channel = self.channels[self.next]
        self.next += 1
        at = channel // self.g
        scale, zero = self.scale[at], self.zero[at]
        level = second_order.levels(column, scale, zero, 2 ** self.width_of[at] - 1)
        value = level * scale
        if self.kept is not None:
            kept = self.kept[channel]
            self.values[channel] = column.half()
            level = level.masked_fill_(kept, 0.0)
            value = torch.where(kept, self.values[channel].float(), value)
        return level, value

    def codes(self, levels: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        """[columns, N] uint8 of levels of the sweep's groups [columns]."""
        first = torch.tensor(self.channels[:: self.g], device=groups.device) // self.g
        return (levels + self.zero.index_select(0, first[groups])).to(torch.uint8)

    def round_all(self) -> torch.Tensor:
        """Codes [N, G * g] of every weight, each group at the nearest values of its own grid."""
        values = self.weight.t().contiguous()
        if self.kept is not None:
            values = values.masked_fill(self.kept, 0.0)
        grouped = values.view(-1, self.g, values.shape[1])  # [G, g, N]
        for kind in sorted({self._bits(group) for group in range(len(self.width_of))}):
            at = [group for group in range(len(self.width_of)) if self._bits(group) == kind]
            if self.row is None or kind[0] != WIDE:
                grids = second_order.fit_group(grouped[at], *kind, search=self.search)
                self._set(torch.tensor(at, device=values.device), grids)
        top = (2.0 ** self.widths.float() - 1)[:, None, None]
        zero = self.zero[:, None]
        level = second_order.levels(grouped, self.scale[:, None], zero, top)
        return (level + zero).to(torch.uint8).flatten(0, 1).t()

    def tensor(self, codes: torch.Tensor) -> MixedTensor:
        """The weight of these codes [N, K]."""

        def of_rows(values: torch.Tensor) -> torch.Tensor:
            return values.t().to(torch.uint8).contiguous()

        parts = {
            "zero_point": of_rows(self.zero),
            "scale_code": of_rows(self.scale_code),
            "scale_zero": of_rows(self.scale_zero),
            "scale_step": self.scale_step.t().half().contiguous(),
        }
        if self.row is not None:
            scale, zero = self.row
            parts |= {"row_scale": scale.half(), "row_zero": zero.to(torch.uint8)}
            parts["zero_point"][:, self.widths == WIDE] = 0
        if self.kept is not None:
            kept = self.kept[: codes.shape[1]].t()
            row, column = kept.nonzero(as_tuple=True)
            parts |= {
                "outlier_count": torch.bincount(row, minlength=len(codes)).int(),
                "outlier_column": column.int(),
                "outlier_value": self.values.t()[row, column],
            }
        return MixedTensor(
            codes=codes,
            widths=self.widths,
            group_size=self.g,
            scale_group=self.scale_group,
            aligned=self.aligned,
            **parts,
        )
