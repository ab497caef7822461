"""Blocks of one of ggml's types as a GGUF file has them, read back by the package gguf: llama.cpp's weights bit by bit.

    blocks [N, bytes of a row] uint8        type: ggml's, as Q4_K; one for the weight

No kernel multiplies by them here: they are dequantized. llama.cpp does (evaluators/llama_cpp.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from lutlab.base import ggml
from lutlab.base.errors import LutlabError
from lutlab.base.lazy import torch
from lutlab.base.registry import register
from lutlab.base.tensors import BlocksTensor
from lutlab.formats.contract import Choice, Format, check_layout


@register("format", "ggml")
@dataclass(frozen=True)
class PackedBlocks(Format):
    """blocks [N, bytes of a row] uint8; type, one of ggml.TYPES; shape (N, K)."""

    version: ClassVar[int] = 1
    tensor: ClassVar[type] = BlocksTensor

    blocks: torch.Tensor
    type: str
    shape: tuple[int, int]

    @classmethod
    def pack(cls, tensor: BlocksTensor) -> PackedBlocks:
        """The blocks as they are.

        Raises:
            LutlabError: their number is not that of so many inputs.
        """
        rows, columns = len(tensor.blocks), tensor.in_features
        size = _row_bytes(tensor.type, columns)
        if tensor.blocks.shape[1] != size:
            raise LutlabError(
                f"a row of {columns} weights is {size} bytes in {tensor.type}, not {tensor.blocks.shape[1]}"
            )
        return cls(tensor.blocks, tensor.type, (rows, columns))

    def unpack(self) -> BlocksTensor:
        """The inverse of pack."""
        return BlocksTensor(self.blocks, self.type, self.shape[1])

    def dequantize(self) -> torch.Tensor:
        """[N, K] float32, as gguf reads the blocks."""
        import gguf

        kind = gguf.GGMLQuantizationType[self.type]
        weight = gguf.quants.dequantize(self.blocks.cpu().numpy(), kind)
        return torch.from_numpy(weight).to(self.blocks.device)

    @property
    def kind(self) -> str:
        """The type of its blocks."""
        return self.type

    def layout(self) -> dict[str, Choice]:
        """Sizes and type."""
        return {"out_features": self.shape[0], "in_features": self.shape[1], "type": self.type}

    @classmethod
    def from_layout(
        cls, layout: Mapping[str, Any], device: torch.device | str = "cpu"
    ) -> PackedBlocks:
        """A weight without numbers, of rows as long as the type makes them."""
        check_layout(layout, {"type": tuple(ggml.TYPES)})
        rows, columns = layout["out_features"], layout["in_features"]
        size = _row_bytes(layout["type"], columns)
        blocks = torch.empty(rows, size, dtype=torch.uint8, device=device)
        return cls(blocks, layout["type"], (rows, columns))


def _row_bytes(kind: str, columns: int) -> int:
    """Bytes of a row; LutlabError where the type's blocks do not divide it."""
    weights, size = ggml.block_of(kind)
    if columns % weights:
        raise LutlabError(
            f"{kind} has blocks of {weights} weights, and in_features={columns} is no multiple of it"
        )
    return columns // weights * size
