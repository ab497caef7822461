"""bit_planes: tiles and slices, planes of x by one launch or two, how exact it is. See test_variants.py."""

import itertools

import pytest
import torch
from tests.kernels.checks import BF16, F16, inputs, relative_error
from tests.kernels.gpu import lut_gemv_matrix as matrix
from tests.kernels.gpu.lut_gemv_matrix import weight

from lutlab.kernels.gpu.lut_gemv.variant import A100, H200, Case

VARIANT, product, check = matrix.tried("bit_planes")


def test_slices_and_a_pipe_that_goes_round():
    packed, x = weight(40, 1700, 2, 256, alpha="f32", offset="f32"), inputs(1, 1700)
    for slices in (1, 2, 5, 99):
        check(packed, x, slices=slices)
    check(packed, x, stages=3, warps=1)


@pytest.mark.parametrize("tiles", [2, 4])
def test_several_tiles_of_rows(tiles):
    for rows in (1, 33, 150):
        check(weight(rows, 200, 1, 128, offset="f16"), inputs(1, 200, F16), tiles=tiles)


@pytest.mark.parametrize("g", [32, 160])
def test_planes_of_x_by_a_launch_of_their_own(g):
    packed, x = weight(70, 200, 3, g, offset="f16"), inputs(3, 200, F16)
    assert torch.equal(check(packed, x, launches=2), product(packed, x))


def test_integers_give_integers():
    """Where unit is 1 and alpha is 1, nothing is rounded."""
    packed = weight(64, 384, 2, 128, alpha="f32", offset="f32")
    packed.alpha.copy_(packed.alpha.sign())
    packed.offset.copy_(packed.offset.round())
    x = torch.randint(-2000, 2000, (1, 384), generator=torch.Generator().manual_seed(0)).float()
    x[0, [5, 200, 300]] = torch.tensor([32767.0, -32767.0, 32767.0])
    assert torch.equal(product(packed, x, x_bits=16).double(), matrix.exact(packed, x))


@pytest.mark.parametrize(
    ("x_bits", "gaussian", "outliers"), [(16, 5e-5, 1.5e-4), (20, 1e-5, 1e-5), (24, 3e-7, 1e-6)]
)
def test_error_before_y_is_rounded(x_bits, gaussian, outliers):
    """The limits of the issue; the bound of the module, 2.7e-5 for 16 bits of Gaussian x, from below as well."""
    packed = weight(96, 2048, 3, 128, offset="f16")

    def error(x):
        return relative_error(product(packed, x, x_bits=x_bits), x, packed.dequantize())

    assert error(inputs(1, 2048)) <= gaussian
    assert x_bits != 16 or 2e-5 < error(inputs(1, 2048)) < 3.5e-5
    assert error(inputs(1, 2048, outliers=True)) <= outliers


def test_bfloat16_takes_the_planes_of_half():
    """Its 8 bits are far above the 16 of an integer: y is wrong by its own rounding, outliers or not."""
    case = Case(1, 70, 300, 2, 64, BF16, F16, None)
    assert VARIANT.plan_for(case, H200).parameters["X_BITS"] == 16
    packed = weight(200, 1024, 3, 128, offset="f16")
    for outliers in (False, True):
        x = inputs(1, 1024, BF16, outliers=outliers)
        rounded = matrix.error(matrix.exact(packed, x).to(BF16), packed, x)
        assert matrix.error(check(packed, x), packed, x) == pytest.approx(rounded, rel=0.02)


def test_activations_too_small_for_a_unit_of_their_own():
    """As the module says: in the steps of a block whose largest is 1e-30, each wrong by half a step at most."""
    packed = weight(40, 300, 2, 128, alpha="f32", offset="f32")
    x = inputs(1, 300).clamp(-1, 1) * 1e-34
    wrong = product(packed, x) - matrix.exact(packed, x)
    half_a_step = 1e-30 / (2**23 - 1) / 2
    assert (wrong.abs() <= half_a_step * packed.dequantize().double().abs().sum(1)).all()
    assert not product(packed, x * 0).any()


def test_grids_and_workspace():
    for m, batch in ((2, 2), (4, 4), (5, 3)):
        case = Case(m, 70, 300, 2, 64, F16, F16, None)
        assert VARIANT.plan_for(case, H200).parameters["BATCH"] == batch
    shapes = (49152, 12288), (12288, 12288), (4096, 4096), (2048, 8192)
    for gpu, (rows, columns), q in itertools.product((A100, H200), shapes, range(1, 9)):
        plan = VARIANT.plan_for(Case(1, rows, columns, q, 128, F16, F16, F16), gpu)
        tiles, slices, _ = plan.steps[-1].grid
        assert tiles * slices >= 0.9 * gpu.sms, "multiprocessors are left idle"
        assert plan.workspace["partial"] == slices * rows * 4
        assert plan.zeroed["arrived"] == tiles * 4
        under_way = plan.blocks_per_sm * plan.steps[-1].shared
        assert under_way >= 64 * 1024, "too few bytes under way for the memory's latency"
