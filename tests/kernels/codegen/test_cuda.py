"""CUDA sources put together, compiled without a GPU, and what is missing told in words."""

import struct
import subprocess
import sys

import pytest
from tests.kernels.checks import refused
from tests.kernels.gpu.cuda_on_host import needs_nvrtc

from lutlab.kernels.codegen import cuda
from lutlab.kernels.codegen.cuda import Resources

pytestmark = needs_nvrtc
SOURCE = """
#include <cuda_fp16.h>
extern "C" __global__ void twice(__half *x) { x[threadIdx.x] = __hadd(x[threadIdx.x], x[threadIdx.x]); }
extern "C" __global__ void spill(float *x, int at) {
    __shared__ float shared[64];
    float many[300];
    for (int i = 0; i < 300; i++) many[i] = x[i * at];
    shared[threadIdx.x] = many[at];
    __syncthreads();
    x[0] = many[2 * at] + shared[63 - threadIdx.x];
}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "op").mkdir()
    (tmp_path / "words.cuh").write_text("typedef unsigned word;\n")
    (tmp_path / "more.cuh").write_text('#include "words.cuh"\nword more;\n')
    (tmp_path / "op" / "k.cu").write_text(
        '#include "../words.cuh"\n#include "../more.cuh"\n#include <cuda_fp16.h>\nword w[WIDTH];\n'
    )
    return tmp_path


def test_a_source_is_one_text_that_tells_where_its_lines_come_from(folder):
    assert cuda.source("op/k.cu", {"WIDTH": 8}, root=folder).splitlines() == [
        "// Put together by lutlab from kernels/cuda/op/k.cu: edit that file, not this one.",
        "#define WIDTH 8",
        '#line 1 "kernels/cuda/op/k.cu"',
        '#line 1 "kernels/cuda/words.cuh"',
        "typedef unsigned word;",
        '#line 2 "kernels/cuda/op/k.cu"',
        '#line 1 "kernels/cuda/more.cuh"',
        '#line 2 "kernels/cuda/more.cuh"',
        "word more;",
        '#line 3 "kernels/cuda/op/k.cu"',
        "#include <cuda_fp16.h>",
        "word w[WIDTH];",
    ]


def test_a_parameter_that_the_file_does_not_use_and_a_missing_file_are_refused(folder):
    misspelt = "op/k.cu", {"WIDHT": 8}
    refused("kernels/cuda/op/k.cu has no parameter WIDHT", cuda.source, *misspelt, root=folder)
    message = "cannot read kernels/cuda/op/none.cu: No such file"
    refused(message, cuda.source, "op/none.cu", {}, root=folder)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90", "sm_90a"])
def test_compiling_needs_no_gpu(arch, cache):
    built = cuda.build(SOURCE, "test", arch)
    assert built.path.read_bytes()[:4] == b"\x7fELF"
    assert (built.arch, sorted(built.resources)) == (arch, ["spill", "twice"])
    twice, spill = built.resources["twice"], built.resources["spill"]
    assert twice == Resources(twice.registers, 0, 0, 0)
    assert 2 < twice.registers < 24
    assert (spill.shared_bytes, spill.stack_bytes) == (256, 1200)


def test_a_cubin_ends_where_its_headers_end(cache):
    """CuPy's getCUBIN drops the last byte; a driver that loads the file reads beyond its end."""
    data = cuda.build(SOURCE, "elf", "sm_90").path.read_bytes()
    program, sections = struct.unpack_from("<QQ", data, 0x20)
    sizes = struct.unpack_from("<HHHH", data, 0x36)
    assert len(data) == max(program + sizes[0] * sizes[1], sections + sizes[2] * sizes[3])
    assert cuda.whole_elf(data) == data
    assert cuda.whole_elf(data[:-1]) == data


def test_a_cubin_is_kept_and_made_again_where_it_is_damaged(cache, monkeypatch, caplog):
    first = cuda.build(SOURCE, "kept", "sm_90")
    cuda._build.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(cuda, "_compile", lambda *_: pytest.fail("it is there"))
        assert cuda.build(SOURCE, "kept", "sm_90") == first
    before = first.path.read_bytes()
    first.path.write_bytes(before[:-1])
    cuda._build.cache_clear()
    assert cuda.build(SOURCE, "kept", "sm_90") == first
    assert first.path.read_bytes() == before
    assert f"{first.path.parent} is damaged (kernel.cubin is not what was built)" in caplog.text


def test_what_nvrtc_cannot_compile_is_told(cache):
    text = '#line 7 "kernels/cuda/op/k.cu"\n__global__ void k() { nothing(); }\n'
    message = r'refused.cu:\nkernels/cuda/op/k.cu\(7\): error: .*"nothing"'
    refused(message, cuda.build, text, "wrong", "sm_90")
    message = r"NVRTC \d+\.\d+ does not compile for sm_20; it knows .*sm_90"
    refused(message, cuda.build, SOURCE, "old", "sm_20")


@pytest.mark.parametrize(("taken", "told"), [
    ("import sys; sys.modules['cupy'] = None; sys.modules['cupy.cuda'] = None",
     ("CUDA kernels need CuPy", "cupy-cuda13x")),
    ("import cuda.pathfinder as p\ndef none(*_): raise p.DynamicLibNotFoundError('no libnvrtc here')\n"
     "p.load_nvidia_dynamic_lib = none",
     ("CuPy finds no NVRTC of CUDA", "pip install nvidia-cuda-nvrtc", "no libnvrtc here")),
    ("import cuda.pathfinder as p\np.find_nvidia_header_directory = lambda part: None",
     ("CUDA's headers (cuda_fp16.h) are not installed: pip install nvidia-cuda-nvrtc",)),
], ids=["CuPy", "NVRTC", "headers"])  # fmt: skip
def test_what_is_not_installed_is_told(cache, taken, told):
    """By a process after code that takes it away."""
    if "pathfinder" in taken:
        pytest.importorskip("cuda.pathfinder")
    program = (
        f"{taken}\nfrom lutlab.kernels.codegen import cuda\nfrom lutlab.base.errors import LutlabError\n"
        "try: cuda.build('', 'x', 'sm_90')\nexcept LutlabError as error: print(error)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for part in told:
        assert part in done.stdout
