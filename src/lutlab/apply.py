"""The one driver that quantizes a model: layer by layer, in forward order, for every method."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import nn
from transformers import PreTrainedModel

from lutlab.errors import LutlabError
from lutlab.formats import pack
from lutlab.formats.bcq import PackedBCQ
from lutlab.models.families import linear_layers, weight_of
from lutlab.modules import QuantLinear
from lutlab.records import LayerStats, PackedWeight, QuantizedTensor


class Quantizer(Protocol):
    """What quantizers/<method>.py registers: tensors in, tensors out."""

    def quantize(self, weight: torch.Tensor, q: int, g: int) -> QuantizedTensor:
        """The quantized form of a weight [N, K] at q bits, group size g."""


def quantize_model(
    model: PreTrainedModel, quantizer: Quantizer, q: int, g: int
) -> tuple[LayerStats, ...]:
    """Replace every linear layer of the decoder blocks by its quantized form, in place.

    Returns:
        Squared error, squared norm and stored bits of each layer, in forward order.

    Raises:
        LutlabError: the model is quantized already, its architecture is unknown, or a weight is not finite.
    """
    stats = []
    for name, module in list(linear_layers(model)):
        if isinstance(module, QuantLinear):
            raise LutlabError(
                f"{name} is quantized already; load the model again to quantize it another way"
            )
        weight = weight_of(module).float()
        try:
            packed = pack(quantizer.quantize(weight, q, g))
        except LutlabError as error:
            raise LutlabError(f"{name}: {error}") from error
        error = (packed.dequantize().double() - weight.double()).square().sum().item()
        norm = weight.double().square().sum().item()
        stats.append(LayerStats(name, *packed.shape, error, norm, packed.bits_stored))
        _replace(model, name, module, packed)
    return tuple(stats)


def _replace(model: PreTrainedModel, name: str, module: nn.Module, packed: PackedWeight) -> None:
    if isinstance(packed, PackedBCQ):
        model.set_submodule(name, QuantLinear(packed, module.bias))
    else:  # full precision: the layer stays, with its weight rounded to the stored dtype
        weight_of(module).copy_(packed.dequantize())
