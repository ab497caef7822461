"""C source of the lookup-table GEMV over BCQ planes (kernels/cpu/bcq/gemv.c) for one bit width, grouping and CPU.

A word of a plane is cut into lookups of as many bits as a table has: four with AVX-512, whose tables have 16 entries,
ten of three and one of two with AVX2. A lookup never spans two groups. As many planes are worked on together as fit
the registers; where those are few, each gets several sums, since an FMA takes four cycles and two can start in one.
"""

from __future__ import annotations

from dataclasses import dataclass

from lutlab.errors import LutlabError, nearest
from lutlab.kernels.codegen import templates
from lutlab.kernels.codegen.isa import Isa
from lutlab.kernels.cpu.rows.row_blocks import geometry
from lutlab.kernels.cpu.rows.rows_gemv import EXACT
from lutlab.kernels.cpu.rows.tiles import tiles

WORD = 32
LUT_BITS = {"avx512": 4, "avx2": 3}
PORTABLE_LUT_BITS = 4
# Planes worked on together for 1, 2, ... rows of x at once, and sums under way for each of 32 rows.
PLANES = {"avx512": {1: 4, 2: 2, 4: 2}, "avx2": {1: 1, 2: 1}}
PORTABLE_PLANES = {1: 1}
SUMS = {"avx512": 4, "avx2": 2}
PORTABLE_SUMS = 1
# Rows of x from which on weights become floats once for all: a lookup costs more than that and an FMA.
TILE_FROM = {"avx512": 12, "avx2": 3, "portable": 2}
# The same of tables of integers: AVX-512; AVX2 by planes, the last number for more, and of planes looked up in pairs.
INTEGER_TILE_FROM = {"avx512": 24}
BYTES_TILE_FROM = {1: 48, 2: 24, 3: 10, 4: 8, 5: 6}
PAIRS_TILE_FROM = {1: 48, 2: 65, 3: 16}
INT16 = "int16"  # what tables hold, beside EXACT
# Instruction set, tables -> bytes of a row that lie together, bits of an integer entry, variant; else FLOATS.
INTEGERS = {
    ("avx2", EXACT): (1, 24, "bcq lut int24"),
    ("avx2", INT16): (1, 18, "bcq lut int18"),
    ("avx512", INT16): (2, 16, "bcq lut int16"),
}
FLOATS = (4, None, "bcq lut")
# When sums are multiplied by alpha: "first", each term by an FMA; "last", once a group, which frees its registers.
WEIGH = {"avx512": "first"}


@dataclass(frozen=True)
class Cut:
    """The lookup number `index` of a word: `bits` columns from `column` on, of one group."""

    index: int
    column: int
    bits: int
    group: int
    first_of_group: bool
    last_of_group: bool

    def __repr__(self) -> str:
        """Columns of the tile, for the head of the source."""
        return f"{self.column}..{self.column + self.bits - 1}"


