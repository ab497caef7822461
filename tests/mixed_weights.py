"""Weights of mixed groups with every field drawn, for tests of the format and of the kernels."""

import torch

from lutlab.base.tensors import MixedTensor, fill_blocks


def mixed_tensor(
    rows, columns, g=16, widths=(2, 2, 2, 4), by_row=True, outliers=0, aligned=False, shuffled=False, seed=0
):  # fmt: skip
    """A drawn MixedTensor [rows, columns].

    widths: repeated over the groups of g weights; by_row: groups of 4 bits share a scale a row; outliers: how many, in
    groups of 2 bits; aligned: scale codes as memory-aligned blocks clip them, the first groups are 4 bits wide, or,
    where they are shuffled, others.
    """
    draw = torch.Generator().manual_seed(seed)
    groups, bands = -(-columns // g), -(-rows // 16)
    if aligned:
        width = torch.full((groups,), 2, dtype=torch.uint8)
        width[: -(-groups // 4)] = 4
        width = width[torch.randperm(groups, generator=draw)] if shuffled else width
        assert fill_blocks(width)
    else:
        width = torch.tensor(widths, dtype=torch.uint8).repeat(groups)[:groups]
    wide = (width == 4) & by_row

    def below(top, *shape):
        return (torch.rand(*shape, generator=draw) * top).floor().to(torch.uint8)

    top = (2.0 ** width.float())[None]
    zero = below(top, rows, groups)
    codes = below(top.repeat_interleave(g, dim=1)[:, :columns], rows, columns)
    scale_code = below(16, rows, groups)
    if aligned:
        narrow = (width == 2).nonzero().flatten()
        scale_code[:, narrow[torch.arange(len(narrow)) % 3 > 0]] %= 8
    scale_zero = below(16, bands, groups)
    step = (torch.rand(bands, groups, generator=draw) / 100).half()
    zero[:, wide], scale_code[:, wide] = 0, 0
    scale_zero[:, wide], step[:, wide] = 0, 0
    row = ((torch.rand(rows, generator=draw) / 10).half(), below(16, rows)) if by_row else ()
    of_groups = width, zero, scale_code, scale_zero, step
    tensor = MixedTensor(codes, *of_groups, g, 16, *row, aligned=aligned)
    return with_outliers(tensor, outliers, draw) if outliers else tensor


def with_outliers(tensor, count, draw):
    """The same with so many outliers, where groups have 2 bits."""
    rows, columns = tensor.codes.shape
    narrow = (tensor.widths == 2).repeat_interleave(tensor.group_size)[:columns].nonzero().flatten()
    chosen = torch.randperm(rows * len(narrow), generator=draw)[:count].sort().values
    row, column = chosen // len(narrow), narrow[chosen % len(narrow)]
    codes = tensor.codes.clone()
    codes[row, column] = tensor.zero_point[row, column // tensor.group_size]
    outliers = {
        "outlier_count": torch.bincount(row, minlength=rows).int(),
        "outlier_column": column.int(),
        "outlier_value": torch.randn(len(row), generator=draw).half(),
    }
    return MixedTensor(**{**vars(tensor), "codes": codes, **outliers})
