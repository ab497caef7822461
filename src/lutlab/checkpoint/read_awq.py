"""AWQ checkpoints of version gemm: AutoAWQ, GPTQModel (also 2, 3 and 8 bits), AutoRound's auto_awq.

    W[n, k] = scales[k // g, n] * (codes[n, k] - zero_point[k // g, n])              product in float16

    qweight [K, ceil(N q / 32)] int32   row k: the codes of input channel k as a stream of bits (formats/code_words.py)
    qzeros  [G, ceil(N q / 32)] int32   row j: the zero points of group j, in the same way
    scales  [G, N] float16

At 4 bits the eight fields of a word are interleaved: field p holds column 8 w + [0, 2, 4, 6, 1, 3, 5, 7][p].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lutlab.checkpoint.layout import (
    Layout,
    Shapes,
    check_groups,
    check_shape,
    exact_scale,
    group_size,
    int32,
)
from lutlab.errors import LutlabError
from lutlab.formats.code_words import WORD, unpack_words
from lutlab.groups import Width
from lutlab.lazy import torch
from lutlab.tensors import UniformTensor

BITS = (2, 3, 4, 8)
FIELD_OF_COLUMN = (0, 4, 1, 5, 2, 6, 3, 7)  # column 8 w + i is in field FIELD_OF_COLUMN[i]


@dataclass(frozen=True)
class AWQLayout(Layout):
    """One checkpoint; sizes: the group sizes that its config names."""

    mark: ClassVar[str] = "qweight"
    needed: ClassVar[tuple[str, ...]] = ("qweight", "qzeros", "scales")

    sizes: tuple[int, ...] = ()

    def width(self, shapes: Shapes, rows: int, columns: int) -> Width:
        """(q, g); see Layout."""
        found = shapes["qweight"]
        fitting = [q for q in BITS if found == (columns, -(-rows * q // WORD))]
        if len(fitting) != 1:
            raise LutlabError(
                f"qweight of {list(found)} for [N, K] = {[rows, columns]} is not of AWQ's gemm layout at "
                f"{', '.join(map(str, BITS))} bits, [K, N q / 32]: write the checkpoint with version gemm"
            )
        return fitting[0], group_size(columns, shapes["scales"][0], self.sizes)

    def read(self, tensors: Mapping[str, torch.Tensor], rows: int, columns: int) -> UniformTensor:
        """The weight; see Layout."""
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        q, g = self.width(shapes, rows, columns)
        groups = shapes["scales"][0]
        check_groups(g, columns, groups)
        scale = check_shape(tensors, "scales", groups, rows)
        check_shape(tensors, "qzeros", groups, shapes["qweight"][1])
        return UniformTensor(
            codes=_unpack(int32(tensors, "qweight"), q, rows).T.contiguous(),
            scale=exact_scale(scale).T.contiguous(),
            zero_point=_unpack(int32(tensors, "qzeros"), q, rows).T.short().contiguous(),
            bits=q,
            group_size=g,
        )


def _unpack(words: torch.Tensor, q: int, columns: int) -> torch.Tensor:
    """[rows, ceil(columns q / 32)] int32 -> [rows, columns] uint8, the interleaving of 4 bits undone."""
    if q != 4:
        return unpack_words(words, q, columns)
    eights = unpack_words(words, q, 8 * words.shape[1]).view(len(words), -1, 8)
    return eights[:, :, FIELD_OF_COLUMN].flatten(1)[:, :columns]


def awq_layout(config: Mapping[str, Any]) -> AWQLayout:
    """The layout of quant_method awq; a config without a version is of gemm, the default of every reader.

    Raises:
        LutlabError: a version that lutlab does not read.
    """
    version = str(config.get("version") or config.get("format") or "gemm").lower()
    if config.get("backend") == "llm-awq":
        version = "llm-awq"
    if version != "gemm":
        raise LutlabError(
            f"an AWQ checkpoint of version {version!r} has another layout, and lutlab reads gemm only: quantize with "
            "version gemm (AutoAWQ: quant_config={'version': 'GEMM'})"
        )
    sizes = (config.get("group_size"), config.get("q_group_size"))
    return AWQLayout(tuple(size for size in sizes if isinstance(size, int)))
