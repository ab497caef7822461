"""Size of the quantized linear layers: as stored, and as the papers count it (LUT-GEMM Eq. 7 and Tables 5/6)."""

from __future__ import annotations

from dataclasses import dataclass

from lutlab.formats.bcq import bits_paper
from lutlab.records import LayerStats, Measurement, Subject
from lutlab.registry import register


@register("evaluator", "model_size")
@dataclass(frozen=True)
class ModelSize:
    """Metrics `bits_per_weight` (every buffer, padding included), `bits_paper_*` and `megabytes`."""

    def measure(self, subject: Subject) -> Measurement:
        """Needs no text. A model in full precision counts 16 bits in every formula."""
        layers = subject.layers
        weights = sum(layer.out_features * layer.in_features for layer in layers)
        stored = sum(layer.bits_stored for layer in layers)
        values = {"bits_per_weight": stored / weights, "megabytes": stored / 8e6}
        for formula in ("lut-gemm-eq7", "lut-gemm-table6"):
            total = sum(_paper_bits(layer, subject, formula) for layer in layers)
            values[f"bits_paper_{formula.rpartition('-')[2]}"] = total / weights
        return Measurement(values=values, n=len(layers))


def _paper_bits(layer: LayerStats, subject: Subject, formula: str) -> float:
    weights = layer.out_features * layer.in_features
    if subject.q >= 16:
        return 16.0 * weights
    return weights * bits_paper(subject.q, subject.g, layer.in_features, formula)
