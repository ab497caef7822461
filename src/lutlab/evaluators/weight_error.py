"""Relative mean squared error of the quantized weights: sum ||W - W_hat||^2 / sum ||W||^2 over the linear layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from lutlab.base.registry import register
from lutlab.base.specs import Measurement, ModelRun, Subject
from lutlab.evaluators.contract import Evaluator, Metric
from lutlab.quantizers.stored import STORED


@register("evaluator", "weight_error")
class WeightError(Evaluator):
    """Metric `weight_relative_mse`; one sample a layer, in forward order."""

    version: ClassVar[int] = 1
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("weight_relative_mse", "relative MSE", "weight error"),
    )

    @classmethod
    def obstacle(cls, run: ModelRun) -> str:
        """Empty where the weights in full precision are known."""
        if run.method == STORED:
            return "a quantized checkpoint does not hold the weights in full precision that it would be compared with"
        if run.model.packed:
            return "weights drawn as they are stored were never in full precision"
        return ""

    def measure(self, subject: Subject) -> Measurement:
        """Needs no text."""
        errors = [layer.squared_error for layer in subject.layers]
        norms = [layer.squared_norm for layer in subject.layers]
        return relative_error("weight_relative_mse", subject, errors, norms)


def relative_error(
    metric: str, subject: Subject, errors: Sequence[float], norms: Sequence[float]
) -> Measurement:
    """The ratio of the sums of errors and norms over the layers, and each layer's own."""
    return Measurement(
        values={metric: _ratio(sum(errors), sum(norms))},
        n=len(errors),
        samples=tuple(_ratio(error, norm) for error, norm in zip(errors, norms, strict=True)),
        facts={"layers": [layer.name for layer in subject.layers]},
    )


def _ratio(error: float, norm: float) -> float:
    """Relative error; 0 for weights that are all zero and kept so."""
    return error / norm if norm else (float("inf") if error else 0.0)
