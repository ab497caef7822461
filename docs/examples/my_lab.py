"""A method and an evaluator in one file outside of lutlab: `lutlab plugins=my_lab method=shrunk`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lutlab.evaluators.contract import Evaluator, Metric, Work
from lutlab.limits import Count
from lutlab.quantizers.contract import Method
from lutlab.quantizers.rtn import RTN
from lutlab.registry import register
from lutlab.specs import Measurement, RunSpec, Subject

if TYPE_CHECKING:
    import torch

    from lutlab.tensors import UniformTensor


# --8<-- [start:method]
@register("method", "shrunk")
@dataclass(frozen=True)
class Shrunk(Method):
    """RTN of weights made smaller: its relative squared error is (1 - factor)^2 and a little more."""

    version: ClassVar[int] = 1
    format: ClassVar[str] = "uniform"

    factor: float = 0.5  # method.factor=

    def quantize(self, weight: torch.Tensor, q: int, g: int) -> UniformTensor:
        """[N, K] float -> codes [N, K], scale and zero point [N, G]."""
        return RTN().quantize(self.factor * weight, q, g)


# --8<-- [end:method]


# --8<-- [start:evaluator]
@register("evaluator", "layer_count")
@dataclass(frozen=True)
class LayerCount(Evaluator):
    """Quantized layers, in units of `per`."""

    version: ClassVar[int] = 1
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("layers", "layers", "count", lower_is_better=False),
    )

    per: Count = 1  # evaluator.layer_count.per=, from 1 (limits.py)

    def work(self, run: RunSpec) -> Work:
        """Nothing is run: mode=plan adds no time for it."""
        return Work()

    def measure(self, subject: Subject) -> Measurement:
        """One number, from one model."""
        return Measurement(values={"layers": len(subject.layers) / self.per}, n=1)


# --8<-- [end:evaluator]
