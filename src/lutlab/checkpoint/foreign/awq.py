"""AWQ checkpoints of version gemm: AutoAWQ, GPTQModel (also 2, 3 and 8 bits), AutoRound's auto_awq.

    W[n, k] = scales[k // g, n] * (codes[n, k] - zero_point[k // g, n])              product in float16

    qweight [K, ceil(N q / 32)] int32   row k: the codes of input channel k as a stream of bits (formats/code_words.py)
    qzeros  [G, ceil(N q / 32)] int32   row j: the zero points of group j, in the same way
    scales  [G, N] float16

At 4 bits the eight fields of a word are interleaved: field p holds column 8 w + [0, 2, 4, 6, 1, 3, 5, 7][p].
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import torch
from lutlab.checkpoint.foreign.layout import Layout, Numbers, Shapes, Size, Tensors, Width
from lutlab.formats.code_words import WORD, unpack_words

BITS = (2, 3, 4, 8)
FIELD_OF_COLUMN = (0, 4, 1, 5, 2, 6, 3, 7)  # column 8 w + i is in field FIELD_OF_COLUMN[i]


class AWQLayout(Layout):
    """Layout of one checkpoint; its config states no widths, which shapes tell.

    Args beside a Layout's:
        symmetric: whether config.json says that zero points are 2^(q-1).
    """

    mark = "qweight"
    needed = ("qweight", "qzeros", "scales")

    def __init__(self, sizes: Iterable[int] = (), symmetric: bool = False) -> None:
        super().__init__(sizes=sizes)
        self._symmetric = symmetric

    def bits_of(self, shapes: Shapes, size: Size) -> int:
        """By the shape of qweight alone."""
        rows, columns = size
        shape = shapes["qweight"]
        fitting = [q for q in BITS if shape == (columns, -(-rows * q // WORD))]
        if len(fitting) != 1:
            raise LutlabError(
                f"qweight of {list(shape)} for [N, K] = {[rows, columns]} is not of AWQ's gemm layout at "
                f"{', '.join(map(str, BITS))} bits, [K, N q / 32]: write the checkpoint with version gemm"
            )
        return fitting[0]

    def unpack(self, tensors: Tensors, size: Size, width: Width) -> Numbers:
        """Transposed: a row of each tensor is of an input channel, or of a group of them."""
        (rows, _), (q, _), shapes = size, width, self.shapes_of(tensors)
        self.shaped(tensors, "scales", self.groups(shapes), rows)
        self.shaped(tensors, "qzeros", self.groups(shapes), shapes["qweight"][1])
        codes, zero = (
            _unpack(self.words(tensors, name), q, rows) for name in ("qweight", "qzeros")
        )
        if self._symmetric:
            self.check_symmetric(zero, q, "zero_point is false")
        return codes.T, self.floats(tensors, "scales").T, zero.T, None


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
    symmetric = config.get("zero_point") is False
    return AWQLayout([size for size in sizes if isinstance(size, int)], symmetric)
