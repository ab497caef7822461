"""Contract of a format: a packed weight [N, K] that owns its buffers.

A format is a frozen dataclass under `@register("format", <name>)`; an instance is one packed weight. Its file is all
that a new format needs: quantizing, sizes, saving, loading and products (by a kernel it names, or dequantized) find it.
"""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from lutlab.base.errors import LutlabError, nearest
from lutlab.base.lazy import torch

if TYPE_CHECKING:
    from typing import Self  # of Python 3.11, for type checkers only


Choice = bool | int | str | None
Choices = dict[str, tuple[Choice, ...] | int]


class Format(ABC):
    """A packed weight.

    Attributes:
        version: raised by whoever changes what is stored; part of the ids of the cells of methods that use the format.
        tensor: the quantized tensor that it packs.
        kernels: device type -> names of the kernel operations that multiply by it, in the order in which they are
            tried; where none takes it, it is dequantized.
        scales: buffers that the weight is linear in under codes that stay; none where they are no numbers of their own.
    """

    version: ClassVar[int]
    tensor: ClassVar[type]
    kernels: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    scales: ClassVar[tuple[str, ...]] = ()
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    if TYPE_CHECKING:  # a property that runs would be the default of a field of this name

        @property
        def shape(self) -> tuple[int, int]:
            """(N, K)."""

    @classmethod
    @abstractmethod
    def pack(cls, tensor: Any) -> Self:
        """The packed form of a quantized tensor.

        Raises:
            LutlabError: the format cannot represent it.
        """

    @abstractmethod
    def unpack(self) -> Any:
        """The inverse of pack, bit for bit."""

    @abstractmethod
    def dequantize(self) -> torch.Tensor:
        """The weight [N, K] in float32."""

    @property
    def buffers(self) -> dict[str, torch.Tensor | None]:
        """Stored tensors, the fields that are annotated so, by name; None for an optional one that this weight lacks.

        `weight` and `bias` are names that a layer keeps for itself.
        """
        return {name: getattr(self, name) for name in _tensor_fields(type(self))}

    @property
    def stored_buffers(self) -> dict[str, torch.Tensor]:
        """The buffers that this weight has, by name."""
        return {name: tensor for name, tensor in self.buffers.items() if tensor is not None}

    @abstractmethod
    def layout(self) -> dict[str, Choice]:
        """Shapes, dtypes and options in JSON's types: all but the numbers. from_layout makes an empty one again."""

    @classmethod
    @abstractmethod
    def from_layout(cls, layout: Mapping[str, Any], device: torch.device | str = "cpu") -> Self:
        """A weight of a layout whose buffers are allocated and not set, for load_state_dict to fill.

        Args:
            layout: a layout, the result of `layout`, perhaps out of a damaged file: check_layout explains what is wrong
                with one.
            device: device of the buffers; `meta` allocates nothing.

        Raises:
            LutlabError: a key is missing, unknown, or of a value that no weight has.
        """

    @property
    def kind(self) -> str:
        """Name of what a record says beside the format's, as ggml's type; empty where q and g say all."""
        return ""

    @property
    def bcq_bits(self) -> int | None:
        """Bits of this weight in a model in binary form (LUT-GEMM Eq. 5), None where it has none."""
        return None

    @property
    def bits_average(self) -> float | None:
        """Average bits a weight as Eq. 10 of the 2/4/16-bit paper counts them; None of a format that it does not."""
        return None

    @property
    def bits_stored(self) -> int:
        """Bits of every buffer, padding included."""
        return sum(8 * tensor.nbytes for tensor in self.stored_buffers.values())

    @property
    def bits_per_weight(self) -> float:
        """bits_stored / (N * K)."""
        return self.bits_stored / (self.shape[0] * self.shape[1])

    def with_buffers(self, buffers: Mapping[str, torch.Tensor | None]) -> Self:
        """The same weight with some buffers in the place of its own."""
        return dataclasses.replace(self, **buffers)

    def to(self, device: torch.device | str) -> Self:
        """The same weight with its buffers on a device."""
        return self.with_buffers({n: b.to(device) for n, b in self.stored_buffers.items()})


@functools.cache
def _tensor_fields(cls: type[Format]) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls) if "torch.Tensor" in str(f.type))


def check_layout(layout: Mapping[str, Any], choices: Choices) -> None:
    """Refuse a layout that is not out_features, in_features and the keys of `choices`, each of an allowed value.

    Args:
        layout: the layout to be checked.
        choices: key -> the values it may have, or the least integer; no values: checked by who reads it.

    Raises:
        LutlabError: which key is wrong, and what was expected.
    """
    choices = {"out_features": 1, "in_features": 1, **choices}
    for key in [*choices, *layout]:
        if key not in layout or key not in choices:
            raise LutlabError(
                f"the layout of a quantized layer {'lacks' if key in choices else 'has unknown'} '{key}': "
                f"{nearest(key, choices)}; the file is damaged, or another version of lutlab wrote it"
            )
    for key, allowed in choices.items():
        value = layout[key]
        if isinstance(allowed, int):
            fits, expected = (
                type(value) is int and value >= allowed,
                f"an integer of at least {allowed}",
            )
        else:
            typed = [(type(choice), choice) for choice in allowed]
            fits, expected = not typed or (type(value), value) in typed, f"one of {allowed}"
        if not fits:
            raise LutlabError(
                f"the layout of a quantized layer says {key}={value!r}: expected {expected}"
            )


def dtype_name(typed: torch.Tensor | torch.dtype | None) -> str | None:
    """A dtype, or a tensor's, as layouts and records have it: `float16`; None of None."""
    return None if typed is None else str(getattr(typed, "dtype", typed)).removeprefix("torch.")
