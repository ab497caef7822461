"""What kernels share, on the CPU and on a GPU: bfloat16, units of x, fragments of tensor cores by the PTX ISA."""

import math
import shutil

import numpy as np
import pytest
import torch
from tests.kernels.gpu import cuda_on_host

from lutlab.kernels.codegen import cuda
from lutlab.kernels.gpu.lut_gemv import launcher

# Texts of kernels of a test's own.
KERNELS = {
    "bfloat": """
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
""",
    "popc": """
#include "common.cuh"
extern "C" __global__ void multiply(const word_t *a, const word_t *b, int *d)
{
    const int4 mine = popc_mma(a[2 * threadIdx.x], a[2 * threadIdx.x + 1], b[threadIdx.x]);
    int *at = d + 4 * threadIdx.x;
    at[0] = mine.x; at[1] = mine.y; at[2] = mine.z; at[3] = mine.w;
}
""",
    "half": """
#include "lut_gemv/half_mma.cuh"
extern "C" __global__ void multiply(const unsigned *a, const unsigned *b, const float4 *c, float4 *d)
{
    Operands mine;
    for (int i = 0; i < 4; i++) mine.a[i] = a[4 * threadIdx.x + i];
    for (int i = 0; i < 2; i++) mine.b[i] = b[2 * threadIdx.x + i];
    d[threadIdx.x] = multiply_add(mine, c[threadIdx.x]);
}
""",
}
FUNCTIONS = {"bfloat": ("convert", "units"), "popc": ("multiply",), "half": ("multiply",)}


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Name -> the whole source."""
    folder = tmp_path_factory.mktemp("sources")
    (folder / "lut_gemv").mkdir()
    for name in ("common.cuh", "lut_gemv/half_mma.cuh"):
        shutil.copy(cuda.ROOT / name, folder / name)
    for name, text in KERNELS.items():
        (folder / f"{name}.cu").write_text(text)
    return {name: cuda.source(f"{name}.cu", {}, folder) for name in KERNELS}


@pytest.fixture(params=["host", pytest.param("gpu", marks=pytest.mark.gpu)])
def launch(request, texts):
    """(name, function, *arguments): launch a kernel, on the CPU or on a GPU; tensors change in place."""

    def on_the_host(name, function, *arguments, grid=1, block=32):
        kernels = cuda_on_host.build(texts[name], FUNCTIONS[name])
        cuda_on_host.launch(kernels, function, *arguments, grid=grid, block=block)

    def on_a_gpu(name, function, *arguments, grid=1, block=32):
        device = launcher.device_of("cuda")
        here = launcher.gpu(device)
        built = cuda.build(texts[name], f"test-{name}", here.arch)
        kernel = launcher.load_kernel(str(built.path), function, device, here)
        there = [a.to(device) if isinstance(a, torch.Tensor) else a for a in arguments]
        given = [np.uint64(a.data_ptr()) if torch.is_tensor(a) else np.int32(a) for a in there]
        with launcher.on_torch_stream(device):
            kernel((grid, 1, 1), (block, 1, 1), tuple(given))
        for argument, after in zip(arguments, there, strict=True):
            if isinstance(argument, torch.Tensor):
                argument.copy_(after)

    return {"host": on_the_host, "gpu": on_a_gpu}[request.param]


@cuda_on_host.needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90"])
@pytest.mark.parametrize("name", KERNELS)
def test_compiles(texts, name, arch):
    resources = cuda.build(texts[name], f"test-{name}", arch).resources
    assert all(resources[function].spill_bytes == 0 for function in FUNCTIONS[name])


def floats():
    """Of all exponents, ties and their neighbours; inf and nan with few and with all bits."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (2**16,), generator=generator)
    bits[: 2**14] = bits[: 2**14] & ~0xFFFF | 0x8000
    bits[2**14 : 2**15] = bits[2**14 : 2**15] & ~0xFFFF | 0x7FFF
    bits[:6] = torch.tensor([0x7F800000, -0x800000, 0x7FC00000, -1, 0x7F800001, 0x7F7FFFFF])
    return bits.to(torch.int32).view(torch.float32)


def test_bfloat16_is_read_exactly_and_rounded_as_torch_does(launch):
    narrow = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)  # every one
    wide, widened = floats(), torch.zeros(2**16)
    rounded = torch.zeros(2**16, dtype=torch.bfloat16)
    launch("bfloat", "convert", narrow, widened, wide, rounded, grid=256, block=256)
    torch.testing.assert_close(widened, narrow.float(), rtol=0, atol=0, equal_nan=True)
    same = rounded.view(torch.int16) == wide.to(torch.bfloat16).view(torch.int16)
    assert torch.equal(rounded.isnan(), wide.isnan())
    assert (same | wide.isnan()).all()


