"""BCQ planes to a dense matrix: to the last bit the plain layout's dequantize(), on the CPU; the same on a GPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.gpu import plans
from tests.kernels.gpu.lut_gemv_matrix import in_turn
from tests.kernels.weights import bcq_tensor, uniform_tensor

from lutlab.base.errors import LutlabError
from lutlab.formats import bcq
from lutlab.kernels.codegen import cuda
from lutlab.kernels.gpu import dequantize
from lutlab.kernels.gpu.lut_gemv.variant import SM_REGISTERS

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


def expected(packed, dtype):
    dense = packed.dequantize().to(dtype)
    return dense if packed.order is None else dense[:, packed.order.long()]


@pytest.mark.parametrize("q", range(1, 9))
def test_every_q_to_the_last_bit(q):
    """The type that is written takes turns: weights are floats until then."""
    dtype = (F16, BF16, F32)[q % 3]
    packed = bcq.pack(bcq_tensor(13, 200, q, 32, offset="f16"))
    assert torch.equal(plans.dense(dequantize, packed, dtype), expected(packed, dtype))


@given(
    rows=st.integers(1, 9),
    columns=st.integers(1, 70),
    g=st.sampled_from([-1, 8, 13, 32, 40]),
    scale=st.sampled_from(["f16", "f32"]),
    ordered=st.booleans(),
    reverse=st.booleans(),
)
@settings(deadline=None, max_examples=40)
def test_every_shape_and_group(rows, columns, g, scale, ordered, reverse):
    tensor = bcq_tensor(rows, columns, 3, g, alpha=scale, offset=scale, ordered=ordered)
    packed = bcq.pack(tensor)
    assert torch.equal(plans.dense(dequantize, packed, F16, reverse), expected(packed, F16))


@pytest.mark.parametrize("scale", ["f16", "f32"])
def test_uniform_codes_with_wide_offsets(scale):
    packed = bcq.pack(bcq.from_uniform(uniform_tensor(9, 72, 4, 24, scale=scale)))
    assert packed.offset.dtype == {"f16": F32, "f32": torch.float64}[scale]
    assert torch.equal(plans.dense(dequantize, packed, F32), expected(packed, F32))


def test_no_offset_and_values_beyond_the_range_of_half():
    packed = bcq.pack(bcq_tensor(3, 40, 2, -1, alpha="f32"))
    object.__setattr__(packed, "alpha", packed.alpha * 1e6)
    assert torch.equal(plans.dense(dequantize, packed, F16), expected(packed, F16))
    assert torch.equal(plans.dense(dequantize, packed, BF16), expected(packed, BF16))


def test_more_rows_than_a_grid_has_blocks(monkeypatch):
    monkeypatch.setattr(dequantize, "MOST_BLOCKS", 4)
    packed = bcq.pack(bcq_tensor(11, 24, 2, 8, offset="f32"))
    assert torch.equal(plans.dense(dequantize, packed, F16), expected(packed, F16))


@pytest.mark.parametrize(("gpu", "q", "dtype"), in_turn([(3, F16), (3, BF16), (8, F32)]))
def test_resources(gpu, q, dtype):
    plan = dequantize.plan(bcq.pack(bcq_tensor(4, 64, q, 32, offset="f16")), dtype)
    built = cuda.build(cuda.source(plan.file, plan.parameters), "test-dequantize", gpu.arch)
    takes = built.resources["dequantize_bcq"]
    assert (takes.spill_bytes, takes.stack_bytes, takes.shared_bytes) == (0, 0, 0)
    assert takes.registers * dequantize.THREADS * plan.blocks_per_sm <= SM_REGISTERS


def test_what_the_kernel_cannot_do_is_refused():
    packed = bcq.pack(bcq_tensor(4, 64, 2, 32))
    with pytest.raises(LutlabError, match=r"dequantized to torch.float64 on a GPU: ask for"):
        dequantize.plan(packed, torch.float64)
    packed = bcq.pack(bcq_tensor(4, 64, 2, 32))
    object.__setattr__(packed, "alpha", packed.alpha.transpose(1, 2))
    with pytest.raises(LutlabError, match="alpha is not contiguous"):
        dequantize.buffers(packed)
