"""BCQ planes to a dense matrix: to the last bit the plain layout's dequantize(), on the CPU; the same on a GPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.checks import BF16, F16, F32, refused
from tests.kernels.gpu import plans
from tests.kernels.gpu.lut_gemv_matrix import in_turn, weight
from tests.kernels.weights import uniform_tensor

from lutlab.formats import bcq
from lutlab.kernels.gpu import dequantize


def check(packed, *dtypes, reverse=False):
    for dtype in dtypes:
        dense = packed.dequantize().to(dtype)
        expected = dense if packed.order is None else dense[:, packed.order.long()]
        assert torch.equal(plans.dense(dequantize, packed, dtype, reverse), expected)


@pytest.mark.parametrize("q", range(1, 9))
def test_every_q_to_the_last_bit(q):
    """The type that is written takes turns: weights are floats until then."""
    check(weight(13, 200, q, 32, offset="f16"), (F16, BF16, F32)[q % 3])


@given(
    rows=st.integers(1, 9), columns=st.integers(1, 70), g=st.sampled_from([-1, 8, 13, 32, 40]),
    scale=st.sampled_from(["f16", "f32"]), ordered=st.booleans(), reverse=st.booleans(),
)  # fmt: skip
@settings(deadline=None, max_examples=40)
def test_every_shape_and_group(rows, columns, g, scale, ordered, reverse):
    packed = weight(rows, columns, 3, g, alpha=scale, offset=scale, ordered=ordered)
    check(packed, F16, reverse=reverse)


@pytest.mark.parametrize(("scale", "offset"), [("f16", F32), ("f32", torch.float64)])
def test_uniform_codes_with_wide_offsets(scale, offset):
    packed = bcq.pack(bcq.from_uniform(uniform_tensor(9, 72, 4, 24, scale=scale)))
    assert packed.offset.dtype == offset
    check(packed, F32)


def test_no_offset_and_values_beyond_the_range_of_half():
    packed = weight(3, 40, 2, -1, alpha="f32")
    packed.alpha.mul_(1e6)
    check(packed, F16, BF16)


def test_more_rows_than_a_grid_has_blocks(monkeypatch):
    monkeypatch.setattr(dequantize, "MOST_BLOCKS", 4)
    check(weight(11, 24, 2, 8, offset="f32"), F16)


@pytest.mark.parametrize(("gpu", "q", "dtype"), in_turn([(3, F16), (3, BF16), (8, F32)]))
def test_resources(gpu, q, dtype):
    plan = dequantize.plan(weight(4, 64, q, 32, offset="f16"), dtype)
    assert plans.check_resources(plan, gpu).shared_bytes == 0


def test_what_the_kernel_cannot_do_is_refused():
    packed = weight(4, 64, 2, 32)
    message = "dequantized to torch.float64 on a GPU: ask for"
    refused(message, dequantize.plan, packed, torch.float64)
    object.__setattr__(packed, "alpha", packed.alpha.transpose(1, 2))
    refused("alpha is not contiguous", dequantize.buffers, packed)
