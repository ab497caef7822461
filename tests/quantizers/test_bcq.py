"""The method bcq: its options, its stored types, what it refuses."""

import pytest
import torch

from lutlab import formats
from lutlab.base.errors import LutlabError
from lutlab.quantizers.bcq import BCQ


def weight(size=1.0):
    return size * torch.randn(16, 96, generator=torch.Generator().manual_seed(0))


def error(tensor, w):
    return float((formats.dequantize(tensor) - w).double().square().sum())


@pytest.mark.parametrize(("q", "g"), [(q, (-1, 8, 40)[q % 3]) for q in range(1, 9)])
def test_offset_beats_alternating_beats_greedy(q, g):
    """q = 1 is solved by greedy; elsewhere alternation must gain, offsets included, though rounded to float16."""
    greedy, plain, extended = (
        error(BCQ(**options).quantize(weight(), q, g), weight())
        for options in ({"solver": "greedy"}, {}, {"offset": True})
    )
    assert plain < greedy if q > 1 else plain == pytest.approx(greedy, rel=1e-6)
    assert extended < plain * (1.02 if g == 8 and q > 5 else 1)


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("fp32", torch.float32)])
def test_coefficients_have_the_stored_type(name, dtype):
    tensor = BCQ(offset=True, alpha_dtype=name).quantize(weight(), 3, 32)
    assert tensor.alpha.dtype == tensor.offset.dtype == dtype
    assert tensor.alpha.shape == (3, 16, 3)
    assert tensor.offset.shape == (16, 3)
    assert BCQ(alpha_dtype=name).quantize(weight(), 3, 32).offset is None


def test_more_rounds_never_hurt():
    errors = [
        error(BCQ(rounds=r, alpha_dtype="fp32").quantize(weight(), 4, 32), weight())
        for r in (1, 2, 4, 100)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0]


def test_wrong_options_teach():
    with pytest.raises(LutlabError, match="rounds=0: give a whole number of at least 1"):
        BCQ(rounds=0)
    with pytest.raises(LutlabError, match="solver=alternating with offset=true"):
        BCQ(solver="greedy", offset=True)


@pytest.mark.parametrize("solver", ["greedy", "alternating"])
def test_weights_beyond_float16_ask_for_float32(solver):
    with pytest.raises(LutlabError, match="alpha_dtype=fp32"):
        BCQ(solver=solver).quantize(weight(1e6), 2, 32)
    tensor = BCQ(solver=solver, alpha_dtype="fp32").quantize(weight(1e6), 2, 32)
    assert error(tensor, weight(1e6)) < 0.2 * float(weight(1e6).double().square().sum())
