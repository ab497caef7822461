"""Move a scale per input channel from a layer's input into its weight, so that the model computes the same.

    y = (x / s) (W diag(s))^T,   x / s made by the module before: a norm's weight and bias, or a linear layer's rows

Lin et al., AWQ (2023), section 3.2 and its Eq. 4; what lies between the two modules must let a positive scale per
channel pass (models/contract.py, `scaled_by`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedConfig

from lutlab.base.errors import LutlabError
from lutlab.base.groups import Width
from lutlab.base.tensors import CalibStats
from lutlab.models.contract import SharedInput, holds
from lutlab.models.families import weight_of
from lutlab.modules import QuantLinear
from lutlab.quantizers.coefficients import exponent, times_power
from lutlab.quantizers.contract import Rescaling


def rescale_input(
    config: PreTrainedConfig,
    block: nn.Module,
    shared: SharedInput,
    widths: Sequence[Width | None],
    search: Rescaling,
    stats: CalibStats,
) -> CalibStats:
    """Scale the layers of a shared input and the module before them, in place, where that is possible.

    The block is in full precision, `stats` is of the input before it is scaled. Returns statistics of the input as it
    is afterwards: the same object where nothing can carry a scale, or where every layer stays in full precision.

    Raises:
        LutlabError: the search refuses; a weight or bias leaves its dtype's range, or was inf or nan.
    """
    source = source_of(config, block, shared)
    if source is None or not any(widths):
        return stats
    weights = [weight_of(block.get_submodule(layer)) for layer in shared.layers]
    try:
        power = exponent(*weights)  # all by one power of two, which moves no scale
        comparable = [times_power(weight.float(), -power) for weight in weights]
        scale = search.scales(comparable, widths, stats)
    except LutlabError as error:
        raise LutlabError(f"{', '.join(shared.layers)}: {error}") from error
    rows = _rows(source)
    bias = [p.detach() for name, p in source.named_parameters(recurse=False) if name == "bias"]
    # In place, torch computes in the wider of two dtypes: s is not rounded where weights are float16.
    for weight in weights:
        weight.mul_(scale)
    for made in [rows, *bias]:
        made.div_(scale)
    if not all(torch.isfinite(changed).all() for changed in [*weights, rows, *bias]):
        raise LutlabError(
            f"scales of input channels take {shared.layers[0]} or {shared.scaled_by} out of {rows.dtype}'s range: load "
            "the model with dtype=float32, or check its weights and the calibration text"
        )
    hessian = stats.hessian / scale[:, None] / scale
    return CalibStats(hessian, stats.mean_abs / scale, stats.tokens)


def source_of(config: PreTrainedConfig, block: nn.Module, shared: SharedInput) -> nn.Module | None:
    """The module of `shared.scaled_by` if it really makes the channels of the input, else None.

    It does not where the family says so of this config (`scaled_where`), where several heads share a value head (GQA),
    where a norm has no weight, and where one of the modules is quantized already.
    """
    if shared.scaled_by is None or not holds(shared.scaled_where, config):
        return None
    source = block.get_submodule(shared.scaled_by)
    layers = [block.get_submodule(layer) for layer in shared.layers]
    if any(isinstance(module, QuantLinear) for module in [source, *layers]):
        return None
    if "weight" not in dict(source.named_parameters(recurse=False)):
        return None
    return source if _rows(source).shape[-1] == weight_of(layers[0]).shape[1] else None


def _rows(source: nn.Module) -> torch.Tensor:
    """Weight, a view, whose last axis is the module's outputs: [K] of a norm, [.., K] of a linear layer."""
    weight = source.get_parameter("weight").detach()
    return weight if weight.ndim == 1 else weight_of(source).T
