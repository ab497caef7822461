"""CUDA sources put together, compiled without a GPU, and what is missing told in words."""

import struct
import subprocess
import sys

import pytest
from tests.kernels.gpu.cuda_on_host import needs_nvrtc

from lutlab.base.errors import LutlabError
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
    with pytest.raises(LutlabError, match=r"kernels/cuda/op/k.cu has no parameter WIDHT"):
        cuda.source("op/k.cu", {"WIDHT": 8}, root=folder)
    with pytest.raises(LutlabError, match=r"cannot read kernels/cuda/op/none.cu: No such file"):
        cuda.source("op/none.cu", {}, root=folder)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90", "sm_90a"])
def test_compiling_needs_no_gpu(arch, tmp_path, monkeypatch):
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path))
    built = cuda.build(SOURCE, "test", arch)
    assert built.path.read_bytes()[:4] == b"\x7fELF"
    assert (built.arch, sorted(built.resources)) == (arch, ["spill", "twice"])
    twice, spill = built.resources["twice"], built.resources["spill"]
    assert twice == Resources(twice.registers, 0, 0, 0)
    assert 2 < twice.registers < 24
    assert (spill.shared_bytes, spill.stack_bytes) == (256, 1200)


def test_a_cubin_ends_where_its_headers_end(tmp_path, monkeypatch):
    """CuPy's getCUBIN drops the last byte; a driver that loads the file reads beyond its end."""
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path))
    data = cuda.build(SOURCE, "elf", "sm_90").path.read_bytes()
    program, sections = struct.unpack_from("<QQ", data, 0x20)
    sizes = struct.unpack_from("<HHHH", data, 0x36)
    assert len(data) == max(program + sizes[0] * sizes[1], sections + sizes[2] * sizes[3])
    assert cuda.whole_elf(data) == data
    assert cuda.whole_elf(data[:-1]) == data


def test_a_cubin_is_kept_and_made_again_where_it_is_damaged(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path))
    first = cuda.build(SOURCE, "kept", "sm_90")
    cuda._build.cache_clear()
    monkeypatch.setattr(cuda, "_compile", lambda *_: pytest.fail("it is there"))
    assert cuda.build(SOURCE, "kept", "sm_90") == first
    monkeypatch.undo()
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path))
    before = first.path.read_bytes()
    first.path.write_bytes(before[:-1])
    cuda._build.cache_clear()
    assert cuda.build(SOURCE, "kept", "sm_90") == first
    assert first.path.read_bytes() == before
    assert f"{first.path.parent} is damaged (kernel.cubin is not what was built)" in caplog.text


def test_an_error_of_the_compiler_names_file_and_line(tmp_path, monkeypatch):
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path))
    text = '#line 7 "kernels/cuda/op/k.cu"\n__global__ void k() { nothing(); }\n'
    with pytest.raises(
        LutlabError, match=r'refused.cu:\nkernels/cuda/op/k.cu\(7\): error: .*"nothing"'
    ):
        cuda.build(text, "wrong", "sm_90")


def test_an_architecture_that_nvrtc_does_not_know():
    with pytest.raises(
        LutlabError, match=r"NVRTC \d+\.\d+ does not compile for sm_20; it knows .*sm_90"
    ):
        cuda.build(SOURCE, "old", "sm_20")


def said_without(code):
    """What a process says of building, after code that takes something away."""
    program = (
        f"{code}\nfrom lutlab.kernels.codegen import cuda\nfrom lutlab.base.errors import LutlabError\n"
        "try: cuda.build('', 'x', 'sm_90')\nexcept LutlabError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_no_cupy():
    said = said_without("import sys; sys.modules['cupy'] = None; sys.modules['cupy.cuda'] = None")
    assert "CUDA kernels need CuPy" in said
    assert "cupy-cuda13x" in said


def test_no_nvrtc():
    pytest.importorskip("cuda.pathfinder")
    said = said_without(
        "import cuda.pathfinder as p\ndef none(*_): raise p.DynamicLibNotFoundError('no libnvrtc here')\n"
        "p.load_nvidia_dynamic_lib = none"
    )
    assert "CuPy finds no NVRTC of CUDA" in said
    assert "pip install nvidia-cuda-nvrtc" in said
    assert "no libnvrtc here" in said


def test_no_headers():
    said = said_without(
        "import cuda.pathfinder as p\np.find_nvidia_header_directory = lambda part: None\n"
        "import tempfile, os; os.environ['LUTLAB_CACHE'] = tempfile.mkdtemp()"
    )
    assert "CUDA's headers (cuda_fp16.h) are not installed: pip install nvidia-cuda-nvrtc" in said
