"""paper, the papers' kernel: every mu, q, group size, dtype and awkward shape, on the CPU; the same on a GPU."""

import pytest
import torch
from tests.kernels.gpu import lut_gemv_matrix as matrix
from tests.kernels.gpu.cuda_on_host import needs_nvrtc
from tests.kernels.gpu.lut_gemv_matrix import F16, F32, check, inputs, weight

from lutlab.kernels.gpu.lut_gemv.paper import VARIANT
from lutlab.kernels.gpu.lut_gemv.variant import GPUS, H200, Case

SMALL = {"luts": 4, "rows": 64, "threads": 32}


@pytest.mark.parametrize("dtype", [F16, F32], ids=["half", "float"])
@pytest.mark.parametrize("mu", range(1, 9))
def test_every_mu_and_q(mu, dtype):
    """q is an argument of the kernel: the eight of them cost one compilation."""
    for q in range(1, 9):
        g = (32, 64, -1)[q % 3] if mu < 8 else (64, -1)[q % 2]
        packed = weight(70, 200, q, g, alpha="f16", offset="f16")
        check(VARIANT, packed, inputs(1, 200, dtype), knobs=SMALL | {"mu": mu})


@pytest.mark.parametrize("mu", [3, 8])
@pytest.mark.parametrize("g", [32, 40, 96, 24, -1])
def test_groups_that_tiles_do_not_fit(mu, g):
    """The official kernel is wrong where a tile is longer than a group, or K no multiple of it."""
    for columns in (33, 40, 130):
        packed = weight(35, columns, 3, g, alpha="f32", offset="f32")
        check(VARIANT, packed, inputs(1, columns, F32), knobs=SMALL | {"mu": mu, "luts": 3})


def test_rows_and_columns_around_a_tile():
    for rows in (1, 2, 31, 33, 63, 64, 65, 129):
        for columns in (1, 31, 32, 33, 64, 65):
            packed = weight(rows, columns, 2, 64, alpha="f16")
            check(VARIANT, packed, inputs(1, columns, F16), knobs=SMALL | {"mu": 8})


def test_a_block_that_passes_several_times_over_its_rows():
    packed = weight(300, 64, 2, 32, alpha="f16", offset="f16")
    check(VARIANT, packed, inputs(1, 64, F16), knobs=SMALL | {"rows": 200})


@pytest.mark.parametrize("dtype", [F16, F32], ids=["half", "float"])
def test_several_rows_of_x_an_order_and_wide_scales(dtype):
    packed = weight(37, 100, 3, 32, alpha="f32", offset="f32", ordered=True)
    check(VARIANT, packed, inputs(3, 100, dtype), knobs=SMALL)


def test_the_defaults_and_outliers():
    packed = weight(300, 512, 3, 128, alpha="f16", offset="f16")
    check(VARIANT, packed, inputs(1, 512, F16, outliers=True))


@needs_nvrtc
@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.arch)
@pytest.mark.parametrize("dtype", [F16, F32], ids=["half", "float"])
def test_resources(gpu, dtype):
    matrix.check_resources(VARIANT, Case(1, 4096, 4096, 3, 128, dtype, F16, F16), gpu)


def test_grids():
    matrix.check_grids(VARIANT)
    case = Case(1, 12288, 12288, 3, -1, F16, F16, None)
    (step, *_) = VARIANT.plan_for(case, H200, {"luts": 4}).steps
    assert step.grid == (6, 384, 1)  # ceil(N / t_h), K / (l mu): LUT-GEMM v3, section 3.3


@pytest.mark.parametrize(
    ("knobs", "why"),
    [
        ({"mu": 9}, "mu is 1 to 8"),
        ({"luts": 0}, "at least one table"),
        ({"rows": 3}, "even number of rows"),
        ({"threads": 48}, "a power of two"),
        ({"luts": 128}, "more than 48 KB"),
    ],
)
def test_refuses(knobs, why):
    assert why in VARIANT.why_not(Case(1, 64, 4096, 3, 4096, F16, F16, None), H200, knobs)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [F16, F32], ids=["half", "float"])
@pytest.mark.parametrize(("rows", "columns", "q", "g", "m"), matrix.GPU_CASES)
def test_on_a_gpu(rows, columns, q, g, m, dtype):
    packed = weight(rows, columns, q, g, alpha="f16", offset="f16")
    matrix.check_on_gpu(VARIANT, packed, inputs(m, columns, dtype, outliers=True))


def test_sums_of_a_group_do_not_leak_into_the_next():
    """One column of ones: y is alpha of its group, whatever stands elsewhere."""
    packed = weight(40, 96, 1, 32, alpha="f32")
    for k in (0, 31, 32, 95):
        x = torch.zeros(1, 96)
        x[0, k] = 1.0
        y = check(VARIANT, packed, x, knobs=SMALL)
        torch.testing.assert_close(y[0].abs(), packed.alpha[0, :, k // 32].abs(), rtol=0, atol=0)
