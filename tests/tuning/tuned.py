"""Random models that are tuned, and what is stored of them beside what was trained."""

import dataclasses
import itertools

import pytest
import torch
from tests.kernels.weights import bcq_tensor, uniform_tensor
from tests.models.architectures import make, uniform
from tests.quantizers.weights import assert_same

from lutlab.base.specs import Tuning
from lutlab.compress.driver import quantize_model
from lutlab.models.families import linear_layers
from lutlab.quantizers.contract import make_method
from lutlab.tuning.loop import Progress
from lutlab.tuning.losses import HELD_OUT
from lutlab.tuning.stages import tune


class Killed(Exception):
    """The process ends."""


def kill_after(steps: int):
    """A listener that ends the run after so many steps of this process."""
    count = itertools.count(1)

    def listener(stage: object) -> None:
        if isinstance(stage, Progress) and next(count) == steps:
            raise Killed

    return listener


def coded(rows, columns, q, g, binary, shift, **options):
    """A random weight of binary or uniform codes, as the tests of formats have it."""
    if not binary:
        return uniform_tensor(rows, columns, q, g, shift=shift, zeros=(-3, 2**q), **options)
    tensor = bcq_tensor(rows, columns, q, g, offset=shift, **options)
    return dataclasses.replace(tensor, alpha=tensor.alpha.abs() + 0.1)


def windows(samples=9, length=16):
    """Of eight tokens, so that there is something to learn."""
    return torch.randint(1, 9, (samples, length), generator=torch.Generator().manual_seed(2))


def widths_of(model, q):
    """All of one width, but for one layer in full precision."""
    widths = uniform(model, q, 8)
    return widths | {next(iter(widths)): None}


def tuned(name, method, q, kept=None, few=None, **options):
    model, options = make(name), {"learning_rate": 3e-3, "batch": 4, "loss": "labels"} | options
    quantizer, ids = make_method(method, **few or {}), windows()
    result = tune(model, quantizer, widths_of(model, q), ids, ids, Tuning(**options), kept=kept)
    assert_same(model.state_dict(), make(name).state_dict())
    return result


def stored(name, method, q, gain, few=None, **options):
    """(layer, the same untuned) of all that are quantized: there is no gap between what was trained and what is.

    few: bits of coefficients, an option of the method.
    """
    packed, _, facts = tuned(name, method, q, few=few, **options)
    losses, ids = dict(facts["held_out"]), windows()
    kept = losses[facts["kept_step"]]
    assert kept == min(losses.values()) < losses[0] - gain
    models, stats, held = (make(name), make(name)), [], ids[::HELD_OUT]
    for model, given, expected in zip(models, (packed, None), (kept, losses[0]), strict=True):
        widths = widths_of(model, q)
        quantizer = make_method(method, **few or {})
        stats.append(quantize_model(model, quantizer, widths, ids, packed=given))
        with torch.no_grad():
            assert model(held, labels=held).loss.item() == pytest.approx(expected, rel=1e-5)
    assert [layer.bits_stored for layer in stats[0]] == [layer.bits_stored for layer in stats[1]]
    for (path, layer), (_, other) in zip(*map(linear_layers, models), strict=True):
        if widths[path] is None:
            assert_same(layer.weight, other.weight)
        else:
            yield layer, other
