"""Column groups of 2, 3 and 4 bits with second-order scales and sparse outliers, as they are stored.

    W[n, k] = scale[n, i] * (codes[n, k] - zero_point[n, i]) + outliers,   i = k // g                tensors.MixedTensor

Codes and their metadata have two layouts: memory-aligned blocks (mixed_blocks.py) where a quarter of the groups has 4
bits, as in the paper; else streams (mixed_streams.py). K is filled up to whole groups, and blocks to whole blocks, by
weights that decode to exact zeros. Beside them, in both:

    widths     [G] uint8           scale_step [B, G'] float16: of the G' groups with second-order scales
    row_scale  [N] float16, row_zero [ceil(N / 8)] int32 (4 bits each), of all groups of 4 bits together; or None
    outlier_count [N] uint8 where all are below 256, else int16; outlier_column [E] int16, the bits of an unsigned one;
    outlier_value [E] float16; or None. CSR without its row pointers, which take 32 bits a row in the paper
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lutlab.errors import LutlabError
from lutlab.formats import mixed_blocks, mixed_streams
from lutlab.formats.code_words import pack_stream, unpack_stream
from lutlab.formats.contract import Choice, Format, check_layout, dtype_name
from lutlab.formats.mixed_average import average
from lutlab.formats.mixed_groups import count_widths, second_order, spread
from lutlab.groups import blocks
from lutlab.lazy import torch
from lutlab.registry import register
from lutlab.tensors import MIXED_WIDTHS, SCALE_BITS, MixedTensor

# Bits of the codes, and so of the zero points, of groups that have a scale a row.
_WIDE = MIXED_WIDTHS[-1]
MAX_COLUMNS = 2**16  # that 16 bits can name
_NAMES = (
    *(
        "widths",
        "scale_step",
        "scale_zero",
        "blocks",
        "apart",
        "meta",
        "codes",
        "zero",
        "scale_code",
    ),
    *("row_scale", "row_zero", "outlier_count", "outlier_column", "outlier_value"),
)


def decoded(tensor: MixedTensor) -> torch.Tensor:
    """W [N, K] float32 of a tensor, exact: a scale has 16 significant bits, a level 5."""
    scale, zero = (of_groups[:, :, None] for of_groups in tensor.first_order())
    out = torch.empty(tensor.codes.shape, dtype=torch.float32, device=tensor.codes.device)
    for columns, groups, codes in blocks(tensor.codes, tensor.group_size):
        levels = codes.float().sub_(zero[:, groups])
        out[:, columns] = levels.mul_(scale[:, groups]).flatten(1)
    out.add_(0.0)  # -0, of no scale, is 0
    if tensor.outlier_count is not None:
        row = torch.arange(len(out), device=out.device)
        row = row.repeat_interleave(tensor.outlier_count.long())
        out[row, tensor.outlier_column.long()] = tensor.outlier_value.float()
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
        held = {"widths": tensor.widths, "scale_step": tensor.scale_step[:, second].contiguous()}
        held |= mixed_blocks.pack(tensor) if tensor.aligned else mixed_streams.pack(tensor)
        if tensor.row_scale is not None:
            row_zero = pack_stream(tensor.row_zero, _WIDE)
            held |= {"row_scale": tensor.row_scale, "row_zero": row_zero}
        if tensor.outlier_count is not None:
            small = bool((tensor.outlier_count < 2**8).all())
            held |= {
                "outlier_count": tensor.outlier_count.to(torch.uint8 if small else torch.int16),
                "outlier_column": tensor.outlier_column.to(torch.int16),
                "outlier_value": tensor.outlier_value,
            }
        return cls(
            (rows, columns),
            tensor.group_size,
            tensor.scale_group,
            count_widths(tensor.widths),
            **held,
        )

    def unpack(self) -> MixedTensor:
        """The inverse of pack, bit for bit."""
        rows, columns = self.shape
        held, by_row = self.buffers, self.row_scale is not None
        if self.aligned:
            parts = mixed_blocks.unpack(held, self.widths)
        else:
            g, g2 = self.group_size, self.scale_group
            parts = mixed_streams.unpack(held, self.widths, g, g2, by_row)
        codes, zero_point, scale_code, scale_zero = parts
        tensor = {
            "codes": codes[:, :columns].contiguous(),
            "zero_point": zero_point,
            "scale_code": scale_code,
            "scale_zero": scale_zero,
            "scale_step": spread(self.scale_step, second_order(self.widths, by_row)),
        }
        if by_row:
            row_zero = unpack_stream(self.row_zero, _WIDE, rows)
            tensor |= {"row_scale": self.row_scale, "row_zero": row_zero.to(torch.uint8)}
        if self.outlier_count is not None:
            tensor |= {
                "outlier_count": self.outlier_count.int(),
                "outlier_column": self.outlier_column.int() & MAX_COLUMNS - 1,
                "outlier_value": self.outlier_value,
            }
        return MixedTensor(
            widths=self.widths,
            group_size=self.group_size,
            scale_group=self.scale_group,
            aligned=self.aligned,
            **tensor,
        )

    @property
    def aligned(self) -> bool:
        """Whether codes are in memory-aligned blocks."""
        return self.blocks is not None

    @property
    def bits_average(self) -> float | None:
        """Bits a weight by Eq. 10 (mixed_average.py); None where some groups have 3 bits."""
        narrow, three, wide = self.of_width
        if three:
            return None
        outliers = 0 if self.outlier_value is None else len(self.outlier_value)
        share = outliers / (self.shape[0] * self.shape[1])
        return average(narrow / (narrow + wide), self.group_size, self.scale_group, share)

    def dequantize(self) -> torch.Tensor:
        """The weight [N, K] in float32, exact."""
        return decoded(self.unpack())

    @property
    def buffers(self) -> dict[str, torch.Tensor | None]:
        """Stored tensors of this weight, by the names that the modules draw."""
        return {name: getattr(self, name) for name in _NAMES}

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
        """An empty weight; see Format."""
        of_width = _checked(layout)
        rows, g, by_row = layout["out_features"], layout["g"], layout["wide_scale"] == "row"
        bands = -(-rows // layout["g2"])
        second = sum(of_width) - (of_width[2] if by_row else 0)

        def empty(dtype: torch.dtype, *shape: int) -> torch.Tensor:
            return torch.empty(shape, dtype=dtype, device=device)

        if layout["aligned"]:
            blocks = of_width[2]
            second = blocks * mixed_blocks.NARROW
            held = {
                "blocks": empty(torch.int32, rows, blocks, 4),
                "apart": empty(torch.int32, rows, blocks),
                "meta": empty(torch.int16, rows, blocks),
                "scale_zero": empty(torch.int16, bands, blocks),
            }
        else:
            codes, zeros = mixed_streams.lengths(rows, g, of_width, by_row)
            bits = SCALE_BITS
            held = {
                "codes": empty(torch.int32, rows, sum(codes)),
                "zero": empty(torch.int32, sum(zeros)),
                "scale_code": empty(torch.int32, mixed_streams.words(rows * second, bits)),
                "scale_zero": empty(torch.int32, mixed_streams.words(bands * second, bits)),
            }
        if by_row:
            held["row_scale"] = empty(torch.float16, rows)
            held["row_zero"] = empty(torch.int32, mixed_streams.words(rows, _WIDE))
        if layout["count_dtype"] is not None:
            held["outlier_count"] = empty(getattr(torch, layout["count_dtype"]), rows)
            held["outlier_column"] = empty(torch.int16, layout["outliers"])
            held["outlier_value"] = empty(torch.float16, layout["outliers"])
        return cls(
            (rows, layout["in_features"]),
            g,
            layout["g2"],
            of_width,
            widths=empty(torch.uint8, sum(of_width)),
            scale_step=empty(torch.float16, bands, second),
            **held,
        )


def _checked(layout: Mapping[str, Any]) -> tuple[int, int, int]:
    """Groups of each width of a layout that may be damaged."""
    least = {"g": 1, "g2": 1, "groups_3": 0, "groups_4": 0, "outliers": 0}
    choices = {"aligned": (False, True), "wide_scale": ("row", "group")}
    counts = {"count_dtype": (None, "uint8", "int16")}
    check_layout(layout, dict.fromkeys(least, ()) | choices | counts)
    for name, smallest in least.items():
        if type(layout[name]) is not int or layout[name] < smallest:
            raise LutlabError(
                f"the layout of a quantized layer says {name}={layout[name]!r}: expected an integer of at least "
                f"{smallest}"
            )
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
