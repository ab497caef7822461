"""Mixed groups in tiles of 16 rows and chunks of 16 groups of one width, as a warp of a GPU reads them.

For any widths of 2, 3 and 4 bits (mixed_tiles.py is for memory-aligned blocks). Groups are cut into pieces of 16
columns, which repeat their scale and zero point. Of a tile all pieces of 2 bits come first, then of 3, then of 4, those
of a width in the order of their channels, filled up to whole chunks by pieces that decode to 0. Lane 4 r + c of a warp
has pieces 4 c .. 4 c + 3 of a chunk, of rows r and r + 8; a chunk of w bits is, side by side, 512 w bytes of codes and
up to 304 of scales:

    2 bits         [2 rows][lane][4 pieces] words of 16 codes, column j at bit 2 j
    3 bits         bits 0, 1 of a code so; then [lane][2 rows][2] words of the third bits of pieces 0, 1 and 2, 3: of
                   the first columns j and j + 8 at bits 2 + 2 (j % 4) + j / 4 and 16 more, the second's turned left
                   by 8
    4 bits         [pieces 0, 1 and 2, 3][2 rows][lane][piece][2] words: columns 0-3, 8-11 and 4-7, 12-15, the first
                   four at bits 4 j, the others at 16 + 4 j
    scale codes    [lane] words: 4 bits a piece, row r below, r + 8 above
    zeros          [lane], w bits a piece, row r below, r + 8 above: of 2 bits in 16, else in 32
    steps, second  [4 lanes of a row][4 pieces] float16; [4 lanes] words of 16 bits with 4 a piece; 8 bytes of nothing

Groups of 4 bits with a scale a row have codes only. Outliers as in mixed_tiles.py, places in this order of pieces.
`words` is [ceil(N / 16), bytes of a tile] uint8; `source` [16 C] int32 has the 16 channels of each piece, -1 where it
is none.
"""

from __future__ import annotations

import torch

from lutlab.base.tensors import MIXED_WIDTHS, MixedTensor
from lutlab.formats.mixed import PackedMixed, count_widths
from lutlab.kernels.gpu.mixed_gemv.mixed_tiles import ROWS, MixedWeight, with_outliers

PIECE = 16  # columns
PIECES = 16  # of a chunk
# Weights packed at a time: bounds the temporaries (some 16 bytes a weight).
CHUNK_WEIGHTS = 2**22


