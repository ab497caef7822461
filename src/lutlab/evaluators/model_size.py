"""Size of the quantized linear layers: as stored, in binary form, and as each paper counts it (PAPER_SIZES of
formats/bcq.py).

Compression ratio = bits of a weight in full precision / bits of a weight: 16 for LUT-GEMM, 32 for nuQmm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, cast

from lutlab.base.registry import register
from lutlab.base.specs import LayerStats, Measurement, Subject
from lutlab.evaluators.contract import Evaluator, Metric
from lutlab.formats.bcq import bits_paper

# metric's suffix -> (formula, bits of a weight in full precision)
_FORMULAS = {
    "eq7": ("lut-gemm-eq7", 16),
    "table6": ("lut-gemm-table6", 16),
    "nuqmm": ("nuqmm", 32),
}
_OF_ANOTHER_SIZE = ("mixed", "ggml")  # formats whose size is none that a paper counts by q and g


def _by_formula(suffix: str) -> tuple[Metric, ...]:
    formula = _FORMULAS[suffix][0]
    return (
        Metric(f"bits_paper_{suffix}", "bits/weight", f"size by {formula}"),
        Metric(f"megabytes_{suffix}", "MB", f"size by {formula}"),
        Metric(f"ratio_{suffix}", "x", f"compression by {formula}", lower_is_better=False),
    )


@register("evaluator", "model_size")
class ModelSize(Evaluator):
    """Metrics of every buffer stored, padding included, and by each paper's formula.

    bits_per_weight, megabytes (10^6 bytes), ratio: as stored, in the layouts that the fact `layout` names (uniform,
    bcq, dense, ggml Q4_K, …); ratio is 16 / bits_per_weight. The fact `bits_by_layer` has bits a weight of each layer,
    in forward order.
    bits_per_weight_bcq, megabytes_bcq: in the binary form of LUT-GEMM Eq. 5, which the LUT kernel reads; the same as
    stored where the layout is bcq. Absent where a layer has no such form.
    bits_paper_<formula>, megabytes_<formula>, ratio_<formula>: eq7 | table6 | nuqmm. Absent of ggml's types,
    and of groups of several widths, which have bits_paper_eq10 of the 2/4/16-bit paper (formats/mixed.py); full
    precision has both.
    """

    version: ClassVar[int] = 1
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("bits_per_weight", "bits/weight", "size as stored"),
        Metric("megabytes", "MB", "size as stored"),
        Metric("ratio", "x", "compression", lower_is_better=False),
        Metric("bits_per_weight_bcq", "bits/weight", "size in binary form"),
        Metric("megabytes_bcq", "MB", "size in binary form"),
        Metric("bits_paper_eq10", "bits/weight", "size by mixed-2-4-16 Eq. 10", format="mixed"),
        *(metric for suffix in _FORMULAS for metric in _by_formula(suffix)),
    )

    def measure(self, subject: Subject) -> Measurement:
        """Needs no text. A layer in full precision counts its full bits in every formula."""
        layers = subject.layers
        weights = sum(_weights(layer) for layer in layers)
        stored = sum(layer.bits_stored for layer in layers)
        values = {
            "bits_per_weight": stored / weights,
            "megabytes": stored / 8e6,
            "ratio": 16 * weights / stored,
        }
        binary = [layer.bits_bcq for layer in layers if layer.bits_bcq is not None]
        if len(binary) == len(layers):
            values["bits_per_weight_bcq"] = sum(binary) / weights
            values["megabytes_bcq"] = sum(binary) / 8e6
        if all(layer.q >= 16 or layer.bits_average is not None for layer in layers):
            average = sum(_weights(layer) * (layer.bits_average or 16) for layer in layers)
            values["bits_paper_eq10"] = average / weights
        counted = not any(layer.format.startswith(_OF_ANOTHER_SIZE) for layer in layers)
        for suffix, (formula, full) in _FORMULAS.items() if counted else ():
            bits = _paper_bits(layers, formula, full)
            values[f"bits_paper_{suffix}"] = bits / weights
            values[f"megabytes_{suffix}"] = bits / 8e6
            values[f"ratio_{suffix}"] = full * weights / bits
        facts = {
            "layout": sorted({layer.format for layer in layers}),
            "bits_by_layer": [layer.bits_stored / _weights(layer) for layer in layers],
        }
        return Measurement(values=values, n=len(layers), facts=facts)


def _weights(layer: LayerStats) -> int:
    return layer.out_features * layer.in_features


def _paper_bits(layers: Sequence[LayerStats], formula: str, full: int) -> float:
    def bits(layer: LayerStats) -> float:
        q = cast("int", layer.q)  # a fraction is of formats whose size no paper counts
        return full if q >= 16 else bits_paper(q, layer.g, layer.in_features, formula)

    return sum(_weights(layer) * bits(layer) for layer in layers)
