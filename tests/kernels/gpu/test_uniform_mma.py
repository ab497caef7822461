"""uniform_mma: every q, group size, number of rows of x and awkward shape, on the CPU; the same on a GPU."""

import pytest
import torch
from tests.kernels.gpu import lut_gemv_matrix as matrix
from tests.kernels.gpu import plans
from tests.kernels.gpu.lut_gemv_matrix import BF16, F16, F32, check, inputs, weight
from tests.kernels.weights import uniform_tensor

from lutlab.formats.uniform import PackedUniform
from lutlab.kernels.gpu.lut_gemv.uniform_mma import VARIANT
from lutlab.kernels.gpu.lut_gemv.variant import A100, H200, Case

SMALL = {"slice": 512, "warps": 2}


def codes(rows, columns, q, g, **options):
    return PackedUniform.pack(uniform_tensor(rows, columns, q, g, **options))


@pytest.mark.parametrize("q", range(1, 9))
def test_every_q(q):
    """One and several slices; a group of a flush, of less and of all columns share what is compiled."""
    dtype = (F16, BF16)[q % 2]
    check(VARIANT, codes(40, 700, q, -1), inputs(1, 700, dtype), knobs=SMALL)
    check(VARIANT, codes(33, 200, q, 32), inputs(2, 200, dtype), knobs=SMALL)


@pytest.mark.parametrize("g", [64, 96, 128, 256, 384])
def test_every_group(g):
    for rows, columns in ((33, 900), (1, 31), (16, 129), (31, 512), (65, 513)):
        check(VARIANT, codes(rows, columns, 3, g), inputs(1, columns, F16), knobs=SMALL)


@pytest.mark.parametrize("m", [2, 7, 8, 9, 16, 17, 35])
def test_many_rows_of_x(m):
    """Odd numbers of halves, even ones of bfloat16: the tiles of rows are the same."""
    packed, x = codes(21, 600, 4, 128, ordered=True), inputs(m, 600, (BF16, F16)[m % 2])
    y = check(VARIANT, packed, x, knobs=SMALL)
    alone = check(VARIANT, packed, x[:1], knobs=SMALL)
    assert torch.equal(y[:1], alone)


def test_the_defaults():
    check(VARIANT, codes(300, 1100, 3, 128), inputs(1, 1100, F16))


def test_scales_in_float_and_zero_points_that_half_cannot_hold():
    check(VARIANT, codes(20, 300, 4, 64, scale="f32"), inputs(3, 300, F16), knobs=SMALL)
    uniform = uniform_tensor(20, 300, 4, 64)
    uniform.zero_point[3, 1] = 2051
    packed = PackedUniform.pack(uniform)
    check(VARIANT, packed, inputs(1, 300, F16), knobs=SMALL)


def test_outliers():
    for dtype in (F16, BF16):
        x = inputs(1, 1024, dtype, outliers=True)
        check(VARIANT, codes(100, 1024, 3, 128), x, knobs=SMALL)


def scaled(rows, columns, q, g, alpha, offset):
    return codes(rows, columns, q, g, scale=alpha)


def test_the_range_of_bfloat16():
    matrix.check_range(VARIANT, make=scaled, dtypes=(BF16,), knobs=SMALL)


def test_each_row_of_bfloat16_has_its_own_unit():
    packed, x = codes(40, 600, 4, 64), inputs(9, 600, BF16)
    x *= 2.0 ** torch.arange(-60, 66, 14)[:, None]
    y = plans.product(VARIANT, packed, x, knobs=SMALL)
    for row in range(9):
        own, one = y[row : row + 1], x[row : row + 1]
        assert matrix.error(own, packed, one) <= matrix.allowed(VARIANT, packed, one)


