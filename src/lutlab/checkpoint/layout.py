"""Contract of another project's layout: the tensors of a layer, as files hold them, to codes, scales and zero points.

A layout is made of a checkpoint's quantization config once, and reads layer by layer; nothing dense is ever made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import ClassVar

from lutlab.errors import LutlabError
from lutlab.groups import Width, group_count
from lutlab.lazy import torch
from lutlab.tensors import UniformTensor

Shapes = Mapping[str, tuple[int, ...]]  # suffix of a tensor -> its shape, of one layer


class Layout(ABC):
    """Layout of one checkpoint: how it stores its quantized layers.

    Attributes:
        mark: the tensor (`<layer>.<mark>`) by which a layer is known to be quantized.
        needed: the tensors that each such layer has.
        others: those that it may have.
    """

    mark: ClassVar[str]
    needed: ClassVar[tuple[str, ...]]
    others: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def width(self, shapes: Shapes, rows: int, columns: int) -> Width:
        """(q, g) of a layer [N, K] by the shapes of its tensors.

        Raises:
            LutlabError: they are of no width that the layout has, or of several.
        """

    @abstractmethod
    def read(self, tensors: Mapping[str, torch.Tensor], rows: int, columns: int) -> UniformTensor:
        """The weight [N, K] of a layer; rounded to the scales' dtype it is what the layout's own reader gives.

        Raises:
            LutlabError: the tensors are of no width that the layout has, or of several; they are ambiguous or damaged.
        """


def group_size(columns: int, groups: int, stated: Collection[int]) -> int:
    """Group size of K columns in G groups: -1 for one group, else of the sizes that the config states, else K / G.

    Raises:
        LutlabError: no size gives so many groups.
    """
    if groups == 1:
        return -1
    for g in stated:
        if g > 0 and -(-columns // g) == groups:
            return g
    if groups < 1 or columns % groups:
        raise LutlabError(
            f"{groups} groups of K = {columns} columns are of none of the sizes that the config states "
            f"({', '.join(map(str, stated)) or 'none'}): the two belong to different models"
        )
    return columns // groups


def check_shape(tensors: Mapping[str, torch.Tensor], name: str, *shape: int) -> torch.Tensor:
    """The tensor `name` of a layer.

    Raises:
        LutlabError: it is of another shape.
    """
    found = tensors[name]
    if tuple(found.shape) != shape:
        raise LutlabError(
            f"{name} is {list(found.shape)} instead of {list(shape)}: the checkpoint is damaged, or belongs to another "
            "config"
        )
    return found


def int32(tensors: Mapping[str, torch.Tensor], name: str) -> torch.Tensor:
    """The words `name` of a layer.

    Raises:
        LutlabError: they are not of 32 bits.
    """
    if tensors[name].dtype != torch.int32:
        raise LutlabError(
            f"{name} is {tensors[name].dtype}, and lutlab reads words of 32 bits: write the checkpoint with "
            "pack_dtype=int32, its default"
        )
    return tensors[name]


def exact_scale(scale: torch.Tensor) -> torch.Tensor:
    """Scales in float16 or float32; bfloat16, which no format of ours holds, widens to float32 exactly.

    Raises:
        LutlabError: another dtype.
    """
    if scale.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise LutlabError(
            f"scales are {scale.dtype}, and lutlab reads float16, bfloat16 and float32: write the checkpoint in one "
            "of these"
        )
    return scale.float() if scale.dtype == torch.bfloat16 else scale


def check_groups(g: int, columns: int, groups: int) -> None:
    """Raise LutlabError where groups of g are not as many as the scales."""
    if group_count(g, columns) != groups:
        raise LutlabError(
            f"group_size {g} of K = {columns} columns does not make the {groups} groups that its scales have: the two "
            "belong to different models"
        )
