"""half_bits: every q, group size, dtype, number of rows of x, awkward shape, how exact it is, on the CPU; a GPU."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.gpu import lut_gemv_matrix as matrix
from tests.kernels.gpu import plans
from tests.kernels.gpu.lut_gemv_matrix import BF16, F16, F32, check, inputs, weight
from tests.kernels.weights import relative_error

from lutlab.kernels.gpu.lut_gemv.half_bits import VARIANT
from lutlab.kernels.gpu.lut_gemv.variant import A100, H200, Case

SMALL = {"slice": 256, "warps": 2, "turns": 2}


@pytest.mark.parametrize("q", range(1, 9))
def test_every_q(q):
    """Each with a type of x and a shape in turn: neither changes what a plane is."""
    dtype = (F16, BF16, F32)[q % 3]
    rows, columns, g = ((70, 400, 128), (31, 520, -1))[q // 3 % 2]
    packed = weight(rows, columns, q, g, alpha="f16", offset="f16")
    check(VARIANT, packed, inputs(2, columns, dtype), knobs=SMALL)


@pytest.mark.parametrize(
    ("g", "dtype", "m"),
    [(32, F16, 2), (32, F16, 3), (32, F16, 8), (32, F32, 1), (64, F16, 9), (64, F32, 2)],
)
def test_groups_that_share_a_block(g, dtype, m):
    for rows, columns in ((33, 129), (64, 256), (5, 1)):
        packed = weight(rows, columns, 2, g, alpha="f16", offset="f16")
        check(VARIANT, packed, inputs(m, columns, dtype), knobs=SMALL)


def test_rows_columns_and_groups_around_tiles_and_blocks():
    for rows, columns, g in (
        (1, 1, -1),
        (31, 31, 128),
        (32, 127, 96),
        (33, 128, -1),
        (1, 129, 128),
        (129, 700, 384),
    ):
        packed = weight(rows, columns, 2, g, alpha="f32", offset="f32")
        check(VARIANT, packed, inputs(1, columns, F32), knobs=SMALL)


@given(
    rows=st.integers(1, 150),
    columns=st.integers(1, 900),
    g=st.sampled_from([-1, 96, 128, 160, 256, 416]),
    blocks=st.integers(1, 4),
    turns=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
@settings(deadline=None, max_examples=20)
def test_any_shape(rows, columns, g, blocks, turns, seed):
    packed = weight(rows, columns, 2, g, alpha="f32", offset="f32", seed=seed)
    knobs = SMALL | {"slice": 128 * blocks, "turns": turns}
    check(VARIANT, packed, inputs(1, columns, F32, seed), knobs=knobs)


def test_groups_of_several_blocks_end_inside_a_slice():
    packed = weight(70, 1500, 2, 256, alpha="f32", offset="f32")
    check(VARIANT, packed, inputs(1, 1500, F32), knobs=SMALL | {"slice": 768})


def test_turns_change_nothing():
    packed, x = weight(300, 600, 2, 128, alpha="f32", offset="f32"), inputs(1, 600, F32)
    results = [check(VARIANT, packed, x, knobs=SMALL | {"turns": turns}) for turns in (1, 2, 3, 8)]
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("m", [1, 4, 7, 8, 9, 16, 17])
def test_rows_of_x_share_the_weights(m):
    packed = weight(40, 500, 2, 128, alpha="f16", ordered=True)
    x = inputs(m, 500, F16)
    y = check(VARIANT, packed, x, knobs=SMALL)
    for row in (0, m - 1):  # a row's y does not depend on its neighbours
        alone = plans.product(VARIANT, packed, x[row : row + 1], knobs=SMALL)
        assert torch.equal(y[row : row + 1], alone)


def test_the_defaults():
    packed = weight(300, 1100, 3, 128, alpha="f16", offset="f16")
    check(VARIANT, packed, inputs(5, 1100, F16))


def test_each_column_is_multiplied_by_its_own_x():
    """One x of 160 alone in each row: y is a column of W, exactly, whatever the place of its bit."""
    packed = weight(70, 160, 2, 128, alpha="f16")
    packed.alpha.copy_(packed.alpha.sign())
    x = torch.diag(torch.linspace(-2, 2, 160)).half()
    y = plans.product(VARIANT, packed, x, knobs=SMALL)
    assert torch.equal(y.double(), x.double() @ packed.dequantize().double().t())


# ---- how exact ----


def test_integers_give_integers():
    """Where alpha is 1 and the largest x of a block has 10 bits, no sum has more bits than tensor cores keep."""
    packed = weight(64, 384, 2, 128, alpha="f32", offset="f32")
    packed.alpha.copy_(packed.alpha.sign())
    packed.offset.copy_(packed.offset.round())
    x = torch.randint(-1000, 1000, (8, 384), generator=torch.Generator().manual_seed(0)).float()
    y = plans.product(VARIANT, packed, x, knobs=SMALL)
    assert torch.equal(y.double(), x.double() @ packed.dequantize().double().t())


@pytest.mark.parametrize("g", [32, 128])
def test_error_before_y_is_rounded(g):
    """Of half x, as floats whose second halves are zero: the numbers of the module, from below as well."""
    packed = weight(96, 2048, 3, g, alpha="f16", offset="f16")
    for mean, outliers in ((0, False), (0, True), (10, False)):
        x = (inputs(1, 2048, F32, outliers=outliers) + mean).half().float()
        y = plans.product(VARIANT, packed, x, knobs=SMALL | {"slice": 2048})
        assert 1e-8 < relative_error(y, x, packed.dequantize()) < 4e-7


def test_error_of_float_activations():
    packed = weight(96, 2048, 3, 128, alpha="f16", offset="f16")
    for mean, outliers in ((0, False), (0, True), (10, False)):
        x = inputs(1, 2048, F32, outliers=outliers) + mean
        y = plans.product(VARIANT, packed, x, knobs=SMALL | {"slice": 2048})
        assert relative_error(y, x, packed.dequantize()) < 4e-7


def test_outliers_and_a_mean_in_half():
    packed = weight(200, 1024, 3, 128, alpha="f16", offset="f16")
    for dtype in (F16, BF16):
        check(VARIANT, packed, inputs(2, 1024, dtype, outliers=True), knobs=SMALL)
    x = inputs(2, 1024, F16) + 10  # y is far larger than sums of random signs
    y = plans.product(VARIANT, packed, x, knobs=SMALL)
    assert relative_error(y, x, packed.dequantize()) <= matrix.HALF


def test_the_range_of_floats():
    matrix.check_range(VARIANT, knobs=SMALL)


def test_each_row_and_block_of_x_has_its_own_unit():
    packed, x = weight(40, 600, 3, 64, alpha="f32", offset="f32"), inputs(9, 600, BF16)
    x *= 2.0 ** torch.arange(-60, 66, 14)[:, None]
    x[:, 256:] *= 2.0**-20
    y = plans.product(VARIANT, packed, x, knobs=SMALL)
    for row in range(9):
        own, one = y[row : row + 1], x[row : row + 1]
        assert matrix.error(own, packed, one) <= matrix.allowed(VARIANT, packed, one)
    assert not plans.product(VARIANT, packed, 0 * x, knobs=SMALL).any()


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize(("g", "dtype"), [(32, F16), (128, F32)])
def test_what_is_not_finite_makes_its_row_nan_and_no_other(g, dtype, bad):
    packed, x = weight(40, 300, 2, g, alpha="f16", offset="f16"), inputs(3, 300, dtype)
    clean = plans.product(VARIANT, packed, x, knobs=SMALL)
    x[1, 299] = bad
    y = plans.product(VARIANT, packed, x, knobs=SMALL)
    assert torch.equal(y[[0, 2]], clean[[0, 2]])
    assert y[1].isnan().all()


def test_x_that_is_not_aligned():
    """A row of an odd number of columns, and a tensor that begins in the middle of another."""
    packed, x = weight(40, 301, 2, 128, alpha="f16"), inputs(1, 904, F16)
    check(VARIANT, packed, x[0, :903].view(3, 301), knobs=SMALL)


def test_workspace_serves_many_launches():
    packed, x, workspace = weight(140, 1700, 2, 256, alpha="f16"), inputs(3, 1700, F16), {}
    results = [
        plans.product(VARIANT, packed, x, knobs=SMALL, workspace=workspace, reverse=reverse)
        for reverse in (False, True, False)
    ]
    assert sorted(workspace) == ["arrived", "partial"]
    assert all(result.equal(results[0]) for result in results)


# ---- plans ----


def a_case(m=1, rows=49152, q=3, g=128, x=F16):
    return Case(m, rows, 12288, q, g, x, F16, F16)


@pytest.mark.parametrize(
    ("gpu", "m", "q", "g", "x"),
    matrix.in_turn(
        [
            (8, 3, 128, F16),
            (16, 3, 128, F16),
            (16, 8, 128, F16),
            (8, 4, 32, F16),
            (8, 8, 128, F32),
            (4, 8, 32, F32),
            (8, 1, 128, BF16),
        ]
    ),
)
def test_resources(gpu, m, q, g, x):
    matrix.check_resources(VARIANT, a_case(m, 49152, q, g, x), gpu)


def test_grids_and_workspace():
    matrix.check_grids(VARIANT)
    matrix.check_grids(VARIANT, m=40)
    for gpu in (A100, H200):
        for rows in (49152, 12288, 4096):
            for q in range(1, 9):
                plan = VARIANT.plan_for(a_case(16, rows, q), gpu)
                of_rows, slices, passes = plan.steps[0].grid
                assert passes == 1
                assert of_rows * slices >= 0.9 * gpu.sms, "multiprocessors are left idle"
                padded = 32 * plan.parameters["WARPS"] * plan.steps[0].arguments[11] * of_rows
                assert plan.workspace["partial"] == 16 * slices * padded * 4
                assert plan.zeroed["arrived"] == of_rows * 4
                ring = plan.parameters["WARPS"] * plan.parameters["STAGE_BYTES"]
                under_way = plan.blocks_per_sm * ring * (plan.parameters["STAGES"] - 1)
                assert under_way >= 33 * 1024, "too few bytes under way for the memory's latency"


@pytest.mark.parametrize(
    ("g", "x", "rows"),
    [(128, F16, 16), (64, BF16, 16), (32, F16, 8), (128, F32, 8), (64, F32, 8), (32, F32, 4)],
)
def test_rows_of_x_that_one_reading_serves(g, x, rows):
    assert VARIANT.batch(a_case(g=g, x=x)) == rows
    for m, passes in ((1, 1), (rows, 1), (rows + 1, 2), (3 * rows, 3)):
        plan = VARIANT.plan_for(a_case(m, g=g, x=x), H200)
        assert plan.steps[0].grid[2] == passes
        assert VARIANT.readings(a_case(m, g=g, x=x)) == passes


@pytest.mark.parametrize(
    ("knobs", "g", "why"),
    [
        ({"warps": 3}, 32, "a power of two up to 16"),
        ({"slice": 100}, 32, "a multiple of 128 columns"),
        ({"turns": -1}, 32, "tiles of 32 rows that a warp takes"),
        ({}, 40, "g=40: half_bits takes groups that are multiples of 32"),
        ({"slice": 1 << 20}, 32, "bytes of shared memory"),
    ],
)
def test_refuses(knobs, g, why):
    assert why in VARIANT.why_not(Case(16, 64, 1 << 20, 3, g, F16, F16, None), H200, knobs)


# ---- on a GPU ----


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns", "q", "g", "m", "dtype"), matrix.GPU_PRODUCTS)
def test_on_a_gpu(rows, columns, q, g, m, dtype):
    packed = weight(rows, columns, q, g, alpha="f16", offset="f16")
    matrix.check_on_gpu(VARIANT, packed, inputs(m, columns, dtype, outliers=True))


@pytest.mark.gpu
@pytest.mark.parametrize("g", [32, 64, 128])
@pytest.mark.parametrize("m", [2, 4, 8, 16, 17, 33])
def test_many_rows_of_x_on_a_gpu(m, g):
    packed = weight(1023, 1056, 3, g, alpha="f16", offset="f16")
    for dtype in (F16, F32):
        matrix.check_on_gpu(VARIANT, packed, inputs(m, 1056, dtype))
