"""Contract of another project's layout: the tensors of a layer, as files hold them, to a quantized tensor of ours.

A layout is made of a checkpoint's quantization config once, and reads layer by layer; nothing dense is ever made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import ClassVar

from lutlab.base.errors import LutlabError
from lutlab.base.groups import check_group_size
from lutlab.base.lazy import torch
from lutlab.base.tensors import BCQTensor, UniformTensor
from lutlab.models.files import Shards

# Of one layer: suffix of a tensor -> its shape; the tensors; [N, K]; (q, g); codes [N, K] uint8, scales and zero points
# [N, G], or alpha [q, N, G] and offsets [N, G], and order ([K] int32 or None).
Shapes = Mapping[str, tuple[int, ...]]
Tensors = Mapping[str, "torch.Tensor"]
Size = tuple[int, int]
Width = tuple[int, int]
Numbers = tuple["torch.Tensor", "torch.Tensor", "torch.Tensor", "torch.Tensor | None"]


class Layout(ABC):
    """Layout of one checkpoint: how it stores its quantized layers.

    Args:
        bits: widths that the checkpoint's config states.
        sizes: group sizes that it states.

    Attributes:
        mark: the tensor (`<layer>.<mark>`) by which a layer is known to be quantized.
        needed: the tensors that each such layer has.
        others: those that it may have.
        unread: those that it may have and that nothing reads.
        tensor: class of the weights that are read, UniformTensor or BCQTensor, which decides their format.
    """

    mark: ClassVar[str]
    needed: tuple[str, ...]
    others: ClassVar[tuple[str, ...]] = ()
    unread: ClassVar[tuple[str, ...]] = ()
    tensor: ClassVar[type] = UniformTensor

    def __init__(self, bits: Iterable[int] = (), sizes: Iterable[int] = ()) -> None:
        self.bits, self.sizes = tuple(dict.fromkeys(bits)), tuple(dict.fromkeys(sizes))

    def suffixes(self, layer: str, shards: Shards) -> list[str]:
        """Suffixes of a layer's tensors that a checkpoint holds."""
        return [suffix for suffix in (*self.needed, *self.others) if f"{layer}.{suffix}" in shards]

    def width(self, shapes: Shapes, rows: int, columns: int) -> Width:
        """(q, g) of a layer [N, K] by the shapes of its tensors.

        Raises:
            LutlabError: they are of no width that the layout has, or of several.
        """
        q = self.bits_of(shapes, (rows, columns))
        return q, group_size(columns, self.groups(shapes), self.sizes)

    def read(self, tensors: Tensors, rows: int, columns: int) -> UniformTensor | BCQTensor:
        """The weight [N, K] of a layer; uniform and rounded to the scales' dtype it is what the layout's reader gives.

        Raises:
            LutlabError: the tensors are of no width that the layout has, or of several; they are ambiguous or damaged.
        """
        q, g = self.width(self.shapes_of(tensors), rows, columns)
        codes, scale, zero, order = self.unpack(tensors, (rows, columns), (q, g))
        if scale.dtype == torch.bfloat16:  # which no format of ours holds
            scale = scale.float()
        if self.tensor is UniformTensor:
            zero = zero.short()
        return self.tensor(codes.contiguous(), scale.contiguous(), zero.contiguous(), q, g, order)

    @abstractmethod
    def bits_of(self, shapes: Shapes, size: Size) -> int:
        """Bits of a layer's codes, with the errors of width."""

    @abstractmethod
    def unpack(self, tensors: Tensors, size: Size, width: Width) -> Numbers:
        """Numbers of a layer, with the errors of read."""

    def groups(self, shapes: Shapes) -> int:
        """Number of groups of a row, G, by the scales."""
        return shapes["scales"][0]

    @staticmethod
    def shapes_of(tensors: Tensors) -> Shapes:
        """Suffix of each tensor of a layer -> its shape."""
        return {name: tuple(tensor.shape) for name, tensor in tensors.items()}

    @staticmethod
    def shaped(tensors: Tensors, name: str, *shape: int) -> torch.Tensor:
        """The tensor `name` of a layer. Raises LutlabError: it is of another shape."""
        tensor = tensors[name]
        if tuple(tensor.shape) != shape:
            raise LutlabError(
                f"{name} is {list(tensor.shape)} instead of {list(shape)}: the checkpoint is damaged, or belongs to "
                "another config"
            )
        return tensor

    @staticmethod
    def words(tensors: Tensors, name: str) -> torch.Tensor:
        """The words `name` of a layer. Raises LutlabError: they are not of 32 bits."""
        if tensors[name].dtype != torch.int32:
            raise LutlabError(
                f"{name} is {tensors[name].dtype}, and lutlab reads words of 32 bits: write the checkpoint with "
                "pack_dtype=int32, its default"
            )
        return tensors[name]

    @staticmethod
    def floats(tensors: Tensors, name: str) -> torch.Tensor:
        """The scales `name` of a layer. Raises LutlabError: they are of a dtype that lutlab does not read."""
        if tensors[name].dtype not in (torch.float16, torch.bfloat16, torch.float32):
            raise LutlabError(
                f"{name} is {tensors[name].dtype}, and lutlab reads float16, bfloat16 and float32: write the "
                "checkpoint in one of these"
            )
        return tensors[name]

    @staticmethod
    def check_symmetric(zero: torch.Tensor, q: int, stated: str) -> None:
        """Refuse zero points other than 2^(q-1), where `stated` says in config.json's words that there are none."""
        if not bool((zero == 2 ** (q - 1)).all()):
            raise LutlabError(
                f"config.json says that weights are symmetric ({stated}), and the file's zero points are from "
                f"{int(zero.min())} to {int(zero.max())} instead of {2 ** (q - 1)}: the two belong to different "
                "models; correct config.json if the file is right"
            )


def group_size(columns: int, groups: int, stated: Collection[int]) -> int:
    """Group size of K columns in G groups: -1 for one group, else of the sizes that the config states, else K / G.

    Raises:
        LutlabError: no size gives so many groups, or one of less than 8.
    """
    if groups == 1:
        return -1
    for g in stated:
        if g > 0 and -(-columns // g) == groups:
            return check_group_size(g)
    if groups < 1 or columns % groups:
        raise LutlabError(
            f"{groups} groups of K = {columns} columns are of none of the sizes that the config states "
            f"({', '.join(map(str, stated)) or 'none'}): the two belong to different models"
        )
    return check_group_size(columns // groups)
