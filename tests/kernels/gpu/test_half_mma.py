"""Tensor cores on halves: the host's twin, and a GPU, do what the PTX ISA draws for mma.m16n8k16, and cut sums off."""

import shutil

import numpy as np
import pytest
import torch
from tests.kernels.gpu import cuda_on_host

from lutlab.kernels.codegen import cuda
from lutlab.kernels.gpu.lut_gemv import launcher

KERNEL = """
#include "lut_gemv/half_mma.cuh"
extern "C" __global__ void multiply(const unsigned *a, const unsigned *b, const float4 *c, float4 *d)
{
    Operands of;
    for (int i = 0; i < 4; i++) of.a[i] = a[4 * threadIdx.x + i];
    for (int i = 0; i < 2; i++) of.b[i] = b[2 * threadIdx.x + i];
    d[threadIdx.x] = multiply_add(of, c[threadIdx.x]);
}
"""


@pytest.fixture
def text(tmp_path):
    (tmp_path / "lut_gemv").mkdir()
    for name in ("common.cuh", "lut_gemv/half_mma.cuh"):
        shutil.copy(cuda.ROOT / name, tmp_path / name)
    (tmp_path / "multiply.cu").write_text(KERNEL)
    return cuda.source("multiply.cu", {}, tmp_path)


def fragments(a, b, c):
    """a [16, 16], b [16, 8] float16, c [16, 8] float32 as each lane has them (PTX ISA, fragments of m16n8k16)."""
    lanes = np.arange(32)
    row, two = lanes // 4, lanes % 4 * 2
    of_a = [a[row + 8 * (i // 2 % 2), two + i % 2 + 8 * (i // 4)] for i in range(8)]
    of_b = [b[two + i % 2 + 8 * (i // 2), row] for i in range(4)]
    of_c = [c[row + 8 * (i // 2), two + i % 2] for i in range(4)]
    return tuple(torch.from_numpy(np.stack(of, 1).copy()) for of in (of_a, of_b, of_c))


def matrix(d):
    """[16, 8] from each lane's four floats."""
    out = np.zeros((16, 8), np.float32)
    for lane, values in enumerate(d.numpy()):
        for i, value in enumerate(values):
            out[lane // 4 + 8 * (i // 2), lane % 4 * 2 + i % 2] = value
    return out


def on_the_host(text, a, b, c):
    kernels, d = cuda_on_host.build(text, ("multiply",)), torch.full((32, 4), torch.nan)
    cuda_on_host.launch(
        kernels,
        "multiply",
        grid=(1, 1, 1),
        block=(32, 1, 1),
        shared=0,
        arguments=[*fragments(a, b, c), d],
    )
    return matrix(d)


def random(shape, dtype, seed):
    return np.random.default_rng(seed).integers(-64, 64, shape).astype(dtype)


A, B, C = (
    random((16, 16), np.float16, 0),
    random((16, 8), np.float16, 1),
    random((16, 8), np.float32, 2),
)


def test_integers_are_exact(text):
    assert np.array_equal(on_the_host(text, A, B, C), A.astype(float) @ B + C)


def test_sums_are_cut_off_below_the_largest(text):
    """As the model of microsoft/MMA-Sim has it for sm_80: 24 bits behind the largest, toward zero, k = 0 .. 7 first."""
    a, b, c = (
        np.zeros((16, 16), np.float16),
        np.zeros((16, 8), np.float16),
        np.zeros((16, 8), np.float32),
    )
    a[0, :2], b[:2, 0] = (1, 2**-12), (1, 2**-13)  # 1 + 2^-25
    a[1, :2], b[:2, 1] = (1, -(2**-12)), (1, 2**-12)  # 1 - 2^-24: still there, and all of 24 bits
    # A subnormal counts as 2^-14: less is left of c.
    a[2, 0], b[0, 2], c[2, 2] = 2**-24, 2**14, 1.5 * 2**-30
    # 2^-24 is lost before the 1 makes it 2.
    a[3, [0, 8]], b[[0, 8], 3], c[3, 3] = (2**-12, 1), (2**-12, 1), 1
    d = on_the_host(text, a, b, c)
    assert d[0, 0] == 1
    assert d[1, 1] == 1 - 2**-24
    assert d[2, 2] == 2**-10
    assert d[3, 3] == 2


def test_what_is_not_finite_stays_in_its_row_and_column(text):
    b = B.copy()
    b[5, 3] = np.nan
    d = on_the_host(text, A, b, C)
    assert np.isnan(d[:, 3]).all()
    assert np.isfinite(np.delete(d, 3, 1)).all()


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90"])
def test_compiles(text, arch):
    assert cuda.build(text, "test-half-mma", arch).resources["multiply"].spill_bytes == 0


@pytest.mark.gpu
def test_on_a_gpu(text):
    """Integers are exact, and a subnormal is exact where nothing larger is added; the rest is not promised."""
    device = launcher.device_of("cuda")
    gpu = launcher.gpu(device)
    built = cuda.build(text, "test-half-mma", gpu.arch)
    kernel = launcher.load_kernel(str(built.path), "multiply", device, gpu)
    for a, c in ((A, C), ((A * np.float16(2.0**-24)).astype(np.float16), 0 * C)):
        d = torch.full((32, 4), torch.nan, device=device)
        buffers = (*(part.to(device) for part in fragments(a, B, c)), d)
        with launcher.on_torch_stream(device):
            kernel((1, 1, 1), (32, 1, 1), tuple(np.uint64(t.data_ptr()) for t in buffers))
        assert np.array_equal(matrix(d.cpu()), (a.astype(float) @ B + c).astype(np.float32))
