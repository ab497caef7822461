"""A file below kernels/cuda and its parameters -> CUDA source -> a cubin for a named architecture, by NVRTC.

    source("lut_gemv/paper.cu", {"MU": 8})   the file, its includes and the parameters in front, as #define: one text
    build(text, "lut_gemv-paper", "sm_90")   <cache>/codegen/cuda-<name>-<arch>-<key>/kernel.cu, .cubin, .sealed

Compiling needs CuPy, NVRTC and CUDA's headers, but no GPU and no driver: wheels hold all three. It is what runs on a
GPU, too: CuPy loads the cubin. So denormals are kept (CuPy's own compilation adds -ftz=true), and names with a letter
as sm_90a can be asked for. key = sha256 of source, architecture, options and NVRTC's version.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lutlab.base import sources
from lutlab.base.errors import LutlabError
from lutlab.base.kept import built
from lutlab.kernels.codegen.library import cache_folder

ROOT = sources.folder("kernels") / "cuda"
_CUBIN = "kernel.cubin"
OPTIONS = ("-std=c++17", "-lineinfo", "--ptxas-options=-v")
_INCLUDE = re.compile(r'^#include "(?P<file>[^"]+)"$')


@dataclass(frozen=True)
class Resources:
    """Resources of a kernel by ptxas: registers a thread, bytes of static shared memory, of stack and spills."""

    registers: int
    shared_bytes: int
    stack_bytes: int
    spill_bytes: int


@dataclass(frozen=True)
class Cubin:
    """path: the file; arch: as sm_90; resources: by kernel."""

    path: Path
    arch: str
    resources: Mapping[str, Resources]


# ---- source ----


def source(file: str, parameters: Mapping[str, int | str], root: Path = ROOT) -> str:
    """One text to compile, with CUDA or, in tests, as C++.

    Args:
        file: path below kernels/cuda, as "lut_gemv/paper.cu".
        parameters: name -> number, or a word of C (a type); put in front as #define in their order.
        root: the folder of the files.

    Raises:
        LutlabError: a file is missing, or uses none of a parameter's name: a parameter with a typing mistake.
    """
    body = "\n".join(_expanded(file, root, set())) + "\n"
    for name in parameters:
        if not re.search(rf"\b{name}\b", body):
            raise LutlabError(f"kernels/cuda/{file} has no parameter {name}")
    head = [
        f"// Put together by lutlab from kernels/cuda/{file}: edit that file, not this one.",
        *(f"#define {name} {value}" for name, value in parameters.items()),
        "",
    ]
    return "\n".join(head) + body


def _expanded(file: str, root: Path, seen: set[str]) -> list[str]:
    """The lines of a file with its includes, each once; #line tells a compiler where they come from."""
    try:
        lines = (root / file).read_text().splitlines()
    except OSError as error:
        raise LutlabError(f"cannot read kernels/cuda/{file}: {error.strerror}") from error
    out = [f'#line 1 "kernels/cuda/{file}"']
    for number, line in enumerate(lines, 1):
        include = _INCLUDE.match(line)
        if include is None:
            out.append(line)
            continue
        path = (root / file).parent / include["file"]
        included = path.resolve().relative_to(root.resolve()).as_posix()
        if included not in seen:
            seen.add(included)
            out += _expanded(included, root, seen)
        out.append(f'#line {number + 1} "kernels/cuda/{file}"')
    return out


# ---- compiler ----


def build(text: str, name: str, arch: str) -> Cubin:
    """Compile a source, unless the cache has its cubin.

    text: from source(); name: letters, digits, - and _, for people who look into the cache folder; arch: as sm_90.

    Raises:
        LutlabError: CuPy, NVRTC or CUDA's headers are missing, NVRTC does not know the architecture or refuses the
            source, the cache folder cannot be written.
    """
    return _build(text, name, arch, cache_folder())


@functools.cache
def _build(text: str, name: str, arch: str, cache: Path) -> Cubin:
    version = _nvrtc_version()
    _check_arch(arch, version)
    identity = {"source": text, "arch": arch, "options": OPTIONS, "nvrtc": version, "sealed": 1}
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
    folder, about = built.take(
        cache, f"cuda-{name}-{arch}-{key}", functools.partial(_compile, text, arch)
    )
    used = {kernel: Resources(**values) for kernel, values in about["resources"].items()}
    return Cubin(folder / _CUBIN, arch, used)


def _compile(text: str, arch: str, folder: Path) -> dict[str, Any]:
    """kernel.cu and kernel.cubin into an empty folder in another one; returns their facts."""
    from cupy.cuda import nvrtc

    (folder / "kernel.cu").write_text(text)
    options = (f"-arch={arch}", *OPTIONS, *(f"-I{path}" for path in include_folders()))
    program = nvrtc.createProgram(text, "kernel.cu", (), ())
    try:
        try:
            nvrtc.compileProgram(program, options)
        except nvrtc.NVRTCError as error:
            refused = folder.parents[1] / "refused.cu"
            os.replace(folder / "kernel.cu", refused)
            raise LutlabError(
                f"NVRTC refuses a kernel for {arch}, kept as {refused}:\n"
                f"{_errors(nvrtc.getProgramLog(program))}"
            ) from error
        cubin, report = whole_elf(nvrtc.getCUBIN(program)), nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)
    (folder / _CUBIN).write_bytes(cubin)
    return {
        "resources": {kernel: asdict(values) for kernel, values in resources(report).items()},
        "nvrtc": _nvrtc_version(),
        "options": options,
    }


