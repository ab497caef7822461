"""Packed weights drawn as they are stored: random codes, and scales that give the weights a deviation; no float weight.

    uniform   s (u - z), u in 0 .. 2^q - 1, z = 2^(q-1) or 2^(q-1) - 1                 mean square s^2 (4^q + 2) / 12
    bcq       sum_b +-alpha_b (+-a), alpha_b = a 2^b, the largest first                a^2 (4^q - 1) / 3 (+ a^2)
              of second order too: the same, then moved to the grids of rows
    mixed     as uniform, group by group in its own width, s = step * (code + zero) of second order
    dense     a multiple of 2^-15 between -sqrt(3) and sqrt(3) deviations, rounded to float16

Codes are bits of a generator, z and the sign of an offset are drawn a group, so that a row has mean 0. Each scale is
drawn between half and one and a half of the value that gives the deviation, whose mean square (13 / 12) is counted, so
that no two groups are alike. Outliers, 3 to 4 deviations, come on top: 0.5 % of them add 6 % to the mean square.

The generator is numpy's SFC64 under a hash of seed and name: the same numbers on every device, by any number of
threads, in any order of layers. The layout is the method's own (sizes.py), so that bits stored are those of a real one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable

from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.lazy import np, torch
from lutlab.base.second_order import coefficients, grid
from lutlab.base.tensors import BLOCK_SCALE_BITS, SCALE_BITS, MixedTensor
from lutlab.formats import name_of
from lutlab.formats.bcq import WORD, PackedBCQ
from lutlab.formats.bcq_second_order import PackedSecondOrder
from lutlab.formats.code_words import pack_stream
from lutlab.formats.contract import Format
from lutlab.formats.dense import PackedDense
from lutlab.formats.mixed import PackedMixed, second_order
from lutlab.formats.uniform import PackedUniform
from lutlab.formats.uniform_second_order import PackedUniformSecondOrder

CHUNK_WEIGHTS = 2**20  # dense weights drawn at a time: bounds the float32 temporaries
SPREAD = 13 / 12  # mean square of the factor of a scale, uniform between 1/2 and 3/2
_SECOND_ZERO = 8  # of scales of second order, whose codes of 4 bits then lie within a factor of 3
_LEAST_OUTLIER = 3.0  # in deviations


class Bits:
    """Random bits of a name under a seed."""

    def __init__(self, seed: int, name: str) -> None:
        key = hashlib.sha256(f"{seed}:{name}".encode()).digest()
        # Of numpy's generators one whose stream stays as it is.
        self._generator = np.random.SFC64(np.random.SeedSequence(int.from_bytes(key, "little")))

    def integers(self, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        """A tensor of integers, all bits random."""
        size = math.prod(shape) * dtype.itemsize
        octets = self._generator.random_raw(-(-size // 8)).view("uint8")[:size]
        return torch.from_numpy(octets).view(dtype).view(shape)

    def coins(self, *shape: int) -> torch.Tensor:
        """Random numbers 0 or 1, uint8."""
        return self.integers(torch.uint8, *shape) & 1

    def factors(self, *shape: int) -> torch.Tensor:
        """Float32 between 1/2 and 3/2, of 256 values."""
        return self.integers(torch.uint8, *shape).float().add_(0.5).div_(256).add_(0.5)


def drawn(
    empty: Format, deviation: float, bits: Bits, device: torch.device | str = "cpu"
) -> Format:
    """A weight of the layout of `empty`, which may be on the meta device.

    Args:
        empty: format and sizes; its numbers are not read.
        deviation: root of the mean square of the weights.
        bits: random bits of the layer's name under the seed.
        device: device of the buffers.

    Raises:
        LutlabError: a format from outside of lutlab, which nothing here draws.
    """
    kinds: dict[type, Callable[..., Format]] = {
        PackedUniform: _uniform,
        PackedBCQ: _bcq,
        PackedSecondOrder: _second_order,
        PackedUniformSecondOrder: _uniform_second_order,
        PackedMixed: _mixed,
        PackedDense: _dense,
    }
    if type(empty) not in kinds:
        raise LutlabError(
            f"weights of format {name_of(empty)} cannot be drawn as they are stored, only those of "
            f"{', '.join(name for name, cls in registry.classes('format').items() if cls in kinds)}: quantize a "
            "synthetic model instead (model.packed=false, or lutlab.quantize)"
        )
    return kinds[type(empty)](empty, deviation, bits, device)


def uniform_step(q: int, deviation: float) -> float:
    """S of the module's first line, the spread of scales counted."""
    return deviation * math.sqrt(12 / (4**q + 2) / SPREAD)


