"""Calibrated methods as small as they can be: what they return depends on every bit of what they saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from lutlab.base.tensors import CalibStats, UniformTensor
from lutlab.quantizers.contract import Calibrated, Rescaling
from lutlab.quantizers.rtn import RTN


@dataclass
class Fake(Calibrated):
    """RTN of the weight moved along the Hessian. `stop_after` layers it fails as a killed run would."""

    version: ClassVar[int] = 1
    format: ClassVar[str] = "uniform"
    inputs: str = "quantized"
    true_sequential: bool = True
    watch: Callable[[], None] = lambda: None
    stop_after: int | None = None
    seen: list[CalibStats] = field(default_factory=list)  # one a shared input
    quantized: int = 0
    target: str = "weights"
    damp: float = 0.01
    hessian: str = "inputs"
    output_groups: int = 4
    first_token: float = 1.0

    def __post_init__(self) -> None:
        """Its fields are of a test, which checks them."""

    def prepare(self, stats: CalibStats) -> torch.Tensor:
        self.seen.append(stats)
        return stats.metric / stats.metric.diagonal().mean()

    def quantize(
        self, weight: torch.Tensor, q: int, g: int, prepared: torch.Tensor
    ) -> UniformTensor:
        self.watch()
        if self.quantized == self.stop_after:
            raise KeyboardInterrupt
        self.quantized += 1
        return RTN().quantize(weight + 0.3 * weight @ prepared, q, g)


@dataclass
class FakeScaling(Fake, Rescaling):
    """As AWQ, it scales input channels before it quantizes: norms change as well as linear layers."""

    inputs: str = "full"

    def scales(self, weights, widths, stats: CalibStats) -> torch.Tensor:
        return (stats.mean_abs / stats.mean_abs.mean()).clamp(0.5, 2).sqrt()