def test_bfloat16_far_below_the_largest_of_its_row():
    """A weight that is zero takes the largest away: what is left has 22 powers of two less."""
    uniform = uniform_tensor(30, 96, 4, 32)
    uniform.codes[:, 0] = uniform.zero_point[:, 0]
    packed, x = PackedUniform.pack(uniform), inputs(1, 96, BF16) * 2.0**-22
    x[:, :32] = torch.tensor([1.0] + 31 * [0.0])
    y, left = plans.product(VARIANT, packed, x, knobs=SMALL), x.clone()
    left[:, 0] = 0.0
    assert matrix.error(y, packed, left) <= matrix.allowed(VARIANT, packed, left)


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
@pytest.mark.parametrize("dtype", [F16, BF16], ids=str)
def test_an_activation_that_is_no_number_stays_in_its_row(dtype, bad):
    x = inputs(3, 300, dtype)
    x[1, 5] = bad
    y = plans.product(VARIANT, codes(20, 300, 4, 64), x, knobs=SMALL)
    assert not y[1].isfinite().any()
    assert y[[0, 2]].isfinite().all()


def test_workspace_serves_many_launches():
    packed, x, workspace = codes(70, 1200, 3, 64), inputs(1, 1200, F16), {}
    results = [
        plans.product(VARIANT, packed, x, knobs=SMALL, workspace=workspace, reverse=reverse)
        for reverse in (False, True, False)
    ]
    assert all(result.equal(results[0]) for result in results)


def a_case(m=1, rows=49152, q=3, g=128, x=F16, scale=F16, uniform=True):
    return Case(m, rows, 12288, q, g, x, scale, F32, uniform)


@pytest.mark.parametrize(
    ("gpu", "q", "options"),
    matrix.in_turn(
        (q, {"m": m, "g": g, "scale": scale, "x": x})
        for q in (2, 3, 4, 8)
        for m, g, scale, x in (
            (1, 128, F16, F16),
            (16, 128, F16, F16),
            (1, 32, F16, F16),
            (16, 32, F32, F16),
            (16, 128, F16, BF16),
        )
    ),
)
def test_resources(gpu, q, options):
    matrix.check_resources(VARIANT, a_case(q=q, **options), gpu)


def test_enough_loads_are_under_way_for_one_row():
    """33 KB an SM fill the bandwidth of an H200, by the model."""
    for q in range(2, 9):
        plan = VARIANT.plan_for(a_case(q=q), H200)
        chunk = 16 * 64 * plan.parameters["UNITS"] * q // 8
        assert plan.blocks_per_sm * plan.parameters["WARPS"] * chunk >= 32 * 1024


def test_grids_and_workspace():
    for gpu in (A100, H200):
        for q in range(1, 9):
            for m in (1, 8, 16):
                plan = VARIANT.plan_for(a_case(m=m, q=q), gpu)
                row_blocks, slices, passes = plan.steps[0].grid
                assert passes == 1
                assert row_blocks * slices >= gpu.sms
                assert plan.workspace["partial"] == m * slices * 49152 * 4


@pytest.mark.parametrize(
    ("case", "knobs", "why"),
    [
        (a_case(uniform=False), {}, "no uniform codes with one scale a group"),
        (a_case(x=F32), {}, "convert x to float16 or bfloat16"),
        (a_case(g=40), {}, "g=40: uniform_mma takes groups that are multiples of 32"),
        (a_case(), {"warps": 3}, "1, 2, 4, 8 or 16 warps"),
        (a_case(), {"slice": 300}, "a multiple of 256 columns"),
    ],
)
def test_refuses(case, knobs, why):
    assert why in VARIANT.why_not(case, H200, knobs)


def test_binary_codes_are_not_taken_for_uniform_ones():
    from lutlab.kernels.gpu.lut_gemv.variant import case

    assert not case(weight(16, 64, 3, 32, offset="f16"), F16).uniform
    assert case(codes(16, 64, 3, 32), F16).uniform


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("rows", "columns", "q", "g", "m", "dtype"),
    [product for product in matrix.GPU_PRODUCTS if product[-1] != F32],
)
def test_on_a_gpu(rows, columns, q, g, m, dtype):
    x = inputs(m, columns, dtype, outliers=True) / 8  # y of 8-bit codes stays below 65504
    matrix.check_on_gpu(VARIANT, codes(rows, columns, q, g), x)


@pytest.mark.gpu
@pytest.mark.parametrize("m", [2, 8, 16, 33])
def test_many_rows_on_a_gpu(m):
    matrix.check_on_gpu(VARIANT, codes(1023, 1056, 4, 32), inputs(m, 1056, F16))
