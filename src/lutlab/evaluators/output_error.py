"""Relative mean squared error of the linear layers' outputs on the calibration text.

sum tr(D H D^T) / sum tr(W H W^T),  D = W_hat - W,  H = X^T X / M     what GPTQ minimises, layer by layer
"""

from __future__ import annotations

from typing import ClassVar

from lutlab.base.errors import LutlabError
from lutlab.base.registry import register
from lutlab.base.specs import Measurement, ModelRun, Subject
from lutlab.evaluators.contract import Evaluator, Metric
from lutlab.evaluators.weight_error import relative_error


@register("evaluator", "output_error")
class OutputError(Evaluator):
    """Metric `output_relative_mse`; one sample a layer, in forward order."""

    version: ClassVar[int] = 1
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("output_relative_mse", "relative MSE", "output error"),
    )

    @classmethod
    def obstacle(cls, run: ModelRun) -> str:
        """Empty where the row's layers saw calibration inputs."""
        if run.calibration:
            return ""
        return "the row has no calibration inputs, whose outputs would err: its method looks at weights only"

    def measure(self, subject: Subject) -> Measurement:
        """Needs no text."""
        layers = subject.layers
        errors = [layer.output_error for layer in layers if layer.output_error is not None]
        norms = [layer.output_norm for layer in layers if layer.output_norm is not None]
        if len(errors) < len(layers):
            raise LutlabError(
                "output_error needs calibration, and this method looks at weights only: use method=gptq, gptq_bcq or "
                "awq, or evaluate weight_error"
            )
        return relative_error("output_relative_mse", subject, errors, norms)
