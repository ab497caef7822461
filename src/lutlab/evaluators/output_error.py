"""Relative mean squared error of the linear layers' outputs on the calibration text.

sum tr(D H D^T) / sum tr(W H W^T),  D = W_hat - W,  H = X^T X / M     what GPTQ minimises, layer by layer
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lutlab.errors import LutlabError
from lutlab.evaluators.contract import Evaluator, Metric, Work
from lutlab.registry import register
from lutlab.specs import Measurement, RunSpec, Subject


@register("evaluator", "output_error")
@dataclass(frozen=True)
class OutputError(Evaluator):
    """Metric `output_relative_mse`; one sample a layer, in forward order. Lower is better."""

    version: ClassVar[int] = 1
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("output_relative_mse", "relative MSE", "output error"),
    )

    @classmethod
    def obstacle(cls, run: RunSpec) -> str:
        """Empty where the row's layers saw calibration inputs."""
        if run.calibration:
            return ""
        return "the row has no calibration inputs, whose outputs would err: its method looks at weights only"

    def work(self, run: RunSpec) -> Work:
        """No forward pass: errors are taken when the layers are quantized."""
        return Work()

    def measure(self, subject: Subject) -> Measurement:
        """Needs no text: the errors were taken when the layers were quantized.

        Raises:
            LutlabError: the model was quantized without calibration.
        """
        layers = subject.layers
        if any(layer.output_error is None for layer in layers):
            raise LutlabError(
                "output_error needs calibration, and this method looks at weights only: use method=gptq, gptq_bcq or "
                "awq, or evaluate weight_error"
            )
        total = sum(layer.output_error for layer in layers)
        return Measurement(
            values={"output_relative_mse": total / sum(layer.output_norm for layer in layers)},
            n=len(layers),
            samples=tuple(
                layer.output_error / layer.output_norm if layer.output_norm else 0.0
                for layer in layers
            ),
            facts={"layers": [layer.name for layer in layers]},
        )