def _uniform(
    empty: PackedUniform, deviation: float, bits: Bits, device: torch.device | str
) -> PackedUniform:
    q, (_, columns), shape = empty.bits, empty.shape, tuple(empty.scale.shape)
    codes = _without_padding(bits.integers(torch.int32, *empty.qweight.shape), columns * q)
    scale = bits.factors(*shape).mul_(uniform_step(q, deviation)).to(empty.scale.dtype)
    zero = (2 ** (q - 1) - bits.coins(*shape)).to(torch.int16)
    assert empty.qzero is not None  # no method gives uniform codes offsets
    if empty.qzero.dtype == torch.int32:
        zero = pack_stream(zero, q)
    order = None if empty.order is None else _order(bits, columns)
    buffers = {"qweight": codes, "scale": scale, "qzero": zero, "order": order}
    return empty.with_buffers(buffers).to(device)


def _bcq(empty: PackedBCQ, deviation: float, bits: Bits, device: torch.device | str) -> PackedBCQ:
    q, (_, columns) = empty.bits, empty.shape
    planes = _without_padding(bits.integers(torch.int32, *empty.planes.shape), columns)
    least = (4**q - 1) / 3 + (empty.offset is not None)  # mean square of the weights at a = 1
    unit = deviation / math.sqrt(least * SPREAD)
    powers = unit * 2.0 ** torch.arange(q - 1, -1, -1).view(-1, 1, 1)
    alpha = (bits.factors(*empty.alpha.shape) * powers).to(empty.alpha.dtype)
    offset = None
    if empty.offset is not None:
        signs = 2 * bits.coins(*empty.offset.shape).float() - 1
        offset = (bits.factors(*empty.offset.shape) * signs * unit).to(empty.offset.dtype)
    order = None if empty.order is None else _order(bits, columns)
    buffers = {"planes": planes, "alpha": alpha, "offset": offset, "order": order}
    return empty.with_buffers(buffers).to(device)


def _second_order(
    empty: PackedSecondOrder, deviation: float, bits: Bits, device: torch.device | str
) -> PackedSecondOrder:
    plain = _bcq(empty.first_order(), deviation, bits, device)
    a = coefficients(plain.alpha, plain.offset)
    return PackedSecondOrder.encoded(plain, *grid(a, empty.scale_bits), empty.scale_bits)


def _uniform_second_order(
    empty: PackedUniformSecondOrder, deviation: float, bits: Bits, device: torch.device | str
) -> PackedUniformSecondOrder:
    plain = _uniform(empty.first_order(), deviation, bits, device)
    grids = grid(plain.scale.unsqueeze(0), empty.scale_bits)
    return PackedUniformSecondOrder.encoded(plain, *grids, empty.scale_bits)


def _dense(
    empty: PackedDense, deviation: float, bits: Bits, device: torch.device | str
) -> PackedDense:
    return PackedDense(dense(empty.shape, deviation, bits, device).to(empty.weight.dtype))


