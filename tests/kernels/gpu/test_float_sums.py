"""float_sums: every q, mu, group size, dtype and awkward shape, on the CPU; the same on a GPU."""

import pytest
from tests.kernels.gpu import lut_gemv_matrix as matrix
from tests.kernels.gpu.cuda_on_host import needs_nvrtc
from tests.kernels.gpu.lut_gemv_matrix import BF16, F16, F32, check, inputs, weight

from lutlab.kernels.gpu.lut_gemv.float_sums import VARIANT
from lutlab.kernels.gpu.lut_gemv.variant import A100, H200, Case

SMALL = {"slice": 64, "rows": 128, "threads": 32}


@pytest.mark.parametrize("q", range(1, 9))
def test_every_q(q):
    """Each with a type of x and a shape in turn: neither changes what a plane is."""
    dtype = (F16, BF16, F32)[q % 3]
    rows, columns, g = ((70, 200, 32), (128, 64, -1), (129, 65, 96))[q // 3]
    packed = weight(rows, columns, q, g, alpha="f16", offset="f16")
    check(VARIANT, packed, inputs(1, columns, dtype), knobs=SMALL)


@pytest.mark.parametrize("dtype", [F16, F32], ids=["half", "float"])
@pytest.mark.parametrize("mu", [1, 2, 4])
def test_every_mu(mu, dtype):
    packed = weight(70, 200, 3, 64, alpha="f16", offset="f16")
    check(VARIANT, packed, inputs(1, 200, dtype), knobs=SMALL | {"mu": mu})


def test_rows_columns_and_groups_around_tiles_and_slices():
    for rows in (1, 3, 127, 128, 129, 260):
        for columns, g in ((1, -1), (31, 32), (33, 32), (64, 128), (65, 64), (129, -1), (300, 160)):
            packed = weight(rows, columns, 2, g, alpha="f32", offset="f32")
            check(VARIANT, packed, inputs(1, columns, F32), knobs=SMALL)


def test_a_block_that_passes_several_times_over_its_rows():
    packed = weight(700, 130, 2, 32, alpha="f16", offset="f16")
    check(VARIANT, packed, inputs(2, 130, F16), knobs=SMALL | {"rows": 384})


def test_several_rows_of_x_an_order_and_no_offset():
    packed = weight(37, 200, 3, 32, alpha="f32", ordered=True)
    for dtype in (F16, BF16):
        check(VARIANT, packed, inputs(3, 200, dtype), knobs=SMALL)


def test_the_defaults():
    packed = weight(300, 1100, 3, 128, alpha="f16", offset="f16")
    check(VARIANT, packed, inputs(1, 1100, F16))


@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0, 8191.0])
def test_tables_in_half_take_tiny_and_huge_activations(size):
    """Where the papers' tables lose small x and overflow from x = 8192 on."""
    packed = weight(64, 256, 1, 32, alpha="f32")
    object.__setattr__(packed, "alpha", packed.alpha / 1000)
    x = inputs(1, 256, F32).clamp(-1, 1) * size
    y = check_half_tables(packed, x)
    assert matrix.error(y, packed, x) <= matrix.HALF


@pytest.mark.parametrize("table", ["half", "float"])
def test_the_range_of_bfloat16(table):
    dtypes = (BF16,) if table == "half" else (BF16, F32)
    matrix.check_range(VARIANT, dtypes=dtypes, knobs=SMALL | {"table": table})


def check_half_tables(packed, x):
    from tests.kernels.gpu import plans

    return plans.product(VARIANT, packed, x, knobs=SMALL | {"table": "half"})


def test_outliers():
    packed = weight(200, 1024, 3, 128, alpha="f16", offset="f16")
    for dtype in (F16, BF16):
        check(VARIANT, packed, inputs(1, 1024, dtype, outliers=True))


def test_workspace_serves_many_launches():
    from tests.kernels.gpu import plans

    packed = weight(130, 300, 3, 64, alpha="f16", offset="f16")
    workspace, x = {}, inputs(1, 300, F16)
    results = [
        plans.product(VARIANT, packed, x, knobs=SMALL, workspace=workspace, reverse=reverse)
        for reverse in (False, True, False)
    ]
    assert sorted(workspace) == ["arrived", "partial"]
    assert all(result.equal(results[0]) for result in results)


@needs_nvrtc
@pytest.mark.parametrize(
    ("gpu", "rows", "q", "dtype"),
    matrix.in_turn((*shape, x) for shape in ((49152, 3), (4096, 8)) for x in (F16, BF16, F32)),
)
def test_resources(gpu, rows, q, dtype):
    matrix.check_resources(VARIANT, Case(1, rows, 4096, q, 128, dtype, F16, F16), gpu)


def test_grids_and_workspace():
    matrix.check_grids(VARIANT)
    for gpu in (A100, H200):
        for q in (2, 3, 4):
            plan = VARIANT.plan_for(Case(1, 49152, 12288, q, 128, F16, F16, F16), gpu)
            row_blocks, slices, _ = plan.steps[0].grid
            assert row_blocks * slices >= gpu.sms
            assert plan.workspace["partial"].bytes == slices * 49152 * 4
            assert plan.workspace["arrived"].bytes == row_blocks * 4


@pytest.mark.parametrize(
    ("knobs", "g", "why"),
    [
        ({"mu": 3}, 32, "mu is 1, 2, 4 or 8; paper takes any"),
        ({"slice": 40}, 32, "multiple of 32 columns"),
        ({"rows": 6}, 32, "multiple of 4 rows"),
        ({"threads": 100}, 32, "a power of two"),
        ({"table": "int"}, 32, "half or float"),
        ({}, 40, "g=40: float_sums takes groups that are multiples of 32"),
        ({"slice": 4096}, 32, "524288 bytes of shared memory"),
    ],
)
def test_refuses(knobs, g, why):
    assert why in VARIANT.why_not(Case(1, 64, 4096, 3, g, F16, F16, None), H200, knobs)


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns", "q", "g", "m", "dtype"), matrix.GPU_PRODUCTS)
def test_on_a_gpu(rows, columns, q, g, m, dtype):
    packed = weight(rows, columns, q, g, alpha="f16", offset="f16")
    matrix.check_on_gpu(VARIANT, packed, inputs(m, columns, dtype, outliers=True))
