"""Relative mean squared error of the quantized weights: sum ||W - W_hat||^2 / sum ||W||^2 over the linear layers."""

from __future__ import annotations

from dataclasses import dataclass

from lutlab.records import Measurement, Subject
from lutlab.registry import register


@register("evaluator", "weight_error")
@dataclass(frozen=True)
class WeightError:
    """Metric `weight_relative_mse`; one sample a layer, in forward order."""

    def measure(self, subject: Subject) -> Measurement:
        """Needs no text: the errors were taken when the layers were quantized."""
        errors = [layer.squared_error for layer in subject.layers]
        norms = [layer.squared_norm for layer in subject.layers]
        return Measurement(
            values={"weight_relative_mse": sum(errors) / sum(norms)},
            n=len(errors),
            samples=tuple(e / max(n, 1e-300) for e, n in zip(errors, norms, strict=True)),
            facts={"layers": [layer.name for layer in subject.layers]},
        )
