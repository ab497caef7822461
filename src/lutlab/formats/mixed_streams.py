"""Streams of mixed weights: of each width one of codes and one of zero points, where blocks do not exist.

Of each width w in rising order, each stream filled to a word, groups in the order of their channels (code_words.py):

    codes      [N, sum_w ceil(G_w g w / 32)] int32: a row's stream of 2-bit codes, then of 3, then of 4
    zero       int32: zero points in w bits, a stream a width over all rows      scale_code  int32: one stream of 4 bits
    scale_zero int32: one stream of 4 bits
"""

from __future__ import annotations

from lutlab.formats.code_words import WORD, pack_stream, pack_words, unpack_stream, unpack_words
from lutlab.formats.mixed_groups import (
    by_channel,
    by_width,
    count_widths,
    second_order,
    spread,
)
from lutlab.lazy import torch
from lutlab.tensors import MIXED_WIDTHS, SCALE_BITS, MixedTensor


def words(count: int, bits: int) -> int:
    """Words that a stream of so many values fills."""
    return -(-count * bits // WORD)


def lengths(
    rows: int, g: int, of_width: tuple[int, int, int], by_row: bool
) -> tuple[list[int], list[int]]:
    """Words of each width: of a row's codes, and of all zero points (none of groups with a scale a row)."""
    pairs = list(zip(MIXED_WIDTHS, of_width, strict=True))
    zeros = [0 if by_row and w == 4 else words(rows * n, w) for w, n in pairs]
    return [words(n * g, w) for w, n in pairs], zeros


def pack(tensor: MixedTensor) -> dict[str, torch.Tensor]:
    """The four buffers of the module's drawing, by name."""
    second = second_order(tensor.widths, tensor.row_scale is not None)
    codes = [pack_words(values, w) for w, values in by_width(tensor).items() if values.shape[1]]
    zeros = [_stream(tensor.zero_point[:, (tensor.widths == w) & second], w) for w in MIXED_WIDTHS]
    return {
        "codes": torch.cat(codes, dim=1),
        "zero": torch.cat(zeros),
        "scale_code": _stream(tensor.scale_code[:, second], SCALE_BITS),
        "scale_zero": _stream(tensor.scale_zero[:, second], SCALE_BITS),
    }


def unpack(
    buffers: dict[str, torch.Tensor], widths: torch.Tensor, g: int, scale_group: int, by_row: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """The inverse of pack: codes [N, G * g], zero points and scale codes [N, G], second-order zeros [B, G], uint8."""
    rows = len(buffers["codes"])
    of_width = count_widths(widths)
    of_codes, of_zeros = lengths(rows, g, of_width, by_row)
    held = zip(MIXED_WIDTHS, of_width, buffers["codes"].split(of_codes, dim=1), strict=True)
    codes = {w: unpack_words(some, w, n * g) for w, n, some in held if n}
    zero = widths.new_zeros(rows, len(widths))
    for w, n, some in zip(MIXED_WIDTHS, of_width, buffers["zero"].split(of_zeros), strict=True):
        if len(some):
            zero[:, widths == w] = _values(some, w, rows, n)
    second = second_order(widths, by_row)
    count = int(second.sum())
    scale_code = _values(buffers["scale_code"], SCALE_BITS, rows, count)
    scale_zero = _values(buffers["scale_zero"], SCALE_BITS, -(-rows // scale_group), count)
    return (
        by_channel(codes, widths, g),
        zero,
        spread(scale_code, second),
        spread(scale_zero, second),
    )


def _stream(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Pack the values of a tensor, which may be empty, into one stream of int32."""
    return pack_stream(values, bits) if values.numel() else values.new_empty(0, dtype=torch.int32)


def _values(stream: torch.Tensor, bits: int, rows: int, columns: int) -> torch.Tensor:
    """The inverse of _stream: [rows, columns] uint8."""
    if not rows * columns:
        return stream.new_empty(rows, columns, dtype=torch.uint8)
    return unpack_stream(stream, bits, rows * columns).view(rows, columns).to(torch.uint8)
