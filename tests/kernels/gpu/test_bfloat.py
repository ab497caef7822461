"""bfloat_t, which CUDA's headers have no part in: read exactly, and rounded to as torch rounds; and units of x."""

import math
import shutil

import numpy as np
import pytest
import torch
from tests.kernels.gpu import cuda_on_host

from lutlab.kernels.codegen import cuda
from lutlab.kernels.gpu.lut_gemv import launcher

KERNEL = """
#include "common.cuh"
extern "C" __global__ void convert(const bfloat_t *narrow, float *widened, const float *wide, bfloat_t *rounded)
{
    const int i = blockIdx.x * 256 + threadIdx.x;
    widened[i] = to_float(narrow[i]);
    rounded[i] = round_to(wide[i], bfloat_t());
}
extern "C" __global__ void units(const float *largest, float *units, int bits)
{
    units[threadIdx.x] = unit_below(largest[threadIdx.x], bits);
}
"""


@pytest.fixture
def text(tmp_path):
    shutil.copy(cuda.ROOT / "common.cuh", tmp_path)
    (tmp_path / "bfloat.cu").write_text(KERNEL)
    return cuda.source("bfloat.cu", {}, tmp_path)


def every_bfloat16():
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)


def floats():
    """Of all exponents, ties and their neighbours; inf and nan with few and with all bits."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (2**16,), generator=generator)
    bits[: 2**14] = bits[: 2**14] & ~0xFFFF | 0x8000
    bits[2**14 : 2**15] = bits[2**14 : 2**15] & ~0xFFFF | 0x7FFF
    bits[:6] = torch.tensor([0x7F800000, -0x800000, 0x7FC00000, -1, 0x7F800001, 0x7F7FFFFF])
    return bits.to(torch.int32).view(torch.float32)


def check(widened, rounded):
    assert torch.equal(widened.nan_to_num(7.0), every_bfloat16().float().nan_to_num(7.0))
    assert torch.equal(widened.isnan(), every_bfloat16().isnan())
    wide = floats()
    same = rounded.view(torch.int16) == wide.to(torch.bfloat16).view(torch.int16)
    assert (same | wide.isnan()).all()
    assert torch.equal(rounded.isnan(), wide.isnan())


def test_on_the_host(text):
    widened, rounded = torch.zeros(2**16), torch.zeros(2**16, dtype=torch.bfloat16)
    kernels = cuda_on_host.build(text, ("convert", "units"))
    arguments = [every_bfloat16(), widened, floats(), rounded]
    cuda_on_host.launch(
        kernels, "convert", grid=(256, 1, 1), block=(256, 1, 1), arguments=arguments
    )
    check(widened, rounded)


@pytest.mark.parametrize("bits", [12, 15])
def test_units_bring_the_largest_just_below_a_power_of_two(text, bits):
    exponents = torch.arange(-149.0, 128.0, 13).double()
    largest = torch.cat([2**exponents, 1.75 * 2**exponents, torch.zeros(1).double()]).float()
    units = torch.zeros_like(largest)
    kernels = cuda_on_host.build(text, ("convert", "units"))
    block = (len(largest), 1, 1)
    cuda_on_host.launch(
        kernels, "units", grid=(1, 1, 1), block=block, arguments=[largest, units, bits]
    )
    for value, unit in zip(largest.tolist(), units.tolist(), strict=True):
        assert math.frexp(unit)[0] == 0.5
        assert 1 / unit < 2**127
        least = 2 ** (bits - 1) if value >= 2**-110 else 0
        assert least <= value / unit < 2**bits


@cuda_on_host.needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90"])
def test_compiles(text, arch):
    assert cuda.build(text, "test-bfloat", arch).resources["convert"].spill_bytes == 0


@pytest.mark.gpu
def test_on_a_gpu(text):
    device = launcher.device_of("cuda")
    here = launcher.gpu(device)
    built = cuda.build(text, "test-bfloat", here.arch)
    kernel = launcher.load_kernel(str(built.path), "convert", device, here)
    widened = torch.zeros(2**16, device=device)
    rounded = torch.zeros(2**16, dtype=torch.bfloat16, device=device)
    tensors = (every_bfloat16().to(device), widened, floats().to(device), rounded)
    with launcher.on_torch_stream(device):
        kernel((256, 1, 1), (256, 1, 1), tuple(np.uint64(t.data_ptr()) for t in tensors))
    check(widened.cpu(), rounded.cpu())
