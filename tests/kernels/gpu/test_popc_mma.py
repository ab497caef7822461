"""Fragments of the binary tensor cores: the host's twin, and a GPU, do what the PTX ISA draws for mma.m16n8k128."""

import shutil

import numpy as np
import pytest
import torch
from tests.kernels.gpu import cuda_on_host

from lutlab.kernels.codegen import cuda
from lutlab.kernels.gpu.lut_gemv import launcher

KERNEL = """
#include "common.cuh"
extern "C" __global__ void multiply(const word_t *a, const word_t *b, int *d)
{
    const int4 mine = popc_mma(a[2 * threadIdx.x], a[2 * threadIdx.x + 1], b[threadIdx.x]);
    int *at = d + 4 * threadIdx.x;
    at[0] = mine.x; at[1] = mine.y; at[2] = mine.z; at[3] = mine.w;
}
"""


@pytest.fixture
def text(tmp_path):
    shutil.copy(cuda.ROOT / "common.cuh", tmp_path)
    (tmp_path / "multiply.cu").write_text(KERNEL)
    return cuda.source("multiply.cu", {}, tmp_path)


@pytest.fixture(params=[0.5, 1.0], ids=["random", "ones"])
def bits(request):
    draw = np.random.default_rng(0).random
    return draw((16, 128)) < request.param, draw((128, 8)) < request.param


def fragments(a, b):
    """The words of each lane, bit after bit as the PTX ISA has it (9.7.14.5, m16n8k128): groupID = lane / 4."""
    words_a, words_b = np.zeros((32, 2), np.uint32), np.zeros(32, np.uint32)
    for lane in range(32):
        group, in_group = lane // 4, lane % 4
        for i in range(64):  # a_i: row groupID for i < 32, else groupID + 8
            row, column = group + (8 if i >= 32 else 0), in_group * 32 + i % 32
            words_a[lane, i // 32] |= np.uint32(int(a[row, column]) << i % 32)
        for i in range(32):  # b_i
            words_b[lane] |= np.uint32(int(b[in_group * 32 + i, group]) << i)
    return torch.from_numpy(words_a.view(np.int32)), torch.from_numpy(words_b.view(np.int32))


def matrix(d):
    """C from each lane's c_0 .. c_3: row groupID or groupID + 8, column 2 (lane % 4) + i % 2."""
    out = np.zeros((16, 8), int)
    for lane, values in enumerate(d.numpy()):
        for i, value in enumerate(values):
            out[lane // 4 + (8 if i >= 2 else 0), 2 * (lane % 4) + i % 2] = value
    return out


def test_on_the_host(text, bits):
    a, b = fragments(*bits)
    d = torch.full((32, 4), -1, dtype=torch.int32)
    kernels = cuda_on_host.build(text, ("multiply",))
    cuda_on_host.launch(kernels, "multiply", grid=(1, 1, 1), block=(32, 1, 1), arguments=[a, b, d])
    assert (matrix(d) == bits[0].astype(int) @ bits[1].astype(int)).all()


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90"])
def test_compiles(text, arch):
    assert cuda.build(text, "test-popc-mma", arch).resources["multiply"].spill_bytes == 0


@pytest.mark.gpu
def test_on_a_gpu(text, bits):
    device = launcher.device_of("cuda")
    built = cuda.build(text, "test-popc-mma", launcher.gpu(device).arch)
    kernel = launcher.load_kernel(str(built.path), "multiply", device, launcher.gpu(device))
    a, b = (words.to(device) for words in fragments(*bits))
    d = torch.full((32, 4), -1, dtype=torch.int32, device=device)
    with launcher.on_torch_stream(device):
        kernel((1, 1, 1), (32, 1, 1), tuple(np.uint64(t.data_ptr()) for t in (a, b, d)))
    assert (matrix(d.cpu()) == bits[0].astype(int) @ bits[1].astype(int)).all()
