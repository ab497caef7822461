"""paper, the papers' kernel: every mu, tiles that do not fit a group or their rows. See test_variants.py."""

import pytest
import torch
from tests.kernels.checks import F16, F32, inputs
from tests.kernels.gpu import lut_gemv_matrix as matrix
from tests.kernels.gpu.lut_gemv_matrix import weight

from lutlab.kernels.gpu.lut_gemv.variant import H200, Case

VARIANT, _, check = matrix.tried("paper")


@pytest.mark.parametrize("mu", range(1, 9))
def test_every_mu(mu):
    """q is an argument of the kernel: several cost one compilation."""
    for q, g in ((mu, 32), (9 - mu, 64), (3, -1)):
        check(weight(70, 200, q, g, offset="f16"), inputs(1, 200, (F16, F32)[mu % 2]), mu=mu)


@pytest.mark.parametrize("mu", [3, 8])
@pytest.mark.parametrize("g", [32, 40, 96, 24, -1])
def test_groups_that_tiles_do_not_fit(mu, g):
    """The official kernel is wrong where a tile is longer than a group, or K no multiple of it."""
    for columns in (33, 40, 130):
        packed = weight(35, columns, 3, g, alpha="f32", offset="f32")
        check(packed, inputs(1, columns), mu=mu, luts=3)


def test_tables_and_rows_of_a_block_are_the_papers():
    case = Case(1, 12288, 12288, 3, -1, F16, F16, None)
    (step, *_) = VARIANT.plan_for(case, H200, {"luts": 4}).steps
    assert step.grid == (6, 384, 1)  # ceil(N / t_h), K / (l mu): LUT-GEMM v3, section 3.3


def test_a_block_that_passes_several_times_over_its_rows():
    check(weight(300, 64, 2, 32, offset="f16"), inputs(1, 64, F16), rows=200)


def test_sums_of_a_group_do_not_leak_into_the_next():
    """One column of ones: y is alpha of its group, whatever stands elsewhere."""
    packed = weight(40, 96, 1, 32, alpha="f32")
    for k in (0, 31, 32, 95):
        y = check(packed, torch.eye(96)[k : k + 1])
        assert torch.equal(y[0].abs(), packed.alpha[0, :, k // 32].abs())