def dense(
    shape: tuple[int, ...], deviation: float, bits: Bits, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """A tensor of float16 of mean 0, uniform between -sqrt(3) and sqrt(3) deviations."""
    out = torch.empty(shape, dtype=torch.float16, device=device)
    step, rows = deviation * math.sqrt(3) / 2**15, max(1, CHUNK_WEIGHTS // math.prod(shape[1:]))
    for some in out.split(rows):  # float32 of a few rows at a time
        some.copy_(bits.integers(torch.int16, *some.shape).to(device).float().mul_(step))
    return out


def _without_padding(words: torch.Tensor, used: int) -> torch.Tensor:
    """Words [..., W] int32, in place, whose bits beyond the first `used` of a row are 0, as packing leaves them."""
    if spare := -used % WORD:
        words[..., -1] &= (1 << (WORD - spare)) - 1
    return words


def _order(bits: Bits, columns: int) -> torch.Tensor:
    """A permutation [K] int32."""
    return bits.integers(torch.int64, columns).argsort(stable=True).int()


# ---- mixed groups ----


def _mixed(
    empty: PackedMixed, deviation: float, bits: Bits, device: torch.device | str
) -> PackedMixed:
    """Draw a tensor of one byte a code, which the format packs: it places widths, outliers and blocks."""
    rows, columns = empty.shape
    widths = _widths(empty, bits)
    by_row, bands = empty.row_scale is not None, len(empty.scale_step)
    second = second_order(widths, by_row)
    middle = (2 ** (widths.int() - 1)).to(torch.uint8)  # [G]
    zero = (middle - bits.coins(rows, len(widths))).mul_(second)
    code, mean_square = _scale_codes(empty, widths, second, bits, rows)
    step = torch.tensor([uniform_step(int(w), deviation) for w in widths]) / mean_square.sqrt()
    parts = {
        "scale_code": code,
        "scale_zero": (second * _SECOND_ZERO).to(torch.uint8).expand(bands, -1).contiguous(),
        "scale_step": (bits.factors(bands, len(widths)) * step * second).half(),
    }
    if by_row:
        parts["row_scale"] = (bits.factors(rows) * uniform_step(4, deviation)).half()
        parts["row_zero"] = 8 - bits.coins(rows)
    of_column = torch.arange(columns) // empty.group_size
    codes = bits.integers(torch.uint8, rows, columns)
    codes &= (2 ** widths.int() - 1).to(torch.uint8)[of_column]
    if empty.outlier_value is not None:
        narrow = (widths == 2)[of_column].nonzero().view(-1)
        parts |= _outliers(len(empty.outlier_value), rows, narrow, deviation, bits)
        row = torch.arange(rows).repeat_interleave(parts["outlier_count"].long())
        column = parts["outlier_column"].long()
        codes[row, column] = zero[row, of_column[column]]
    parts |= {"codes": codes, "widths": widths, "zero_point": zero}
    tensor = MixedTensor(
        group_size=empty.group_size,
        scale_group=empty.scale_group,
        aligned=empty.aligned,
        **{name: part.to(device) for name, part in parts.items()},
    )
    return PackedMixed.pack(tensor)


def _widths(empty: PackedMixed, bits: Bits) -> torch.Tensor:
    """[G] uint8: groups of each width in drawn places."""
    counts = torch.tensor(empty.of_width)
    some = torch.tensor([2, 3, 4], dtype=torch.uint8).repeat_interleave(counts)
    return some[_order(bits, len(some)).long()]


def _scale_codes(
    empty: PackedMixed, widths: torch.Tensor, second: torch.Tensor, bits: Bits, rows: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [N, G] uint8 of scales of second order, 0 where there are none, and [G], the mean square of code + zero."""
    wide = torch.full((len(widths),), SCALE_BITS)
    if empty.aligned:
        narrow = widths == 2
        in_turn = torch.tensor(BLOCK_SCALE_BITS).repeat(len(widths))[: int(narrow.sum())]
        wide[narrow] = in_turn
    levels = 2**wide
    code = bits.integers(torch.uint8, rows, len(widths)) & (levels - 1).to(torch.uint8)
    mean = _SECOND_ZERO + (levels - 1) / 2
    return code.mul_(second), mean.square() + (levels.square() - 1) / 12


def _outliers(
    count: int, rows: int, narrow: torch.Tensor, deviation: float, bits: Bits
) -> dict[str, torch.Tensor]:
    """Outliers, as many in each row: one in each stretch of the columns of 2 bits, ascending."""
    of_row = torch.full((rows,), count // rows, dtype=torch.int32)
    of_row[: count % rows] += 1
    first = torch.cumsum(of_row, 0, dtype=torch.int64) - of_row
    row = torch.arange(rows).repeat_interleave(of_row.long())
    index, stretch = torch.arange(count) - first[row], len(narrow) // of_row[row]
    inside = ((bits.factors(count) - 0.5) * stretch).long()
    column = narrow[index * len(narrow) // of_row[row] + inside]
    value = (_LEAST_OUTLIER - 0.5 + bits.factors(count)) * deviation
    signs = 2 * bits.coins(count).float() - 1
    return {
        "outlier_count": of_row,
        "outlier_column": column.int(),
        "outlier_value": (value * signs).half(),
    }
