"""half_bits: how exact it is, units of blocks of x, turns, rows of x that share a reading. See test_variants.py."""

import pytest
import torch
from tests.kernels.gpu import lut_gemv_matrix as matrix
from tests.kernels.gpu import plans
from tests.kernels.gpu.lut_gemv_matrix import BF16, F16, F32, check, inputs, weight
from tests.kernels.weights import relative_error

from lutlab.kernels.gpu.lut_gemv.half_bits import VARIANT
from lutlab.kernels.gpu.lut_gemv.variant import A100, H200, Case

SMALL = {"slice": 256, "warps": 2, "turns": 2}


def test_turns_change_nothing():
    packed, x = weight(300, 600, 2, 128, alpha="f32", offset="f32"), inputs(1, 600, F32)
    results = [check(VARIANT, packed, x, knobs=SMALL | {"turns": turns}) for turns in (1, 2, 8)]
    assert all(torch.equal(result, results[0]) for result in results)


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
    """Of half x, whose second halves are zero, and of float x: the numbers of the module, from below as well."""
    packed = weight(96, 2048, 3, g, alpha="f16", offset="f16")
    for mean, outliers in ((0, False), (0, True), (10, False)):
        wide = inputs(1, 2048, F32, outliers=outliers) + mean
        for x in (wide, wide.half().float()):
            y = plans.product(VARIANT, packed, x, knobs=SMALL | {"slice": 2048})
            assert 1e-8 < relative_error(y, x, packed.dequantize()) < 4e-7


def test_a_mean_in_half():
    packed = weight(200, 1024, 3, 128, alpha="f16", offset="f16")
    x = inputs(2, 1024, F16) + 10  # y is far larger than sums of random signs
    y = plans.product(VARIANT, packed, x, knobs=SMALL)
    assert relative_error(y, x, packed.dequantize()) <= matrix.HALF


def test_x_that_is_not_aligned():
    """A row of an odd number of columns, and a tensor that begins in the middle of another."""
    packed, x = weight(40, 301, 2, 128, alpha="f16"), inputs(1, 904, F16)
    check(VARIANT, packed, x[0, :903].view(3, 301), knobs=SMALL)


# ---- plans ----


def a_case(m=1, rows=49152, q=3, g=128, x=F16):
    return Case(m, rows, 12288, q, g, x, F16, F16)


def test_grids_and_workspace():
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
