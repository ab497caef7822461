"""Memory-aligned blocks of 2/4-bit weights: three groups of 2 bits and one of 4 bits are 64 weights of a row.

Li et al., "Fast and Efficient 2-bit LLM Inference on GPU" (ICCAD 2024), section 3.3 and Figure 5. T = ceil(K / 64)
blocks a row; block t holds groups a, b, c = 3t, 3t + 1, 3t + 2 of 2 bits and group t of 4 bits, each in the order of
their channels. A thread loads the 128 bits of `blocks` and the 32 bits of `apart`; lowest bits first:

    blocks [N, T, 4]   int32   | a: 16 x 2 bits | b: 16 x 2 bits | c: 16 x 2 bits | columns 0..7 of the 4-bit group |
    apart  [N, T]      int32   | columns 8..15 of the 4-bit group: 8 x 4 bits |

The three zero points and scale codes of a row share 16 bits: the scales of b and c are clipped to 3 bits ("scale
clipping"). Their second-order zeros fill 12 bits of a word of 16 ("zero padding"):

    meta       [N, T]  int16   bits  15..13  12..10   9..6    5..4   3..2   1..0
                                    scale c scale b scale a  zero c zero b zero a
    scale_zero [B, T]  int16   bits  15..12  11..8    7..4    3..0                B = ceil(N / 16)
                                    padding  c       b       a

A block of 16 rows is 1024 weights in 16 * (160 + 16) + 3 * 16 + 16 bits: 2.8125 a weight, below the 2.8398 of the
paper's Eq. 10, since clipping saves 32 bits. Rows add 20 / K for their 4-bit groups, which Eq. 10 leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import torch
from lutlab.base.tensors import BLOCK_GROUP, BLOCK_SCALE_BITS, MixedTensor, fill_blocks
from lutlab.formats.code_words import pack_words, unpack_words

NARROW = len(BLOCK_SCALE_BITS)  # groups of 2 bits of a block: a, b, c
_SCALE_AT, _ZERO_AT, _SECOND_AT = (6, 10, 13), (0, 2, 4), (0, 4, 8)


def pack(tensor: MixedTensor, codes: Mapping[int, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The four buffers of the module's drawing, by name, and scale_step [B, 3T]; what is missing to whole blocks is 0.

    Args:
        tensor: weight whose groups fill blocks.
        codes: width -> the codes of its groups, [N, G_w * 16] uint8.

    Raises:
        LutlabError: the tensor's groups or scale codes do not fit blocks.
    """
    narrow = tensor.widths == 2
    scale_code = tensor.scale_code[:, narrow]
    fits = (
        fill_blocks(tensor.widths)
        and (tensor.group_size, tensor.scale_group) == (BLOCK_GROUP, BLOCK_GROUP)
        and tensor.row_scale is not None
        and all(
            bool((scale_code[:, at::NARROW] < 2 ** BLOCK_SCALE_BITS[at]).all())
            for at in range(NARROW)
        )
    )
    if not fits:
        raise LutlabError(
            "memory-aligned blocks hold a quarter of groups at 4 bits and the rest at 2, of 16 weights, 16 rows a "
            "second-order group, a scale a row for the groups of 4 bits, and scale codes of 4, 3, 3 bits in turn: "
            "quantize with q=2.5 g=16, or take method.aligned=false"
        )
    rows, blocks = len(codes[4]), codes[4].shape[1] // BLOCK_GROUP
    missing = NARROW * blocks - int(narrow.sum())

    def filled(of_groups: torch.Tensor, length: int = 1) -> torch.Tensor:
        return torch.nn.functional.pad(of_groups, (0, missing * length))

    three = pack_words(filled(codes[2], BLOCK_GROUP), 2).view(rows, blocks, NARROW)
    wide = pack_words(codes[4], 4).view(rows, blocks, 2)
    zero = filled(tensor.zero_point[:, narrow])
    return {
        "blocks": torch.cat((three, wide[..., :1]), dim=2),
        "apart": wide[..., 1].contiguous(),
        "meta": _fields((zero, _ZERO_AT), (filled(scale_code), _SCALE_AT)),
        "scale_zero": _fields((filled(tensor.scale_zero[:, narrow]), _SECOND_AT)),
        "scale_step": filled(tensor.scale_step[:, narrow]),
    }


def unpack(
    buffers: Mapping[str, torch.Tensor],
) -> tuple[dict[int, torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]:
    """Width -> codes [N, T * 48 | T * 16]; zero points, scale codes [N, 3T] and second-order zeros [B, 3T]; uint8."""
    blocks, apart, meta = buffers["blocks"], buffers["apart"], buffers["meta"]
    rows, count = apart.shape
    narrow = blocks[..., :NARROW].reshape(rows, -1)
    wide = torch.stack((blocks[..., NARROW], apart), dim=2).view(rows, -1)
    codes = {
        2: unpack_words(narrow, 2, count * NARROW * BLOCK_GROUP),
        4: unpack_words(wide, 4, count * BLOCK_GROUP),
    }
    return (
        codes,
        _values(meta, _ZERO_AT, (2, 2, 2)),
        _values(meta, _SCALE_AT, BLOCK_SCALE_BITS),
        _values(buffers["scale_zero"], _SECOND_AT, (4, 4, 4)),
    )


def _fields(*parts: tuple[torch.Tensor, tuple[int, ...]]) -> torch.Tensor:
    """Values [rows, 3T] at their bits of [rows, T] int16."""
    first, _ = parts[0]
    words = first.new_zeros(len(first), first.shape[1] // NARROW, dtype=torch.int32)
    for values, places in parts:
        of_block = values.to(torch.int32).view(len(values), -1, NARROW)
        for group, place in enumerate(places):
            words |= of_block[..., group] << place
    return words.to(torch.int16)


def _values(words: torch.Tensor, places: tuple[int, ...], bits: tuple[int, ...]) -> torch.Tensor:
    """The inverse of _fields for one of its parts."""
    wide = words.to(torch.int32)
    values = [wide >> at & (1 << length) - 1 for at, length in zip(places, bits, strict=True)]
    return torch.stack(values, dim=2).view(len(words), -1).to(torch.uint8)