def chunks(of_width: tuple[int, int, int], group_size: int) -> tuple[int, int, int]:
    """Chunks of a tile, of 2, 3 and 4 bits, for so many groups of each width."""
    twos, threes, fours = (-(-n * (group_size // PIECE) // PIECES) for n in of_width)
    return twos, threes, fours


def pack(packed: PackedMixed) -> MixedWeight:
    """Pack a stored weight, whose groups are a multiple of 16 columns and 16 rows."""
    tensor, (rows, columns) = packed.unpack(), packed.shape
    repeat = packed.group_size // PIECE
    width = tensor.widths.repeat_interleave(repeat)
    of_width = chunks(count_widths(tensor.widths), packed.group_size)
    place = places(width, of_width)
    source = place.new_full((sum(of_width) * PIECES,), -1)
    source[place.long()] = torch.arange(len(width), dtype=torch.int32, device=place.device)
    step = max(ROWS, CHUNK_WEIGHTS // columns // ROWS * ROWS)
    tiles = [
        _tiles(tensor, first, min(first + step, rows), width) for first in range(0, rows, step)
    ]
    buffers = {"words": torch.cat(tiles), "source": source}
    return with_outliers(buffers, packed, lambda column: place[column // PIECE], chunks=of_width)


def places(width: torch.Tensor, of_width: tuple[int, int, int]) -> torch.Tensor:
    """Places of the pieces in the order of chunks, [pieces] int32; width: bits of each; of_width: chunks of each."""
    out, first = torch.empty_like(width, dtype=torch.int32), 0
    for bits, count in zip(MIXED_WIDTHS, of_width, strict=True):
        pieces = width == bits
        out[pieces] = first + torch.arange(
            int(pieces.sum()), dtype=torch.int32, device=width.device
        )
        first += count * PIECES
    return out


def _tiles(tensor: MixedTensor, first: int, end: int, width: torch.Tensor) -> torch.Tensor:
    """Rows first .. end - 1 as [tiles, bytes of a tile] uint8."""
    rows, g = end - first, tensor.group_size
    repeat, missing = g // PIECE, -(-rows // ROWS) * ROWS - rows
    codes = tensor.codes[first:end]
    codes = torch.nn.functional.pad(codes, (0, len(width) * PIECE - codes.shape[1], 0, missing))
    codes = codes.view(len(codes), -1, PIECE)
    # A row of each tile, for what 16 rows or more share.
    band = torch.arange(first, end, ROWS, device=codes.device) // tensor.scale_group

    def of_rows(values: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.pad(
            values[first:end].repeat_interleave(repeat, dim=1), (0, 0, 0, missing)
        )

    def of_tiles(values: torch.Tensor) -> torch.Tensor:
        return values[band].repeat_interleave(repeat, dim=1)

    parts = []
    for bits in MIXED_WIDTHS:
        pieces = width == bits
        if not pieces.any():
            continue
        octets = [_codes(_filled(codes[:, pieces]), bits)]
        if not (bits == MIXED_WIDTHS[-1] and tensor.row_scale is not None):
            octets += _scales(
                _filled(of_rows(tensor.scale_code)[:, pieces]),
                _filled(of_rows(tensor.zero_point)[:, pieces]),
                bits,
            )
            octets += _second(
                _filled(of_tiles(tensor.scale_step)[:, pieces]),
                _filled(of_tiles(tensor.scale_zero)[:, pieces]),
            )
        parts.append(torch.cat(octets, dim=2).flatten(1))
    return torch.cat(parts, dim=1)


def _filled(pieces: torch.Tensor) -> torch.Tensor:
    """[rows, pieces, ...] with zeros up to whole chunks."""
    missing = -pieces.shape[1] % PIECES
    return torch.cat((pieces, pieces.new_zeros(len(pieces), missing, *pieces.shape[2:])), dim=1)


def _by_lane(pieces: torch.Tensor) -> torch.Tensor:
    """[rows, pieces, ...] -> [tiles, chunks, 2 rows of a lane, 8, 4 lanes of a row, 4 pieces, ...]."""
    pieces = pieces.view(-1, 2, 8, pieces.shape[1] // PIECES, 4, 4, *pieces.shape[2:])
    return pieces.movedim(3, 1)


def _codes(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """[rows, pieces, 16] uint8 -> [tiles, chunks, 512 bits] uint8."""
    codes = _by_lane(codes).long()
    column = torch.arange(PIECE, device=codes.device)
    if bits == 4:  # [.., piece, half of a word's columns, part, 4] -> [.., piece, part]
        parts = codes.unflatten(-1, (2, 2, 4)).transpose(-3, -2).flatten(-2)
        at = column[:8] % 4 * 4 + column[:8] // 4 * 16
        words = (parts << at).sum(-1)
        words = words.unflatten(5, (2, 2)).movedim(5, 2)
        return _octets(words, torch.int32)
    words = ((codes & 3) << 2 * column).sum(-1)
    if bits == 2:
        return _octets(words, torch.int32)
    at = 2 + column % 4 * 2 + column % 8 // 4 + column // 8 * 16
    ones = ((codes >> 2) << at).sum(-1).unflatten(-1, (2, 2))
    turned = ones[..., 1] << 8
    ones = ones[..., 0] | turned & 0xFFFFFFFF | turned >> 32
    return torch.cat((_octets(words, torch.int32), _octets(ones.movedim(2, 4), torch.int32)), dim=2)


def _scales(code: torch.Tensor, zero: torch.Tensor, bits: int) -> list[torch.Tensor]:
    """Scale codes and zero points [rows, pieces] uint8 -> [tiles, chunks, bytes] uint8 each."""
    piece = torch.arange(4, device=code.device)
    row = torch.arange(2, device=code.device).view(2, 1, 1)

    def words(values: torch.Tensor, width: int, of_row: int) -> torch.Tensor:
        of_pieces = (_by_lane(values).long() << width * piece).sum(-1)
        return (of_pieces << of_row * row).sum(2)

    zeros = words(zero, bits, 8 if bits == 2 else 16)
    return [
        _octets(words(code, 4, 16), torch.int32),
        _octets(zeros, torch.int16 if bits == 2 else torch.int32),
    ]


def _second(step: torch.Tensor, zero: torch.Tensor) -> list[torch.Tensor]:
    """Second-order steps [tiles, pieces] float16 and zeros uint8 -> [tiles, chunks, bytes] uint8 each."""
    piece = torch.arange(4, device=step.device)
    steps = step.view(torch.int16).view(len(step), -1, 4, 4)
    zeros = (zero.view(len(zero), -1, 4, 4).long() << 4 * piece).sum(-1)
    nothing = steps.new_zeros(*steps.shape[:2], 4)
    return [_octets(steps, torch.int16), _octets(zeros, torch.int16), _octets(nothing, torch.int16)]


def _octets(words: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Words [tiles, chunks, ...], of int64 too, as [tiles, chunks, bytes] uint8."""
    if dtype != words.dtype:  # bits of an unsigned word
        words = words.to(dtype)
    return words.flatten(2).contiguous().view(torch.uint8)
