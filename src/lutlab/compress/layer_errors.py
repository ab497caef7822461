"""Errors of one quantized layer, of its weight and of what it puts out on calibration text.

    ||W^ - W||^2,    E||W^ x - W x||^2 = tr((W^ - W) H (W^ - W)^T),    H = E[x x^T]

W is the layer's own weight, whatever target the method was given (target.py): under another target than the weights the
second number has in it what the layer does on purpose, to make up for errors before it.
"""

from __future__ import annotations

import torch

from lutlab.formats import name_of
from lutlab.formats.contract import Format
from lutlab.groups import Width
from lutlab.quantizers.coefficients import exponent, times_power
from lutlab.specs import LayerStats
from lutlab.tensors import CalibStats

# Weights whose norms are taken at a time: bounds the float64 temporaries at some 10 MB.
_CHUNK_WEIGHTS = 2**20


def layer_stats(
    name: str,
    weight: torch.Tensor,
    packed: Format,
    width: Width,
    stats: CalibStats | None,
    widened: bool,
) -> LayerStats:
    """Errors, norms, widths and stored bits of a layer.

    Args:
        name: name of the layer.
        weight: [N, K] float32, as it was.
        packed: its packed weight.
        width: (q, g).
        stats: statistics of its inputs; None: errors of outputs are left out.
        widened: whether its coefficients had to be stored in float32.
    """
    found = packed.dequantize()
    power = exponent(weight)  # so that the squares of outputs stay in float32's range
    sums = dict.fromkeys(("squared_error", "squared_norm"), 0.0)
    if stats is not None:
        sums |= dict.fromkeys(("output_error", "output_norm"), 0.0)
    rows = max(1, _CHUNK_WEIGHTS // weight.shape[1])
    for before, after in zip(weight.split(rows), found.split(rows), strict=True):
        error = after.double() - before.double()
        sums["squared_error"] += error.square().sum().item()
        sums["squared_norm"] += before.double().square().sum().item()
        if stats is not None:
            sums["output_error"] += _weighted(error.float(), stats.hessian, power)
            sums["output_norm"] += _weighted(before, stats.hessian, power)
    return LayerStats(
        name,
        *packed.shape,
        bits_stored=packed.bits_stored,
        q=width[0],
        g=width[1],
        format=name_of(packed),
        bits_bcq=packed.bcq_bits,
        bits_average=packed.bits_average,
        widened=widened,
        **sums,
    )


def _weighted(rows: torch.Tensor, hessian: torch.Tensor, power: int) -> float:
    """tr(D H D^T) of D [N, K], taken of 2^-power D: the mean over calibration tokens of the squared norm of D x."""
    rows = times_power(rows, -power)
    return (rows @ hessian).mul_(rows).sum(dtype=torch.float64).item() * 4.0**power
