"""Column groups of 2, 3 and 4 bits with second-order scales and sparse outliers, as they are stored.

    W[n, k] = scale[n, i] * (codes[n, k] - zero_point[n, i]) + outliers,   i = k // g                tensors.MixedTensor

Codes and their metadata have two layouts: memory-aligned blocks (mixed_blocks.py) where a quarter of the groups has 4
bits, as in the paper; else streams, of each width w in rising order, each filled to a word (code_words.py), groups in
the order of their channels:

    codes      [N, sum_w ceil(G_w g w / 32)] int32: a row's stream of 2-bit codes, then of 3, then of 4
    zero       int32: zero points in w bits, a stream a width over all rows      scale_code  int32: one stream of 4 bits
    scale_zero int32: one stream of 4 bits

K is filled up to whole groups, and blocks to whole blocks, by weights that decode to exact zeros. Beside them, in both:

    widths     [G] uint8           scale_step [B, G'] float16: of the G' groups with second-order scales
    row_scale  [N] float16, row_zero [ceil(N / 8)] int32 (4 bits each), of all groups of 4 bits together; or None
    outlier_count [N] uint8 where all are below 256, else int16; outlier_column [E] int16, the bits of an unsigned one;
    outlier_value [E] float16; or None. CSR without its row pointers, which take 32 bits a row in the paper
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lutlab.base.errors import LutlabError
from lutlab.base.groups import blocks
from lutlab.base.lazy import torch
from lutlab.base.registry import register
from lutlab.base.tensors import MIXED_WIDTHS, SCALE_BITS, MixedTensor
from lutlab.formats import mixed_blocks
from lutlab.formats.code_words import WORD, pack_stream, pack_words, unpack_stream, unpack_words
from lutlab.formats.contract import Choice, Choices, Format, check_layout, dtype_name

# Bits of the codes, and so of the zero points, of groups that have a scale a row.
_WIDE = MIXED_WIDTHS[-1]
MAX_COLUMNS = 2**16  # that 16 bits can name


def outliers_of(
    weight: MixedTensor | PackedMixed,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:
    """Count of each row, columns and values of the outliers, which are all there or none."""
    count, column, value = weight.outlier_count, weight.outlier_column, weight.outlier_value
    if count is None or column is None or value is None:
        return None
    return count, column, value


def row_scales(weight: MixedTensor | PackedMixed) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Scales and zero points of rows, as they are stored, which are both there or neither."""
    scale, zero = weight.row_scale, weight.row_zero
    return None if scale is None or zero is None else (scale, zero)


def decoded(tensor: MixedTensor) -> torch.Tensor:
    """W [N, K] float32 of a tensor, exact: a scale has 16 significant bits, a level 5."""
    scale, zero = (of_groups[:, :, None] for of_groups in tensor.first_order())
    out = torch.empty(tensor.codes.shape, dtype=torch.float32, device=tensor.codes.device)
    for columns, groups, codes in blocks(tensor.codes, tensor.group_size):
        levels = codes.float().sub_(zero[:, groups])
        out[:, columns] = levels.mul_(scale[:, groups]).flatten(1)
    out.add_(0.0)  # -0, of no scale, is 0
    if outliers := outliers_of(tensor):
        count, column, value = outliers
        row = torch.arange(len(out), device=out.device).repeat_interleave(count.long())
        out[row, column.long()] = value.float()
    return out


