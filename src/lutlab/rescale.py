"""Move a scale per input channel from a layer's input into its weight, so that the model computes the same.

    y = (x / s) (W diag(s))^T,   x / s made by the module before: a norm's weight and bias, or a linear layer's rows

Lin et al., AWQ (2023), section 3.2 and its Eq. 4; what lies between the two modules must let a positive scale per
channel pass (models/families.py, `scaled_by`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn
from transformers import PreTrainedConfig

from lutlab.models.families import SharedInput, weight_of
from lutlab.modules import QuantLinear
from lutlab.records import CalibStats
from lutlab.widths import Width


class ScaleSearch(Protocol):
    """A method that chooses a scale per input channel before it quantizes."""

    def scales(
        self, weights: Sequence[torch.Tensor], widths: Sequence[Width | None], stats: CalibStats
    ) -> torch.Tensor:
        """[K] float32 > 0 for layers [N_i, K] that share an input."""


def rescale_input(
    config: PreTrainedConfig,
    block: nn.Module,
    shared: SharedInput,
    widths: Sequence[Width | None],
    search: ScaleSearch,
    stats: CalibStats,
) -> CalibStats:
    """Scale the layers of a shared input and the module before them, in place, where that is possible.

    Args:
        config: of the model.
        block: in full precision.
        shared: the layers and what makes their input.
        widths: of each layer.
        search: chooses the scales.
        stats: of the input as it is.

    Returns:
        Statistics of the input as it is afterwards: the same object where nothing can carry a scale.
    """
    source = source_of(config, block, shared)
    if source is None:
        return stats
    weights = [weight_of(block.get_submodule(layer)) for layer in shared.layers]
    scale = search.scales([weight.float() for weight in weights], widths, stats)
    for weight in weights:
        weight.mul_(scale.to(weight.dtype))
    rows = source.weight if source.weight.ndim == 1 else weight_of(source).T  # [K] or [.., K]
    rows.div_(scale.to(rows.dtype))
    if getattr(source, "bias", None) is not None:
        source.bias.div_(scale.to(source.bias.dtype))
    hessian = stats.hessian / (scale[:, None] * scale)
    return CalibStats(hessian, stats.mean_abs / scale, stats.tokens)


def source_of(config: PreTrainedConfig, block: nn.Module, shared: SharedInput) -> nn.Module | None:
    """The module of `shared.scaled_by` if it really makes the channels of the input, else None.

    It does not where OPT normalises after the sub-layer (350m: the input is a residual stream as well), where several
    heads share a value head (GQA), where a norm has no weight, and where the activation between is not ReLU.
    """
    if shared.scaled_by is None:
        return None
    source = block.get_submodule(shared.scaled_by)
    if isinstance(source, QuantLinear) or getattr(source, "weight", None) is None:
        return None
    in_features = weight_of(block.get_submodule(shared.layers[0])).shape[1]
    is_norm = source.weight.ndim == 1
    channels = len(source.weight) if is_norm else weight_of(source).shape[0]
    if channels != in_features:
        return None
    if is_norm and not getattr(config, "do_layer_norm_before", True):
        return None
    if shared.scaled_by == "fc1" and config.activation_function != "relu":
        return None
    return source
