"""A layer quantized on one thread and on two is the same layer, to the last bit."""

from __future__ import annotations

import pytest
import torch

import lutlab
from lutlab.base import registry
from lutlab.compress.calibrate import stats_of
from lutlab.quantizers.compensation import factor

# Those by code of others are in tests/quantizers/test_ggml.py.
METHODS = [
    name for name, cls in registry.classes("method").items() if cls.quantizes and not cls.libraries
]


@pytest.fixture
def on_threads():
    """on_threads(n, function): what it returns on so many threads of torch."""
    before = torch.get_num_threads()

    def call(threads, function):
        torch.set_num_threads(threads)
        return function()

    yield call
    torch.set_num_threads(before)


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_the_second_moments_and_their_factor_are(on_threads) -> None:
    x = drawn(1100, 512)

    def made():
        stats = stats_of(x)
        found = factor(stats.hessian, 0.01)
        return stats.hessian, found.feedback, found.pivots

    for one, two in zip(on_threads(1, made), on_threads(2, made), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_stored_is(method, on_threads) -> None:
    weight, x = drawn(96, 512), drawn(700, 512)

    def stored():
        return lutlab.quantize_tensor(weight, method, q=3, g=128, inputs=x).buffers

    one, two = on_threads(1, stored), on_threads(2, stored)
    assert one.keys() == two.keys()
    assert all(b is None or torch.equal(b, two[name]) for name, b in one.items())
