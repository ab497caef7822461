"""OPTQ's baseline: its bits, groups and awkward shapes, on the CPU; the same on a GPU."""

import pytest
import torch
from tests.kernels.gpu import lut_gemv_matrix as matrix
from tests.kernels.gpu.lut_gemv_matrix import F16, F32, check, inputs
from tests.kernels.gpu.unpacked import of_optq
from tests.kernels.weights import uniform_tensor

from lutlab.formats.uniform import PackedUniform
from lutlab.kernels.gpu import variants
from lutlab.kernels.gpu.lut_gemv.optq import VARIANT
from lutlab.kernels.gpu.lut_gemv.variant import H200, Case

SMALL = {"columns": 64, "threads": 64}


def codes(rows, columns, q, g, **options):
    return PackedUniform.pack(uniform_tensor(rows, columns, q, g, **options))


@pytest.mark.parametrize("q", [2, 3, 4])
def test_every_q_and_group(q):
    for rows, columns, g in ((1, 1, -1), (65, 200, 32), (64, 129, -1), (130, 65, 96)):
        check(VARIANT, codes(rows, columns, q, g), inputs(1, columns, F16), knobs=SMALL)


def test_rows_of_x_an_order_and_scales_in_float():
    packed = codes(37, 200, 3, 64, scale="f32", ordered=True)
    check(VARIANT, packed, inputs(3, 200, F16), knobs=SMALL)


def test_the_defaults():
    check(VARIANT, codes(300, 600, 3, 128), inputs(1, 600, F16))


@pytest.mark.parametrize("scale", ["f16", "f32"])
def test_packed_there_and_back(scale):
    packed = codes(37, 205, 3, 32, scale=scale, ordered=True)
    stored = VARIANT.pack(packed)
    back = of_optq(stored)
    assert torch.equal(back.unpack().codes, packed.unpack().codes)
    assert torch.equal(back.dequantize(), packed.dequantize())
    assert stored.buffers["words"].shape == (7, 3, 64)


def a_case(q=3, g=128, x=F16, uniform=True):
    return Case(1, 49152, 12288, q, g, x, F16, None, uniform)


@pytest.mark.parametrize(("gpu", "q"), matrix.in_turn((q,) for q in (2, 3, 4)))
def test_resources(gpu, q):
    matrix.check_resources(VARIANT, a_case(q=q), gpu)


def test_it_is_a_baseline():
    assert variants.variant("optq") is VARIANT
    assert VARIANT not in variants.preferred()


@pytest.mark.parametrize(
    ("case", "knobs", "why"),
    [
        (a_case(uniform=False), {}, "no uniform codes with one scale a group"),
        (a_case(q=5), {}, "tables of pairs of 2 to 4 bits"),
        (a_case(x=F32), {}, "convert x to float16"),
        (a_case(g=40), {}, "g=40"),
        (a_case(), {"threads": 100}, "a power of two"),
        (a_case(), {"columns": 40}, "a multiple of 32 columns"),
    ],
)
def test_refuses(case, knobs, why):
    assert why in VARIANT.why_not(case, H200, knobs)


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns", "q", "g", "m"), matrix.GPU_CASES)
def test_on_a_gpu(rows, columns, q, g, m):
    if q in (2, 3, 4):
        matrix.check_on_gpu(VARIANT, codes(rows, columns, q, g), inputs(m, columns, F16))
