"""Binary codes of groups as sorted codewords, to which columns are rounded: of gptq_bcq and hessian_bcq."""

from __future__ import annotations

from lutlab.lazy import torch
from lutlab.quantizers.sorted_groups import ceil32


class Codewords:
    """The binary codes of all groups: alpha [q, N, G], offset [N, G] or None, and by group their sorted codewords.

    words: [2^q * N] float32, ascending along 2^q; cuts: [2^q - 1, N] float32, what is at or above cut j is nearer to
    word j + 1; code_of: [2^q * N] uint8. A level is the index into words and code_of: j * N + n, int32.
    """

    def __init__(self, alpha: torch.Tensor, offset: torch.Tensor | None) -> None:
        self.alpha, self.offset = alpha, offset
        self.q, rows, _ = alpha.shape
        self.words: dict[int, torch.Tensor] = {}
        self.cuts: dict[int, torch.Tensor] = {}
        self.code_of: dict[int, torch.Tensor] = {}
        self.row = torch.arange(rows, dtype=torch.int32, device=alpha.device)
        self.above = alpha.new_empty(2**self.q - 1, rows, dtype=torch.float32)

    def take(self, group: int, alpha: torch.Tensor, offset: torch.Tensor | None) -> None:
        """Take alpha [q, N] and offset [N] or None as a group's; columns are rounded to them from now on."""
        self.alpha[:, :, group] = alpha
        words = alpha.new_zeros(1, alpha.shape[1], dtype=torch.float64)
        if offset is not None:
            self.offset[:, group] = offset
            words += offset.double()
        # Bit b of a code is plane b: the words of a later plane have the higher bit.
        for step in alpha.double():
            words = torch.cat((words - step, words + step))
        words, code_of = torch.sort(words, dim=0)
        self.words[group] = words.float().view(-1)
        self.cuts[group] = ceil32((words[1:] + words[:-1]) / 2)
        self.code_of[group] = code_of.to(torch.uint8).view(-1)

    def round(self, group: int, column: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Level and nearest codeword of a column [N] (compensation.CodeBooks)."""
        # 0.0 and 1.0, and sums of them: torch compares into and adds float32 several times faster than bool.
        torch.le(self.cuts[group], column, out=self.above)
        level = self.above.sum(dim=0).int().mul_(len(column)).add_(self.row)
        return level, self.words[group].index_select(0, level)

    def codes(self, levels: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        """[columns, N] uint8 of levels [columns, N] of groups [columns] (compensation.CodeBooks)."""
        several = groups.unique().tolist()
        if len(several) == 1:
            return self.code_of[several[0]].index_select(0, levels.view(-1)).view_as(levels)
        out = torch.empty_like(levels, dtype=torch.uint8)
        for group in several:
            at = (groups == group).nonzero().squeeze(1)
            some = levels[at]
            out[at] = self.code_of[group].index_select(0, some.view(-1)).view_as(some)
        return out