def whole_elf(cubin: bytes) -> bytes:
    """The cubin with its last byte, a zero that CuPy 14 cuts off as if it ended a string: drivers refuse that."""
    ends = [len(cubin)]
    for start_at, size_at in ((0x20, 0x36), (0x28, 0x3A)):  # program headers, section headers
        (start,) = struct.unpack_from("<Q", cubin, start_at)
        length, count = struct.unpack_from("<HH", cubin, size_at)
        ends.append(start + length * count)
    return cubin.ljust(max(ends), b"\0")


def resources(report: str) -> dict[str, Resources]:
    r"""Read ptxas's report of each kernel.

    >>> resources(
    ...     "ptxas info : Compiling entry function 'k' for 'sm_90'\n"
    ...     "ptxas . 8 bytes stack frame, 0 bytes spill stores, 4 bytes spill loads\n"
    ...     "ptxas info : Used 10 registers, used 1 barriers, 256 bytes smem\n"
    ... )
    {'k': Resources(registers=10, shared_bytes=256, stack_bytes=8, spill_bytes=4)}
    """
    used = {}
    for part in report.split("Compiling entry function")[1:]:
        name, *_ = re.findall(r"'(\w+)'", part)
        registers, *_ = re.findall(r"Used (\d+) registers", part)
        (stack, stores, loads), *_ = re.findall(
            r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", part
        )
        shared = re.search(r"(\d+) bytes smem", part)
        used[name] = Resources(
            registers=int(registers),
            shared_bytes=int(shared[1]) if shared else 0,
            stack_bytes=int(stack),
            spill_bytes=int(stores) + int(loads),
        )
    return used


def _errors(report: str) -> str:
    """The first error with the lines that belong to it."""
    lines = report.splitlines()
    first = next((at for at, line in enumerate(lines) if "error" in line), 0)
    return "\n".join(lines[first : first + 4])


# ---- what has to be installed ----


def check() -> None:
    """Raises LutlabError: CuPy or NVRTC, with which kernels are built, is not installed."""
    _nvrtc_version()


@functools.cache
def _nvrtc_version() -> tuple[int, int]:
    """Raises LutlabError: no CuPy, or no NVRTC that fits it."""
    try:
        from cupy.cuda import nvrtc
    except ImportError as error:
        raise LutlabError(
            f"CUDA kernels need CuPy, which cannot be imported: {error}. Install ONE of two, for the CUDA version that "
            "nvidia-smi shows, or for your torch where there is no GPU: CUDA 12, pip install 'lutlab[gpu]'; CUDA 13, "
            "pip install 'cupy-cuda13x[ctk]' nvidia-ml-py"
        ) from error
    try:
        return tuple(nvrtc.getVersion())
    except (ImportError, OSError, RuntimeError) as error:
        major = cupy_cuda()
        raise LutlabError(
            f"CuPy finds no NVRTC of CUDA {major}, the compiler of its kernels: pip install "
            f"{_wheels()}, or install a CUDA {major} toolkit and set CUDA_PATH. Where the machine has another "
            f"version of CUDA, take the CuPy wheel of that version. CuPy said: {str(error).splitlines()[0]}"
        ) from error


def cupy_cuda() -> int:
    """The version of CUDA that the installed CuPy is made for, e.g. 12."""
    from cupy.cuda import runtime

    return runtime.runtimeGetVersion() // 1000


@functools.cache
def include_folders() -> tuple[str, ...]:
    """Folders of CUDA's headers, in wheels, conda's environment or a toolkit.

    Raises:
        LutlabError: cuda_fp16.h is nowhere.
    """
    from cuda.pathfinder import find_nvidia_header_directory

    folders = {part: find_nvidia_header_directory(part) for part in ("cudart", "cccl")}
    if folders["cudart"] is None:
        raise LutlabError(
            f"CUDA's headers (cuda_fp16.h) are not installed: pip install {_wheels()}, or install a CUDA "
            f"{cupy_cuda()} toolkit and set CUDA_HOME"
        )
    return tuple(filter(None, folders.values()))  # cccl: some versions of cuda_fp16.h include it


def _check_arch(arch: str, version: tuple[int, int]) -> None:
    """Raises LutlabError: NVRTC does not compile for it."""
    from cupy.cuda import nvrtc

    known = [f"sm_{number}" for number in nvrtc.getSupportedArchs()]
    if arch.rstrip("af") not in known:
        raise LutlabError(
            f"NVRTC {version[0]}.{version[1]} does not compile for {arch}; it knows {', '.join(known)}. A newer GPU "
            "needs a newer CUDA: install the CuPy wheel of that version"
        )


def _wheels() -> str:
    """CUDA 13's wheels have no number in their names."""
    suffix = "" if cupy_cuda() >= 13 else f"-cu{cupy_cuda()}"
    return " ".join(f"nvidia-cuda-{part}{suffix}" for part in ("nvrtc", "runtime", "cccl"))
