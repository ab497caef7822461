"""Contract of a method: a weight [N, K] in, a quantized tensor out, no model in sight.

A method is a frozen dataclass under `@register("method", <name>)`; its fields are `method.<field>=`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lutlab.base import registry
from lutlab.base.errors import LutlabError, nearest
from lutlab.base.fields import check
from lutlab.base.groups import Bits, Width, check_bits, check_group_size
from lutlab.base.lazy import torch
from lutlab.base.tensors import CalibStats, QuantizedTensor


class Method(ABC):
    """A method that looks at weights only.

    Attributes:
        version: raised by whoever changes what the method returns; part of the ids of its cells.
        format: the registered format that stores what the method returns.
        quantizes: False where weights are kept, so that q and g do not matter.
        libraries: those whose exact version is in the ids of its cells, beside torch.
    """

    version: ClassVar[int]
    format: ClassVar[str]
    quantizes: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ()
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    def __post_init__(self) -> None:
        """Refuse options of another type or out of their limits; a method adds what it refuses of several together."""
        check(self)

    def check_width(self, q: Bits, g: int) -> Width:
        """(q, g), at which the method quantizes; whole bits, unless a method says otherwise.

        Raises:
            LutlabError: q or g out of range.
        """
        return check_bits(q), check_group_size(g)

    @classmethod
    def obstacle(cls) -> str:
        """Why it cannot quantize here, as an optional library that is not installed; empty where it can."""
        return ""

    def layout(self, rows: int, columns: int) -> Mapping[str, Any] | None:
        """Layout (formats/contract.py) of a weight [rows, columns], where its shape decides it; None: a small weight is
        quantized to learn it, and `resized`.

        Raises:
            LutlabError: the method takes no such weight.
        """
        del rows, columns
        return None

    def resized(
        self, layout: Mapping[str, Any], rows: int, columns: int, q: Bits, g: int
    ) -> dict[str, Any]:
        """Layout (formats/contract.py) of a weight [rows, columns] at (q, g), by that of a small one at the same.

        A method overrides it where more than the two sizes follows from the shape.
        """
        del q, g
        return {**layout, "out_features": rows, "in_features": columns}

    @abstractmethod
    def quantize(self, *args: Any, **kwargs: Any) -> QuantizedTensor:
        """From weight [N, K] float, q and g the quantized form; the weight is left alone.

        A calibrated method takes a fourth argument.

        Raises:
            LutlabError: q or g out of range; a weight is inf or nan; a coefficient is beyond its dtype's range.
        """


class Calibrated(Method):
    """A method that looks at the inputs X [M, K] of a layer as well.

    Attributes:
        inputs: `quantized` (of the model as quantized so far) or `full` (of the full-precision model).
        true_sequential: true: a layer sees the layers before it in its block quantized; needs inputs=quantized.
        target: `weights`, or with inputs=quantized `outputs` or `stream`: the driver then hands `quantize` a weight
            that makes up for the errors of the layers before (compress/target.py).
        damp: ridge of such a weight towards the layer's own, in means of the diagonal of X^T X / M.
        hessian: `inputs`, or with inputs=quantized `gradients`: `prepare` and `quantize` are then called for the rows
            of each of `output_groups` groups of outputs, with tokens weighted by gradients (compress/gradients.py).
        output_groups: into how many groups the outputs of a layer are divided then.
        first_token: weight of a window's first token in the Hessian of keys and values; beyond 1 with inputs=quantized.
    """

    inputs: str
    true_sequential: bool = False
    target: str = "weights"
    damp: float = 0.01
    hessian: str = "inputs"
    output_groups: int = 4
    first_token: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.inputs == "full" and self.true_sequential:
            raise LutlabError(
                "true_sequential follows the layers quantized so far, inputs=full none: use inputs=quantized"
            )

    @abstractmethod
    def prepare(self, stats: CalibStats) -> Any:
        """Factors of one input, made once for all layers that share it and for every q and g.

        Raises:
            LutlabError: the statistics are not finite.
        """

    @abstractmethod
    def quantize(self, weight: torch.Tensor, q: Bits, g: int, prepared: Any) -> QuantizedTensor:
        """Method.quantize with `prepared`, the result of `prepare` for the layer's input."""


class Rescaling(Calibrated):
    """A calibrated method that moves a scale per input channel into the weights before it quantizes them."""

    @abstractmethod
    def scales(
        self, weights: Sequence[torch.Tensor], widths: Sequence[Width | None], stats: CalibStats
    ) -> torch.Tensor:
        """[K] float32 > 0 for layers [N_i, K] that share an input; a width of None has no say."""


def finite(weight: torch.Tensor, reason: str) -> torch.Tensor:
    """Weight [N, K] as float32.

    Raises:
        LutlabError: a weight is inf or nan; `reason` says why none may be.
    """
    weight = weight.detach().float()
    if not torch.isfinite(weight).all():
        raise LutlabError(
            f"{int((~torch.isfinite(weight)).sum())} of {weight.numel()} weights are inf or nan: {reason}; check the "
            "checkpoint"
        )
    return weight


def make_method(name: str, **options: Any) -> Method:
    """The method registered as `name` with the given parameters.

    Raises:
        LutlabError: unknown method or parameter; the message suggests the nearest one. A value of another type than
            the parameter's, or out of its limit.
    """
    cls = registry.lookup("method", name)
    known = {field.name for field in dataclasses.fields(cls)}
    for option in options.keys() - known:
        raise LutlabError(f"method '{name}' has no parameter '{option}': {nearest(option, known)}")
    return cls(**options)
