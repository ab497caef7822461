"""Words and metadata of mixed groups for blocks of 32 rows, each way; mixed_gemv.py draws them.

Rows are padded to whole blocks by zeros. U groups of one width have g columns each; an octet is 8 columns.
"""

from __future__ import annotations

import torch

from lutlab.formats.code_words import in_order
from lutlab.kernels.cpu.rows.row_blocks import ROWS, lanes

OCTET = 8
# Codes packed at a time, so that what is made of them stays in the cache.
CHUNK_CODES = 2**19
_LOWEST = 0x0101010101010101  # bits of 8 bytes
_GATHER = 0x0102040810204080  # times these, bit 8 i goes to bit 56 + i
_SPREAD = -0x7FBFDFEFF7FBFDFF  # 0x8040201008040201: bit i of byte i


def pack_words(codes: torch.Tensor, width: int, interleaved: bool) -> torch.Tensor:
    """Codes [N, octets * 8] uint8 -> words [blocks, octets, 32 * width] uint8."""
    rows, columns = codes.shape
    out = torch.empty(-(-rows // ROWS), columns // OCTET, ROWS * width, dtype=torch.uint8)
    step = max(1, CHUNK_CODES // (columns * ROWS))
    for first in range(0, len(out), step):
        some = in_order(codes[first * ROWS : (first + step) * ROWS])
        out[first : first + step] = (
            _pack_fields(some) if width == 4 else _pack_planes(some, width, interleaved)
        )
    return out


def unpack_words(words: torch.Tensor, width: int, interleaved: bool, rows: int) -> torch.Tensor:
    """The inverse of pack_words: [N, octets * 8] uint8."""
    blocks, octets, _ = words.shape
    out = torch.empty(blocks * ROWS, octets * OCTET, dtype=torch.uint8)
    step = max(1, CHUNK_CODES // (octets * OCTET * ROWS))
    for first in range(0, blocks, step):
        some = in_order(words[first : first + step])
        out[first * ROWS : (first + step) * ROWS] = (
            _unpack_fields(some) if width == 4 else _unpack_planes(some, width, interleaved)
        )
    return out[:rows]


def _pack_fields(codes: torch.Tensor) -> torch.Tensor:
    # Two bytes of one code each, read as int16, are code 0 + 256 code 1: shifted by 4, the byte holds both.
    pairs = codes.view(torch.int16)
    words = lanes((pairs | pairs >> 4).to(torch.uint8).view(torch.int32), len(codes))
    return in_order(words.transpose(1, 2)).view(torch.uint8)


def _unpack_fields(words: torch.Tensor) -> torch.Tensor:
    bytes_ = in_order(words.view(torch.int32).transpose(1, 2)).view(torch.uint8)
    codes = torch.stack((bytes_ & 15, bytes_ >> 4), dim=3)
    return codes.flatten(2).flatten(0, 1)


def _pack_planes(codes: torch.Tensor, width: int, interleaved: bool) -> torch.Tensor:
    eight = codes.view(torch.int64)
    planes = [((eight >> b & _LOWEST) * _GATHER >> 56).to(torch.uint8) for b in range(width)]
    # [N, octets] -> [blocks, octets, half, place]
    planes = [_placed(lanes(p, len(codes)).transpose(1, 2), interleaved) for p in planes]
    words = torch.stack(planes[:2], dim=4).flatten(2)
    return words if width == 2 else torch.cat((words, planes[2].transpose(2, 3).flatten(2)), dim=2)


def _unpack_planes(words: torch.Tensor, width: int, interleaved: bool) -> torch.Tensor:
    planes = list(words[..., : 2 * ROWS].unflatten(2, (2, ROWS // 2, 2)).unbind(4))
    if width == 3:
        planes.append(words[..., 2 * ROWS :].unflatten(2, (ROWS // 2, 2)).transpose(2, 3))
    codes = 0
    for b, plane in enumerate(planes):
        by_row = _placed(plane.flatten(2), interleaved).flatten(2).transpose(1, 2).flatten(0, 1)
        bits = in_order(by_row.long() * _LOWEST & _SPREAD).view(torch.uint8).ne(0)
        codes = codes + (bits.to(torch.uint8) << b)
    return codes


def _placed(by_row: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """[..., 32 rows] -> [..., half, place], which is its own inverse."""
    halves = by_row.unflatten(-1, (2, ROWS // 2))
    if not interleaved:
        return halves
    return halves.unflatten(-1, (2, 2, 4)).transpose(-3, -2).flatten(-3)


def pack_meta(scale_code: torch.Tensor, zero_point: torch.Tensor, width: int) -> torch.Tensor:
    """Scale codes and zero points [N, U] uint8 -> [blocks, U, bytes] uint8."""
    bits, size = _field(width)
    fields = lanes(scale_code | zero_point << 4, len(scale_code)).long().unflatten(1, (4, 8))
    words = sum(fields[:, v] << bits * v for v in range(4))  # of two's complement in 32 bits
    words = in_order(words.transpose(1, 2)).view(torch.uint8).unflatten(2, (8, 8))
    return words[..., :size].flatten(2)


def unpack_meta(meta: torch.Tensor, width: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The inverse of pack_meta."""
    bits, size = _field(width)
    words = torch.nn.functional.pad(meta.unflatten(2, (8, size)), (0, 8 - size))
    words = in_order(words).view(torch.int64).squeeze(3).transpose(1, 2)
    fields = torch.stack([words >> bits * v & 2**bits - 1 for v in range(4)], dim=1)
    fields = fields.flatten(1, 2).flatten(0, 1)[:rows].to(torch.uint8)
    return fields & 15, fields >> 4


def _field(width: int) -> tuple[int, int]:
    """Bits of a row's field, bytes of four of them."""
    return (6, 3) if width == 2 else (8, 4)
