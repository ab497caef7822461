"""Coefficients of weights too small or too large for float16: quantized at another scale, and stored in float32.

    Q(W) = 2^e Q(2^-e W)      2^-e W has its largest weight in [1/2, 1); a power of two rounds nothing

Scales, alphas and offsets are of the size of their weights. float16 holds those of every model in use; of weights near
1e-8 it holds nothing, and of 1e6 it overflows. A method that is asked for such a weight is given 2^-e W instead, and
its coefficients times 2^e are stored in float32: the relative error is then that of the same weights at scale 1.

That is done only where float16 would overflow, or lose more of the coefficients, by their Frobenius norm, than it loses
of normal numbers; every other weight is quantized as it is, bit for bit. A group of tiny weights beside others changes
nothing. Groups of several widths have no coefficients of float32: they are refused where float16 would lose LOSS.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping
from typing import Any

from lutlab.base.errors import LutlabError
from lutlab.base.groups import Bits
from lutlab.base.lazy import torch
from lutlab.base.tensors import BCQTensor, DenseTensor, QuantizedTensor, UniformTensor
from lutlab.quantizers.contract import Method

log = logging.getLogger(__name__)

# Of a tensor's largest weight: between them float16 holds the coefficients of every method, so that none is tried
# twice. 8 bits of a range of 2^-8 are steps of 2^-16, which float16 rounds by 2^-9 at most.
SMALL, LARGE = 2.0**-8, 2.0**15
# Of the Frobenius norm: what float16 rounds of any normal number, and the most that may be lost at all.
ROUNDING, LOSS = 2.0**-11, 2.0**-8
# Of a tensor's largest weight: beyond them a grid of one bit, or the partial sums of a product, leave float32.
LEAST, MOST = 2.0**-100, 2.0**126
# Class of a quantized tensor -> its coefficients, all that may be float16 or float32.
_COEFFICIENTS = {UniformTensor: ("scale", "offset"), BCQTensor: ("alpha", "offset")}
_OF_HALVES = ("scale_step", "row_scale", "outlier_value")  # of any other: float16 alone


def exponent(*weights: torch.Tensor) -> int:
    """The e of the module's equation for weights that are scaled together; 0 where float16 surely does."""
    largest = max(_largest(weight) for weight in weights)
    if not 0 < largest < math.inf or SMALL <= largest <= LARGE:
        return 0  # what is not finite, a method refuses
    return math.frexp(largest)[1]


def _largest(weight: torch.Tensor) -> float:
    """Largest absolute value of a weight; nan where one is."""
    low, high = weight.aminmax()
    return max(-float(low), float(high))


def times_power(values: torch.Tensor, power: int) -> torch.Tensor:
    """Values times 2^power, in float32; exact unless that is out of float32's range."""
    return values.double().mul(2.0**power).float() if power else values


def quantized(
    method: Method, weight: torch.Tensor, q: Bits, g: int, *prepared: Any, name: str = "a weight"
) -> tuple[QuantizedTensor, bool]:
    """A weight by a method, and whether its coefficients are in float32 because float16 would lose them.

    Args:
        method: the method, with its options.
        weight: [N, K] float32.
        q: bits a weight.
        g: group size.
        prepared: result of a calibrated method's `prepare`; none for other methods.
        name: name of the weight, for the log.

    Raises:
        LutlabError: the method refuses q, g or the weight; float32 cannot hold the coefficients either, or the tensor
            has none of float32.
    """
    power = exponent(weight)
    if not power:
        return method.quantize(weight, q, g, *prepared), False
    largest = _largest(weight)
    tensor = method.quantize(times_power(weight, -power), q, g, *prepared)
    stored: dict[str, Any]
    if isinstance(tensor, DenseTensor):
        parts, stored = {"weight": weight.double()}, {"weight": weight}
    else:
        parts = _at_power(tensor, power)
        stored = {name: part.float() for name, part in parts.items()}
    lost = _loss(parts, {name: part.half() for name, part in parts.items()})
    wide = isinstance(tensor, (DenseTensor, *_COEFFICIENTS))
    if lost <= (ROUNDING if wide else LOSS):
        return method.quantize(weight, q, g, *prepared), False
    if not wide:
        raise LutlabError(
            f"weights of at most {largest:.3g} need coefficients that float16 cannot hold, and groups of several "
            "widths and coefficients on grids (alpha_bits, scale_bits) have no others: multiply the weights, or take a "
            "method such as gptq, whose scales may be float32"
        )
    if not (isinstance(tensor, DenseTensor) or LEAST <= largest < MOST):
        raise LutlabError(
            f"weights of at most {largest:.3g} need coefficients that float32 cannot hold or multiply: multiply the "
            f"weights, whose largest should be between {LEAST:.1g} and {MOST:.1g}, and divide the outputs"
        )
    widened = any(getattr(tensor, part).itemsize < 4 for part in parts)  # else it was asked for
    if widened:
        log.warning(
            "%s: weights of at most %.3g need coefficients that float16 cannot hold: these are stored in float32",
            name,
            largest,
        )
    return dataclasses.replace(tensor, **stored), widened


def _at_power(tensor: QuantizedTensor, power: int) -> dict[str, torch.Tensor]:
    """Name -> coefficient times 2^power, float64, exact."""
    parts = {n: getattr(tensor, n, None) for n in _COEFFICIENTS.get(type(tensor), _OF_HALVES)}
    return {n: part.double() * 2.0**power for n, part in parts.items() if part is not None}


def _loss(exact: Mapping[str, torch.Tensor], rounded: Mapping[str, torch.Tensor]) -> float:
    """The error of rounding, by the Frobenius norm and relative to it; inf where something overflows."""
    size = math.hypot(*(float(part.norm()) for part in exact.values()))
    error = math.hypot(*(float((rounded[n].double() - part).norm()) for n, part in exact.items()))
    return (error / size if size else 0.0) if math.isfinite(error) else math.inf