@register("format", "mixed")
@dataclass(frozen=True)
class PackedMixed(Format):
    """Buffers as the modules draw them: blocks, apart, meta where aligned, else codes, zero, scale_code; shape (N, K).

    of_width: groups of 2, 3 and 4 bits; group_size: weights of a group; scale_group: rows of a second-order group.
    """

    version: ClassVar[int] = 1
    tensor: ClassVar[type] = MixedTensor
    kernels: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "cpu": ("mixed_gemv",),
        "cuda": ("mixed_gemv_gpu",),
    }

    shape: tuple[int, int]
    group_size: int
    scale_group: int
    of_width: tuple[int, int, int]
    widths: torch.Tensor
    scale_step: torch.Tensor
    scale_zero: torch.Tensor
    blocks: torch.Tensor | None = None
    apart: torch.Tensor | None = None
    meta: torch.Tensor | None = None
    codes: torch.Tensor | None = None
    zero: torch.Tensor | None = None
    scale_code: torch.Tensor | None = None
    row_scale: torch.Tensor | None = None
    row_zero: torch.Tensor | None = None
    outlier_count: torch.Tensor | None = None
    outlier_column: torch.Tensor | None = None
    outlier_value: torch.Tensor | None = None

    @classmethod
    def pack(cls, tensor: MixedTensor) -> PackedMixed:
        """Codes and metadata to words; scales and outliers as they are.

        Raises:
            LutlabError: a scale or an outlier is inf or nan, a row is too long, or an aligned tensor fits no blocks.
        """
        rows, columns = tensor.codes.shape
        if columns > MAX_COLUMNS:
            raise LutlabError(
                f"a weight of mixed groups has at most {MAX_COLUMNS} columns, which 16 bits of an outlier can name: "
                f"this one has {columns}"
            )
        for name in ("scale_step", "row_scale", "outlier_value"):
            values = getattr(tensor, name)
            if values is not None and not torch.isfinite(values).all():
                raise LutlabError(
                    f"{int((~torch.isfinite(values)).sum())} of {values.numel()} numbers of {name} are inf or nan: "
                    "float16 holds up to 65504; quantize finite weights, or rescale them"
                )
        second = second_order(tensor.widths, tensor.row_scale is not None)
        buffers = {"widths": tensor.widths, "scale_step": tensor.scale_step[:, second].contiguous()}
        by_block = tensor.aligned
        buffers |= mixed_blocks.pack(tensor, by_width(tensor)) if by_block else _streams(tensor)
        if of_rows := row_scales(tensor):
            scale, zero = of_rows
            buffers |= {"row_scale": scale, "row_zero": pack_stream(zero, _WIDE)}
        if outliers := outliers_of(tensor):
            count, column, value = outliers
            small = bool((count < 2**8).all())
            buffers |= {
                "outlier_count": count.to(torch.uint8 if small else torch.int16),
                "outlier_column": column.to(torch.int16),
                "outlier_value": value,
            }
        return cls(
            (rows, columns),
            tensor.group_size,
            tensor.scale_group,
            count_widths(tensor.widths),
            **buffers,
        )

    def unpack(self) -> MixedTensor:
        """The inverse of pack, bit for bit."""
        rows, columns = self.shape
        by_row = self.row_scale is not None
        second = second_order(self.widths, by_row)
        if self.aligned:
            of_width, zero, *of_scales = mixed_blocks.unpack(self.stored_buffers)
            zero = _spread(zero, second)
        else:
            of_width, zero, *of_scales = self._of_streams(int(second.sum()))
        scale_code, scale_zero, scale_step = (
            _spread(of_groups, second) for of_groups in (*of_scales, self.scale_step)
        )
        tensor = {
            "codes": by_channel(of_width, self.widths, self.group_size)[:, :columns].contiguous(),
            "zero_point": zero,
            "scale_code": scale_code,
            "scale_zero": scale_zero,
            "scale_step": scale_step,
        }
        if of_rows := row_scales(self):
            scale, words = of_rows
            tensor |= {
                "row_scale": scale,
                "row_zero": unpack_stream(words, _WIDE, rows).to(torch.uint8),
            }
        if outliers := outliers_of(self):
            count, column, value = outliers
            tensor |= {
                "outlier_count": count.int(),
                "outlier_column": column.int() & MAX_COLUMNS - 1,
                "outlier_value": value,
            }
        return MixedTensor(
            widths=self.widths,
            group_size=self.group_size,
            scale_group=self.scale_group,
            aligned=self.aligned,
            **tensor,
        )

    def _of_streams(
        self, second: int
    ) -> tuple[dict[int, torch.Tensor], torch.Tensor, torch.Tensor, torch.Tensor]:
        """Width -> codes, zero points [N, G], scale codes [N, G'] and second-order zeros [B, G'], uint8; second: G'."""
        buffers, rows = self.stored_buffers, self.shape[0]
        bands, by_row = -(-rows // self.scale_group), self.row_scale is not None
        of_codes, of_zeros = _lengths(rows, self.group_size, self.of_width, by_row)

        def values(stream: torch.Tensor, bits: int, rows: int, columns: int) -> torch.Tensor:
            return unpack_stream(stream, bits, rows * columns).view(rows, columns).to(torch.uint8)

        codes, zero = {}, self.widths.new_zeros(rows, len(self.widths))
        parts = buffers["codes"].split(of_codes, dim=1), buffers["zero"].split(of_zeros)
        for w, n, of_row, of_all in zip(MIXED_WIDTHS, self.of_width, *parts, strict=True):
            if n:
                codes[w] = unpack_words(of_row, w, n * self.group_size)
            if len(of_all):
                zero[:, self.widths == w] = values(of_all, w, rows, n)
        scale_code = values(buffers["scale_code"], SCALE_BITS, rows, second)
        return codes, zero, scale_code, values(self.scale_zero, SCALE_BITS, bands, second)

    @property
    def aligned(self) -> bool:
        """Whether codes are in memory-aligned blocks."""
        return self.blocks is not None

    @property
    def bits_average(self) -> float | None:
        """Bits a weight by Eq. 10; None where some groups have 3 bits."""
        narrow, three, wide = self.of_width
        if three:
            return None
        outliers = 0 if self.outlier_value is None else len(self.outlier_value)
        share = outliers / (self.shape[0] * self.shape[1])
        return average(narrow / (narrow + wide), self.group_size, self.scale_group, share)

    def dequantize(self) -> torch.Tensor:
        """The weight [N, K] in float32, exact."""
        return decoded(self.unpack())

    def layout(self) -> dict[str, Choice]:
        """Sizes, groups of 3 and of 4 bits, which layout, and how many outliers, counted in which dtype."""
        return {
            "out_features": self.shape[0],
            "in_features": self.shape[1],
            "g": self.group_size,
            "g2": self.scale_group,
            "groups_3": self.of_width[1],
            "groups_4": self.of_width[2],
            "aligned": self.aligned,
            "wide_scale": "group" if self.row_scale is None else "row",
            "outliers": 0 if self.outlier_value is None else len(self.outlier_value),
            "count_dtype": dtype_name(self.outlier_count),
        }

    @classmethod
    def from_layout(
        cls, layout: Mapping[str, Any], device: torch.device | str = "cpu"
    ) -> PackedMixed:
        """A weight without numbers, in blocks or streams as the layout says."""
        of_width = _checked(layout)
        rows, g, by_row = layout["out_features"], layout["g"], layout["wide_scale"] == "row"
        bands = -(-rows // layout["g2"])
        second = sum(of_width) - (of_width[2] if by_row else 0)

        def empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        if layout["aligned"]:
            blocks = of_width[2]
            second = blocks * mixed_blocks.NARROW
            buffers = {
                "blocks": empty(torch.int32, rows, blocks, 4),
                "apart": empty(torch.int32, rows, blocks),
                "meta": empty(torch.int16, rows, blocks),
                "scale_zero": empty(torch.int16, bands, blocks),
            }
        else:
            codes, zeros = _lengths(rows, g, of_width, by_row)
            bits = SCALE_BITS
            buffers = {
                "codes": empty(torch.int32, rows, sum(codes)),
                "zero": empty(torch.int32, sum(zeros)),
                "scale_code": empty(torch.int32, _words(rows * second, bits)),
                "scale_zero": empty(torch.int32, _words(bands * second, bits)),
            }
        if by_row:
            buffers["row_scale"] = empty(torch.float16, rows)
            buffers["row_zero"] = empty(torch.int32, _words(rows, _WIDE))
        if layout["count_dtype"] is not None:
            buffers["outlier_count"] = empty(getattr(torch, layout["count_dtype"]), rows)
            buffers["outlier_column"] = empty(torch.int16, layout["outliers"])
            buffers["outlier_value"] = empty(torch.float16, layout["outliers"])
        return cls(
            (rows, layout["in_features"]),
            g,
            layout["g2"],
            of_width,
            widths=empty(torch.uint8, sum(of_width)),
            scale_step=empty(torch.float16, bands, second),
            **buffers,
        )


def _checked(layout: Mapping[str, Any]) -> tuple[int, int, int]:
    """Groups of each width of a layout that may be damaged."""
    choices: Choices = {"g": 1, "g2": 1, "groups_3": 0, "groups_4": 0, "outliers": 0}
    choices |= {"aligned": (False, True), "wide_scale": ("row", "group")}
    check_layout(layout, choices | {"count_dtype": (None, "uint8", "int16")})
    groups = -(-layout["in_features"] // layout["g"])
    narrow = groups - layout["groups_3"] - layout["groups_4"]
    blocks = -(-groups // (mixed_blocks.NARROW + 1))
    misfit = (layout["groups_3"], layout["groups_4"]) != (0, blocks)
    if narrow < 0 or (layout["aligned"] and misfit):
        raise LutlabError(
            f"the layout of a quantized layer has {layout['groups_3']} groups of 3 bits and {layout['groups_4']} of 4, "
            f"of {groups} in all, and aligned={layout['aligned']}: these do not go together; the file is damaged"
        )
    return narrow, layout["groups_3"], layout["groups_4"]


# ---- groups: stored width by width, each in the order of its channels ----


def count_widths(widths: torch.Tensor) -> tuple[int, int, int]:
    """Groups of 2, 3 and 4 bits of widths [G]."""
    twos, threes, fours = (int((widths == w).sum()) for w in MIXED_WIDTHS)
    return twos, threes, fours


def second_order(widths: torch.Tensor, by_row: bool) -> torch.Tensor:
    """[G] bool: groups with second-order scales; by_row: those of 4 bits have a scale a row instead."""
    return widths != 4 if by_row else widths > 0


def by_width(tensor: MixedTensor) -> dict[int, torch.Tensor]:
    """Width -> codes [N, G_w * g] uint8; columns beyond K are at their zero point, so that they decode to 0."""
    rows, columns = tensor.codes.shape
    g, groups = tensor.group_size, len(tensor.widths)
    codes = tensor.codes
    if missing := groups * g - columns:
        last = tensor.first_order()[1][:, -1:]
        codes = torch.cat((codes, last.expand(rows, missing)), dim=1)
    grouped = codes.view(rows, groups, g)
    return {w: grouped[:, tensor.widths == w].reshape(rows, -1) for w in MIXED_WIDTHS}


def by_channel(codes: Mapping[int, torch.Tensor], widths: torch.Tensor, g: int) -> torch.Tensor:
    """The inverse of by_width, [N, G * g] uint8, columns beyond K included; what blocks are filled with is dropped."""
    some = next(iter(codes.values()))
    out = some.new_zeros(len(some), len(widths), g)
    for w, values in codes.items():
        groups = widths == w
        out[:, groups] = values.view(len(some), -1, g)[:, : int(groups.sum())]
    return out.view(len(some), -1)


def _spread(of_groups: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """[rows, at least as many as the mask has] -> [rows, G], 0 where a group is not in the mask ([G] bool)."""
    out = of_groups.new_zeros(len(of_groups), len(mask))
    out[:, mask] = of_groups[:, : int(mask.sum())]
    return out


# ---- streams ----


def _words(count: int, bits: int) -> int:
    """Words that a stream of so many values fills."""
    return -(-count * bits // WORD)


def _lengths(
    rows: int, g: int, of_width: tuple[int, int, int], by_row: bool
) -> tuple[list[int], list[int]]:
    """Words of each width: of a row's codes, and of all zero points (none of groups with a scale a row)."""
    pairs = list(zip(MIXED_WIDTHS, of_width, strict=True))
    zeros = [0 if by_row and w == 4 else _words(rows * n, w) for w, n in pairs]
    return [_words(n * g, w) for w, n in pairs], zeros


def _streams(tensor: MixedTensor) -> dict[str, torch.Tensor]:
    """The four buffers of the module's drawing, by name."""
    second = second_order(tensor.widths, tensor.row_scale is not None)
    codes = [pack_words(values, w) for w, values in by_width(tensor).items() if values.shape[1]]
    zeros = [
        pack_stream(tensor.zero_point[:, (tensor.widths == w) & second], w) for w in MIXED_WIDTHS
    ]
    return {
        "codes": torch.cat(codes, dim=1),
        "zero": torch.cat(zeros),
        "scale_code": pack_stream(tensor.scale_code[:, second], SCALE_BITS),
        "scale_zero": pack_stream(tensor.scale_zero[:, second], SCALE_BITS),
    }


# ---- the paper's average ----


def average(narrow: float, g1: int, g2: int, outliers: float = 0.0) -> float:
    """Bits a weight as the 2/4/16-bit paper counts them, scales and zero points included (Li et al., ICCAD 2024).

        n + (n + Ns) / g1 + (Ns + 16) / (g1 g2)     second order, Eq. 6's branch that the text calls (7): n = 2, Ns = 4
        a (second order of 2 bits) + (1 - a) 4      Eq. 10: a is the share of 2-bit groups
        + (16 + 16 - 2) r                           section 4.2: a share r of outliers, in CSR

    Eq. 10 gives groups of 4 bits neither scale nor zero: that holds with one of each a row, which is stored here and
    counted in bits_per_weight, not in this average.

    Args:
        narrow: share of groups that have 2 bits; the others have 4.
        g1: weights of a group.
        g2: rows whose groups share a step and a zero.
        outliers: their share of weights.

    >>> average(0.75, 16, 16)
    2.83984375
    """
    second = 2 + (2 + SCALE_BITS) / g1 + (SCALE_BITS + 16) / (g1 * g2)
    return narrow * second + (1 - narrow) * 4 + 30 * outliers