@dataclass(frozen=True)
class Loop:
    """A loop over the words of a unit for m rows of x and some planes, with `ways` sums for each plane and vector."""

    m: int
    planes: int
    ways: int

    @property
    def name(self) -> str:
        """Name of the C function."""
        return f"planes_{self.planes}_rows_{self.m}"

    def sum(self, m: int, vector: int, cut: int) -> str:
        """The variable that a lookup of row m of x is added to; vector: 2 * plane, + 1 for rows 16-31."""
        return f"sum{vector}_{m}_{cut % self.ways}"

    def sums(
        self, m: int | None = None, rows: int | None = None, plane: int | None = None
    ) -> list[str]:
        """All such variables, or those of one row of x, of rows 0-15 (0) or 16-31 (1), of one plane."""
        return [
            self.sum(i, vector, way)
            for i in (range(self.m) if m is None else (m,))
            for vector in range(2 * self.planes)
            for way in range(self.ways)
            if rows in (None, vector % 2) and plane in (None, vector // 2)
        ]

    def __repr__(self) -> str:
        """Spelling in the head of the source."""
        return f"{self.m} x {self.planes} planes x {self.ways} sums"


def cuts(lut_bits: int, groups_in_unit: int) -> list[Cut]:
    """The lookups of a word.

    >>> [cut.bits for cut in cuts(3, 1)]
    [3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2]
    """
    found: list[Cut] = []
    span = WORD // groups_in_unit
    for group in range(groups_in_unit):
        for inside in range(0, span, lut_bits):
            bits = min(lut_bits, span - inside)
            last = inside + bits == span
            found.append(Cut(len(found), group * span + inside, bits, group, inside == 0, last))
    return found


@templates.kept
def source(
    isa: Isa,
    *,
    q: int,
    groups_in_unit: int,
    alpha: str,
    offset: str | None,
) -> str:
    """C source of the product.

    Args:
        isa: the instructions to write it in.
        q: planes, 1-8.
        groups_in_unit: 1, 2 or 4; more than 1: a unit is one word.
        alpha: f16 or f32, what scales are stored in.
        offset: f16, f32 or None; i16: the unit holds one uniform scale and a zero point in the place of alphas.
    """
    lut_bits = LUT_BITS.get(isa.name, PORTABLE_LUT_BITS)
    return templates.render(
        "bcq/gemv.c",
        simd=isa.name if isa.name in LUT_BITS else "portable",
        **_planes(q, groups_in_unit, alpha, offset, lane_bytes=4),
        lut_bits=lut_bits,
        cuts=cuts(lut_bits, groups_in_unit),
        weigh=WEIGH.get(isa.name, "last"),
        loops=loops(isa, q),
        batches=list(PLANES.get(isa.name, PORTABLE_PLANES)),
        **tiles(isa, TILE_FROM),
    )


@templates.kept
def integer_source(isa: Isa, *, q: int, alpha: str, offset: str | None, table_bits: int) -> str:
    """C source of tables of integers (kernels/cpu/bcq/bytes.c, halves.c): one group in a unit.

    Args:
        isa: AVX2 or AVX-512.
        q: number of planes.
        alpha: type of stored scales.
        offset: type of stored offsets.
        table_bits: bits of a table's entry: 24, as exact as float32, or 18, for AVX2; 16, for AVX-512.
    """
    if table_bits == 16:
        planes, tile_from = _planes(q, 1, alpha, offset, lane_bytes=2), INTEGER_TILE_FROM["avx512"]
        template, more = "bcq/halves.c", {"simd": "avx512", "sums": 2 if q == 1 else 1}
    else:
        planes, tile_from = _planes(q, 1, alpha, offset, lane_bytes=1), BYTES_TILE_FROM[min(q, 5)]
        template, more = "bcq/bytes.c", {"digit_bits": 6, "digits": table_bits // 6}
        if offset == "i16" and table_bits == 24:
            tile_from = PAIRS_TILE_FROM[min(q, 3)]
            template, more = "bcq/digits.c", {"digit_bits": 8, "pairs": q // 2 * 2}
        more["simd"] = "avx2"
    more |= tiles(isa, {isa.name: tile_from})
    return templates.render(template, **planes, **more, batches=[1])


def _planes(
    q: int, groups_in_unit: int, alpha: str, offset: str | None, lane_bytes: int
) -> dict[str, object]:
    """Parameters of kernels/cpu/bcq/planes.h."""
    sizes = {"f16": 2, "i16": 2, "f32": 4, None: 0}
    planes_of_scales = 1 if offset == "i16" else q
    return {
        "q": q,
        "groups_in_unit": groups_in_unit,
        "alpha": alpha,
        "offset": offset,
        "lane_bytes": lane_bytes,
        "alpha_size": sizes[alpha],
        "offset_size": sizes[offset],
        "scale_bytes": groups_in_unit * planes_of_scales * 32 * sizes[alpha],
        "offset_bytes": groups_in_unit * 32 * sizes[offset],
    }


def lane_bytes(isa: Isa, group_size: int, in_features: int, tables: str = EXACT) -> int:
    """The layout (bcq_rows.py) of the fastest kernel; a word that holds several groups has tables of floats.

    Raises:
        LutlabError: there are no such tables for this instruction set.
    """
    if tables not in (EXACT, INT16):
        raise LutlabError(f"tables={tables}: no such tables; {nearest(tables, (EXACT, INT16))}")
    if tables == INT16 and (isa.name, tables) not in INTEGERS:
        raise LutlabError(
            f"tables={tables} exist for AVX-512 and AVX2, and kernels are built for {isa.name}: take tables={EXACT}"
        )
    if geometry(in_features, group_size, WORD).groups_in_unit > 1:
        return FLOATS[0]
    return INTEGERS.get((isa.name, tables), FLOATS)[0]


def kind(
    isa: Isa, tables: str, lane_bytes_: int, group_size: int, in_features: int
) -> tuple[int, int | None, str]:
    """The entry of INTEGERS, or FLOATS, of a layout.

    Raises:
        LutlabError: it is packed for other tables or instructions.
    """
    for one in (INTEGERS.get((isa.name, tables), FLOATS), FLOATS):
        if one[0] == lane_bytes_:
            return one
    raise LutlabError(
        f"planes packed with lane_bytes={lane_bytes_} have no kernel for {isa.name} with tables={tables}: "
        f"pack with lane_bytes={lane_bytes(isa, group_size, in_features, tables)}"
    )


def loops(isa: Isa, q: int) -> list[Loop]:
    """For each number of rows of x: a loop over as many planes as fit the registers, and one over those left.

    >>> loops(Isa("avx512", ()), 7)[:2]
    [1 x 4 planes x 1 sums, 1 x 3 planes x 1 sums]
    """
    found = []
    for m, most in PLANES.get(isa.name, PORTABLE_PLANES).items():
        steps = -(-q // most)
        for planes in dict.fromkeys((-(-q // steps), q // steps)):
            ways = max(1, SUMS.get(isa.name, PORTABLE_SUMS) // (planes * m))
            found.append(Loop(m, planes, ways))
    return found
