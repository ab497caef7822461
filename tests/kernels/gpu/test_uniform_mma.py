"""uniform_mma: scales and zero points that half cannot hold, units of x, its grids. See test_variants.py."""

import torch
from tests.kernels.gpu import lut_gemv_matrix as matrix
from tests.kernels.gpu import plans
from tests.kernels.gpu.lut_gemv_matrix import BF16, F16, F32, check, codes, inputs, weight
from tests.kernels.weights import uniform_tensor

from lutlab.formats.uniform import PackedUniform
from lutlab.kernels.gpu.lut_gemv.uniform_mma import VARIANT
from lutlab.kernels.gpu.lut_gemv.variant import A100, H200, Case, case

SMALL = {"slice": 512, "warps": 2}


def test_scales_in_float_and_zero_points_that_half_cannot_hold():
    check(VARIANT, codes(20, 300, 4, 64, alpha="f32"), inputs(3, 300, F16), knobs=SMALL)
    uniform = uniform_tensor(20, 300, 4, 64)
    uniform.zero_point[3, 1] = 2051
    packed = PackedUniform.pack(uniform)
    check(VARIANT, packed, inputs(1, 300, F16), knobs=SMALL)


def test_bfloat16_far_below_the_largest_of_its_row():
    """A weight that is zero takes the largest away: what is left has 22 powers of two less."""
    uniform = uniform_tensor(30, 96, 4, 32)
    uniform.codes[:, 0] = uniform.zero_point[:, 0]
    packed, x = PackedUniform.pack(uniform), inputs(1, 96, BF16) * 2.0**-22
    x[:, :32] = torch.tensor([1.0] + 31 * [0.0])
    y, left = plans.product(VARIANT, packed, x, knobs=SMALL), x.clone()
    left[:, 0] = 0.0
    assert matrix.error(y, packed, left) <= matrix.allowed(VARIANT, packed, left)


def a_case(q, m=1):
    return Case(m, 49152, 12288, q, 128, F16, F16, F32, True)


def test_enough_loads_are_under_way_for_one_row():
    """33 KB an SM fill the bandwidth of an H200, by the model."""
    for q in range(2, 9):
        plan = VARIANT.plan_for(a_case(q), H200)
        chunk = 16 * 64 * plan.parameters["UNITS"] * q // 8
        assert plan.blocks_per_sm * plan.parameters["WARPS"] * chunk >= 32 * 1024


def test_grids_and_workspace():
    for gpu in (A100, H200):
        for q in range(1, 9):
            for m in (1, 8, 16):
                plan = VARIANT.plan_for(a_case(q, m), gpu)
                row_blocks, slices, passes = plan.steps[0].grid
                assert passes == 1
                assert row_blocks * slices >= gpu.sms
                assert plan.workspace["partial"] == m * slices * 49152 * 4


def test_binary_codes_are_not_taken_for_uniform_ones():
    assert not case(weight(16, 64, 3, 32, offset="f16"), F16).uniform
    assert case(codes(16, 64, 3, 32), F16).uniform
