"""The method bcq: its options and its stored types."""

import pytest
import torch
from tests.quantizers.weights import drawn

from lutlab import formats
from lutlab.quantizers.bcq import BCQ
from lutlab.quantizers.rtn import RTN


def error(method, q, g, weight):
    """Squared error, relative to the weights'."""
    left = (formats.dequantize(method.quantize(weight, q, g)) - weight).double()
    return float((left.norm() / weight.double().norm()) ** 2)


@pytest.mark.parametrize(("method", "q", "expected"), [
    (BCQ(), 2, 0.1145), (BCQ(), 3, 0.0335), (BCQ(), 4, 0.00925), (BCQ("greedy"), 2, 0.1284), (BCQ("greedy"), 3, 0.0570),
    (BCQ("greedy"), 4, 0.0317), (RTN(), 2, 0.2553), (RTN(), 3, 0.0466), (RTN(), 4, 0.0101),
])  # fmt: skip
def test_gaussian_error(method, q, expected):
    """At g = 128; measured once with a program of its own."""
    assert error(method, q, 128, drawn(512, 1024)) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("q", "g"), [(q, (-1, 8, 40)[q % 3]) for q in range(1, 9)])
def test_offset_beats_alternating_beats_greedy(q, g):
    """q = 1 is solved by greedy; elsewhere alternation must gain, offsets included, though rounded to float16."""
    methods = BCQ("greedy"), BCQ(), BCQ(offset=True)
    greedy, plain, extended = (error(method, q, g, drawn(16, 96)) for method in methods)
    assert plain < greedy if q > 1 else plain == pytest.approx(greedy, rel=1e-6)
    assert extended < plain * (1.02 if g == 8 and q > 5 else 1)


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("fp32", torch.float32)])
def test_coefficients_have_the_stored_type(name, dtype):
    tensor = BCQ(offset=True, alpha_dtype=name).quantize(drawn(16, 96), 3, 32)
    assert tensor.alpha.dtype == tensor.offset.dtype == dtype
    assert (tensor.alpha.shape, tensor.offset.shape) == ((3, 16, 3), (16, 3))
    assert BCQ(alpha_dtype=name).quantize(drawn(16, 96), 3, 32).offset is None


def test_more_rounds_never_hurt():
    methods = [BCQ(rounds=rounds, alpha_dtype="fp32") for rounds in (1, 2, 4, 100)]
    errors = [error(method, 4, 32, drawn(16, 96)) for method in methods]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0]


@pytest.mark.parametrize("solver", ["greedy", "alternating"])
def test_float32_holds_weights_beyond_float16(solver):
    assert error(BCQ(solver, alpha_dtype="fp32"), 2, 32, 1e6 * drawn(16, 96)) < 0.2
