"""uniform_mma: scales and zero points that half cannot hold, units of x, its grids. See test_variants.py."""

import itertools

import torch
from tests.kernels.checks import BF16, F16, F32, inputs, refused
from tests.kernels.gpu import lut_gemv_matrix as matrix
from tests.kernels.gpu.lut_gemv_matrix import codes, weight
from tests.kernels.weights import uniform_tensor

from lutlab.formats.uniform import PackedUniform
from lutlab.kernels.gpu.lut_gemv.variant import A100, H200, Case, case

VARIANT, product, check = matrix.tried("uniform_mma")


def test_scales_in_float_and_zero_points_that_half_cannot_hold():
    uniform = uniform_tensor(20, 300, 4, 64)
    uniform.zero_point[3, 1] = 2051
    for m, packed in ((3, codes(20, 300, 4, 64, alpha="f32")), (1, PackedUniform.pack(uniform))):
        check(packed, inputs(m, 300, F16))


def test_bfloat16_far_below_the_largest_of_its_row():
    """A weight that is zero takes the largest away: what is left has 22 powers of two less."""
    uniform = uniform_tensor(30, 96, 4, 32)
    uniform.codes[:, 0] = uniform.zero_point[:, 0]
    packed, x = PackedUniform.pack(uniform), inputs(1, 96, BF16) * 2.0**-22
    x[:, :32] = torch.tensor([1.0] + 31 * [0.0])
    y, left = product(packed, x), x.clone()
    left[:, 0] = 0.0
    assert matrix.error(y, packed, left) <= matrix.allowed(VARIANT, packed, left)


def test_grids_and_workspace():
    for gpu, q, m in itertools.product((A100, H200), range(1, 9), (1, 8, 16)):
        plan = VARIANT.plan_for(Case(m, 49152, 12288, q, 128, F16, F16, F32, True), gpu)
        row_blocks, slices, passes = plan.steps[0].grid
        assert passes == 1
        assert row_blocks * slices >= gpu.sms
        assert plan.workspace["partial"] == m * slices * 49152 * 4
        if gpu is H200 and m == 1 < q:  # 33 KB under way an SM fill its bandwidth, by the model
            chunk = 16 * 64 * plan.parameters["UNITS"] * q // 8
            assert plan.blocks_per_sm * plan.parameters["WARPS"] * chunk >= 32 * 1024


def test_cases_are_of_binary_or_of_uniform_codes():
    assert not case(weight(16, 64, 3, 32, offset="f16"), F16).uniform
    assert case(codes(16, 64, 3, 32), F16).uniform
    message = "x is torch.int8: the GPU kernels take float16, bfloat16 and float32"
    refused(message, case, codes(16, 64, 3, 32), torch.int8)
