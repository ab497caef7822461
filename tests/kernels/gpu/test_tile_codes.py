"""Uniform codes in tiles: nothing lost, no bit used twice, and where the module says a code is."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.checks import assert_same
from tests.kernels.gpu.unpacked import of_optq, of_uniform_mma
from tests.kernels.weights import uniform_tensor

from lutlab.formats.uniform import PackedUniform
from lutlab.kernels.gpu.lut_gemv import optq, uniform_mma


@pytest.mark.parametrize("q", range(1, 9))
def test_every_bit_of_a_tile_is_used_once_and_a_code_fits_a_mantissa(q):
    assert sorted(uniform_mma._bits(q).tolist()) == list(range(16 * 64 * q))
    step, count = uniform_mma.parts(q)[0][0], uniform_mma.bases(q)
    assert sum(width for width, _ in uniform_mma.parts(q)) == q
    assert (count - 1) * step + q <= 10
    assert uniform_mma.UNITS[q] * q % 4 == 0


@pytest.mark.parametrize("scale", ["f16", "f32"])
def test_optq_there_and_back(scale):
    plain = PackedUniform.pack(uniform_tensor(37, 205, 3, 32, scale=scale, ordered=True))
    stored = optq.pack(plain)
    assert_same(of_optq(stored), plain)
    assert stored.buffers["words"].shape == (7, 3, 64)


@given(
    rows=st.integers(1, 40), columns=st.integers(1, 700), q=st.integers(1, 8),
    g=st.sampled_from([-1, 8, 32, 40, 128]), scale=st.sampled_from(["f16", "f32"]), ordered=st.booleans(),
)  # fmt: skip
@settings(deadline=None, max_examples=40)
def test_there_and_back(rows, columns, q, g, scale, ordered):
    plain = PackedUniform.pack(uniform_tensor(rows, columns, q, g, scale=scale, ordered=ordered))
    packed = uniform_mma.pack(plain)
    assert_same(of_uniform_mma(packed), plain)
    assert packed.buffers["words"].is_contiguous()
    assert packed.buffers["words"].shape[-2:] == (32, 4)


def test_one_code_in_its_place():
    """q = 3, row 9, column 22: product 1, lane 4 * 1 + 1, register 3; the pair 7's base is 6, its turn 8."""
    uniform = uniform_tensor(16, 256, 3, 128)
    uniform.codes.zero_()[9, 22] = 5
    packed = uniform_mma.pack(PackedUniform.pack(uniform))
    lane = packed.buffers["words"].view(-1, 3, 32, 4)[0, :, 5].flatten().tolist()
    assert lane[:3] == [1 << 6 + 8, 0, 1 << 2 + 6 + 1]
    assert not any(lane[3:])


def test_zero_points_that_half_cannot_hold_widen_the_scales():
    uniform = uniform_tensor(5, 64, 4, 32)
    assert uniform_mma.pack(PackedUniform.pack(uniform)).alpha.dtype == torch.float16
    uniform.zero_point[3, 1] = 2049
    plain = PackedUniform.pack(uniform)
    packed = uniform_mma.pack(plain)
    assert packed.alpha.dtype == torch.float32
    assert torch.equal(of_uniform_mma(packed).dequantize(), plain.dequantize())


def test_the_size_that_the_model_counts():
    packed = uniform_mma.pack(PackedUniform.pack(uniform_tensor(64, 512, 3, 128)))
    size = sum(8 * buffer.nbytes for buffer in packed.buffers.values())
    assert size / (64 * 512) == 3 + 32 / 128
