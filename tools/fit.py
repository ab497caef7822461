"""Rates of an engine from latencies that somebody measured: least squares of relative errors, no constant below zero.

    t = dense_bytes/(s B) + packed_bytes/(s' B) + L o + [packed] L o' + a L log2 G      five constants

More do not pay: o in proportion to d lowers the worst error of what is fitted and not of a model left out, and a cost a
weight takes the place of the bandwidth and misses a model left out by half.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lutlab.base.errors import LutlabError
from lutlab.base.groups import Bits
from lutlab.predict.devices import Device
from lutlab.predict.footprint import predict_memory
from lutlab.predict.per_token import Errors, Rates, parts
from lutlab.predict.shapes import Decoder

CONTEXT = (
    128  # tokens in the cache that printed latencies are taken to be of: the papers do not say
)


@dataclass(frozen=True)
class Observed:
    """A latency in milliseconds a token that was measured.

    Attributes:
        shape, q, g, gpus: the model, its widths and the number of GPUs, with latency's meanings.
        ms: milliseconds a token, batch 1.
        where: the tables that print it.
    """

    shape: Decoder
    q: Bits
    g: int
    gpus: int
    ms: float
    where: tuple[str, ...] = ()


def fit(observed: Sequence[Observed], to: Device) -> Rates:
    """Rates by the five constants.

    Args:
        observed: latencies on devices of one type, of full precision and quantized, on one and several.
        to: device of that type.

    Raises:
        LutlabError: they do not decide all five constants.
    """
    from scipy.optimize import nnls

    free = Rates(math.inf, math.inf, math.inf, 0.0)  # all but what the all-reduces send
    units = (
        dataclasses.replace(free, dense=1.0, head=1.0),
        dataclasses.replace(free, packed=1.0),
        dataclasses.replace(free, layer_us=1.0),
        dataclasses.replace(free, packed_layer_us=1.0),
        dataclasses.replace(free, link_us=1.0),
    )
    sent = np.array([predicted(one, free, to) for one in observed])
    columns = [[predicted(one, unit, to) for one in observed] - sent for unit in units]
    times = np.array([one.ms for one in observed])
    matrix = np.array(columns).T / times[:, None]
    if np.linalg.matrix_rank(matrix) < len(columns):
        raise LutlabError(
            f"{len(observed)} latencies do not decide {len(columns)} constants: give those of several models, in full "
            "precision and quantized, on one GPU and on several"
        )
    wanted = 1 - sent / times
    dense, packed, layer, quantized, link = (float(x) for x in nnls(matrix, wanted)[0])
    return Rates(1 / dense, 1 / packed, 1 / dense, layer, quantized, link_us=link)


def fit_kernels(times: Sequence[tuple[float, float, float]]) -> tuple[float, float, Errors]:
    """Share of the read bandwidth at which products read their weights, microseconds a product besides, their errors.

    Args:
        times: (bytes of the weights, bandwidth in bytes a second, measured microseconds) of each product.
    """
    from scipy.optimize import nnls

    size, bandwidth, us = np.array(times).T
    matrix = np.stack([1e6 * size / bandwidth / us, 1 / us], axis=1)
    (inverse, each), _ = nnls(matrix, np.ones(len(us)))
    return 1 / float(inverse), float(each), relative_errors(matrix @ [inverse, each] - 1)


def predicted(one: Observed, rates: Rates, to: Device) -> float:
    """Milliseconds a token by these rates, at the context that is assumed."""
    held = predict_memory(one.shape, one.q, one.g, gpus=one.gpus, context=CONTEXT)
    return sum(parts(one.shape, one.q, held, to, 1, rates).values())


def off(one: Observed, rates: Rates, to: Device) -> float:
    """Relative error of the prediction: below 0 where it is too fast."""
    return predicted(one, rates, to) / one.ms - 1


def errors(observed: Sequence[Observed], rates: Rates, to: Device) -> Errors:
    """How far predictions by these rates are from what was measured."""
    return relative_errors(np.array([off(one, rates, to) for one in observed]))


def relative_errors(relative: Sequence[float] | np.ndarray) -> Errors:
    """Sizes of relative errors, of either sign."""
    sizes = np.abs(relative)
    median, p90 = (float(np.quantile(sizes, share)) for share in (0.5, 0.9))
    return Errors(len(sizes), median, p90, float(sizes.max()))
