"""Spread of the range of weights by group of input channels, merged over output channels (Li et al. 2024, Fig. 4).

    r_i = sum over rows n of (max - min of w[n, i g .. (i+1) g - 1])^2        of group i

The 2/4/16-bit paper gives 4 bits to a quarter of the groups, since "only a small fraction of groups show a large
range". Of a layer: the largest r over the median one, and the share of the sum of r that the largest quarter of the
groups has (0.25 where all are alike).
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Annotated, ClassVar

from lutlab.base.errors import LutlabError
from lutlab.base.groups import blocks
from lutlab.base.lazy import torch
from lutlab.base.limits import a_group_size
from lutlab.base.registry import register
from lutlab.base.specs import Measurement, Subject
from lutlab.evaluators.contract import Evaluator, Metric
from lutlab.models.families import linear_layers, weight_of


@register("evaluator", "group_range")
@dataclass(frozen=True)
class GroupRange(Evaluator):
    """Metrics of all linear layers, as they are multiplied; samples are largest over median, layer by layer.

    range_largest_over_median, range_top_quarter: means over the layers; with _max: of the layer that has most of it.

    Attributes:
        g: number of weights of a group along the input channels.
    """

    version: ClassVar[int] = 1
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("range_largest_over_median", "x", "largest over median range", False),
        Metric("range_top_quarter", "share", "range of the top quarter", False),
        Metric("range_largest_over_median_max", "x", "largest over median range, a layer", False),
        Metric("range_top_quarter_max", "share", "range of the top quarter, a layer", False),
    )
    g: Annotated[int, a_group_size] = 16

    def measure(self, subject: Subject) -> Measurement:
        """Needs no text and no tokenizer."""
        from lutlab.modules import QuantLinear

        spreads = {}
        for name, module in linear_layers(subject.model):
            packed = module.packed if isinstance(module, QuantLinear) else None
            weight = packed.dequantize() if packed else weight_of(module)
            if weight.is_meta:
                raise LutlabError("group_range reads the weights of all layers: drop stream=true")
            ranges = merged_ranges(weight.float(), self.g)
            if len(ranges) < 2:
                raise LutlabError(
                    f"{name} has {weight.shape[1]} input channels, one group of {self.g}: give a smaller "
                    "evaluator.group_range.g"
                )
            spreads[name] = spread(ranges)
        over, share = zip(*spreads.values(), strict=True)
        values = {
            "range_largest_over_median": statistics.mean(over),
            "range_top_quarter": statistics.mean(share),
            "range_largest_over_median_max": max(over),
            "range_top_quarter_max": max(share),
        }
        facts = {"g": self.g, "layers": [*spreads]}
        return Measurement(values, n=len(spreads), samples=over, facts=facts)


def merged_ranges(weight: torch.Tensor, g: int) -> torch.Tensor:
    """Sum of squared ranges of each group over the rows of a weight [N, K]: [G], of float64."""
    parts = [part for *_, part in blocks(weight, g)]
    return torch.cat([(part.amax(2) - part.amin(2)).double().square().sum(0) for part in parts])


def spread(ranges: torch.Tensor) -> tuple[float, float]:
    """Largest over median of [G] ranges, and the share of their sum that the largest quarter has.

    A quarter of G groups is floor(G / 4) of them, at least one. Where all are zero nothing spreads: 1 and a quarter.
    """
    top = max(1, len(ranges) // 4)
    total = ranges.sum().item()
    if not total:
        return 1.0, top / len(ranges)
    ordered = ranges.sort(descending=True).values
    median = statistics.median(ordered.tolist())
    largest = ordered[0].item() / median if median else float("inf")
    return largest, ordered[:top].sum().item() / total