@pytest.mark.parametrize("bits", [12, 15])
def test_units_bring_the_largest_just_below_a_power_of_two(launch, bits):
    exponents = torch.arange(-149.0, 128.0, 13).double()
    largest = torch.cat([2**exponents, 1.75 * 2**exponents, torch.zeros(1).double()]).float()
    units = torch.zeros_like(largest)
    launch("bfloat", "units", largest, units, bits, block=len(largest))
    for value, unit in zip(largest.tolist(), units.tolist(), strict=True):
        assert math.frexp(unit)[0] == 0.5
        assert 1 / unit < 2**127
        least = 2 ** (bits - 1) if value >= 2**-110 else 0
        assert least <= value / unit < 2**bits


def of_lanes(d):
    """[16, 8] from each lane's c_0 .. c_3: row groupID or groupID + 8, column 2 (lane % 4) + i % 2."""
    return d.numpy().reshape(8, 4, 2, 2).transpose(2, 0, 1, 3).reshape(16, 8)


def words_of(a, b):
    """The words of each lane, bit after bit as the PTX ISA has it (9.7.14.5, m16n8k128): groupID = lane / 4."""
    lanes, bits = np.arange(32)[:, None], np.arange(32)
    group, columns = lanes // 4, lanes % 4 * 32 + bits
    # a_i: row groupID for i < 32, else groupID + 8; b_i: column groupID
    signs = np.stack([a[group, columns], a[group + 8, columns], b[columns, group]], axis=1)
    words = torch.from_numpy((signs.astype(np.int64) << bits).sum(-1)).int()
    return words[:, :2].contiguous(), words[:, 2].contiguous()


@pytest.mark.parametrize("share", [0.5, 1.0], ids=["random", "ones"])
def test_binary_fragments(launch, share):
    draw = np.random.default_rng(0).random
    a, b = draw((16, 128)) < share, draw((128, 8)) < share
    d = torch.full((32, 4), -1, dtype=torch.int32)
    launch("popc", "multiply", *words_of(a, b), d)
    assert (of_lanes(d) == a.astype(int) @ b.astype(int)).all()


def fragments(a, b, c):
    """a [16, 16], b [16, 8] float16, c [16, 8] float32 as each lane has them (PTX ISA, fragments of m16n8k16)."""
    lanes = np.arange(32)
    row, two = lanes // 4, lanes % 4 * 2
    of_a = [a[row + 8 * (i // 2 % 2), two + i % 2 + 8 * (i // 4)] for i in range(8)]
    of_b = [b[two + i % 2 + 8 * (i // 2), row] for i in range(4)]
    of_c = [c[row + 8 * (i // 2), two + i % 2] for i in range(4)]
    return tuple(torch.from_numpy(np.stack(part, 1).copy()) for part in (of_a, of_b, of_c))


def multiplied(launch, a, b, c):
    d = torch.full((32, 4), torch.nan)
    launch("half", "multiply", *fragments(a, b, c), d)
    return of_lanes(d)


def operands():
    draw = np.random.default_rng(0).integers
    kinds = ((16, 16), np.float16), ((16, 8), np.float16), ((16, 8), np.float32)
    return [draw(-64, 64, shape).astype(dtype) for shape, dtype in kinds]


def test_integers_and_lone_subnormals_are_exact(launch):
    a, b, c = operands()
    small = (a * np.float16(2.0**-24)).astype(np.float16)
    for left, added in ((a, c), (small, 0 * c)):
        exact = (left.astype(float) @ b + added).astype(np.float32)
        assert np.array_equal(multiplied(launch, left, b, added), exact)


@pytest.mark.parametrize("launch", ["host"], indirect=True)
def test_sums_are_cut_off_below_the_largest(launch):
    """As the model of microsoft/MMA-Sim has it for sm_80: 24 bits behind the largest, toward zero, k = 0 .. 7 first."""
    a, b, c = (0 * operand for operand in operands())
    a[0, :2], b[:2, 0] = (1, 2**-12), (1, 2**-13)  # 1 + 2^-25
    a[1, :2], b[:2, 1] = (1, -(2**-12)), (1, 2**-12)  # 1 - 2^-24: still there, and all of 24 bits
    # A subnormal counts as 2^-14: less is left of c.
    a[2, 0], b[0, 2], c[2, 2] = 2**-24, 2**14, 1.5 * 2**-30
    # 2^-24 is lost before the 1 makes it 2.
    a[3, [0, 8]], b[[0, 8], 3], c[3, 3] = (2**-12, 1), (2**-12, 1), 1
    d = multiplied(launch, a, b, c)
    assert [d[i, i] for i in range(4)] == [1, 1 - 2**-24, 2**-10, 2]


@pytest.mark.parametrize("launch", ["host"], indirect=True)
def test_what_is_not_finite_stays_in_its_row_and_column(launch):
    a, b, c = operands()
    b[5, 3] = np.nan
    d = multiplied(launch, a, b, c)
    assert np.isnan(d[:, 3]).all()
    assert np.isfinite(np.delete(d, 3, 1)).all()
