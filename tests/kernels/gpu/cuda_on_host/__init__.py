"""CUDA kernels executed on a CPU, for tests: the same .cu text, compiled as C++ and run by scheduler.cpp.

    kernels = cuda_on_host.build(text, ("add",))
    launch(kernels, "add", x, y, 40, grid=2)

What runs is right or wrong for the reasons it would be on a GPU: threads, barriers, warp functions, shared memory and
atomics are there, and a wrong use of them is an error in words (Fault), as is memory touched beyond a tensor's end.
What is not there: speed, the rounding of fast intrinsics, and blocks that run at the same time: a race between blocks
does not show (common.cuh's last_to_arrive is the one place where blocks meet).
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from lutlab.base.kept import findings
from lutlab.kernels.codegen import compiler, isa, library

HERE = Path(__file__).parent
# NVRTC and CUDA's headers come as wheels for this platform (pyproject.toml); elsewhere nothing is compiled for a GPU.
needs_nvrtc = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"),
    reason="CUDA's compiler comes as a wheel for Linux on x86-64",
)
# Traps end what C++ leaves undefined; a breakpoint's or a debugger's stack is not looked for (no fortified longjmp).
FLAGS = (
    "-xc++", "-std=gnu++20", "-O1", "-fPIC", "-U_FORTIFY_SOURCE", "-fno-strict-aliasing", "-fno-exceptions",
    "-fsanitize=alignment,shift,bounds,signed-integer-overflow,integer-divide-by-zero",
    "-fsanitize-undefined-trap-on-error",
    "-Wall", "-Wno-unknown-pragmas", "-Wno-unused-function", "-Wno-unused-variable", "-Werror",
)  # fmt: skip


class Fault(Exception):
    """What a kernel did wrong, with thread and block."""


def build(text: str, functions: Sequence[str]) -> ctypes.CDLL:
    """A library of a .cu text (lutlab.kernels.codegen.cuda.source), kept in the user's cache folder."""
    callable_ = "".join(f"CALLABLE({name})\n" for name in functions)
    header = HERE / "cuda_on_host.h"
    whole = f'#include "{header.name}"\nnamespace {{\n#line 1\n{text}}}\n{callable_}'
    return _load(whole, header.read_text() + (HERE / "scheduler.cpp").read_text())


@functools.cache
def _load(text: str, shim: str) -> ctypes.CDLL:
    head = f"// {_key(shim)}\n"
    scheduler = str(_compile(head + '#include "scheduler.cpp"\n', ".o", "-c"))
    path = _compile(head + text, ".so", scheduler, "-shared", "-lstdc++", "-lm")
    loaded = ctypes.CDLL(str(path))
    loaded.buffer_new.restype = ctypes.c_void_p
    loaded.buffer_new.argtypes = (ctypes.c_size_t,)
    return loaded


def _key(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _compile(text: str, suffix: str, *more: str) -> Path:
    """Built once for each text, compiler and CPU, whatever checkout the tests are of."""
    cc = compiler.find()
    flags = (*FLAGS, *isa.detect().flags)
    identity = "\n".join((text, cc.version, *cc.command, *flags, *more))
    folder = findings.writable(library.cache_folder())
    path = folder / f"cuda-on-host-{_key(identity)}{suffix}"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(prefix=".host-", dir=folder) as beside:
        (Path(beside) / "kernel.cpp").write_text(text)
        # an object is no source: -xnone after it
        objects = sorted(more, key=lambda argument: argument[0] == "-")
        arguments = [*flags, f"-I{HERE}", "kernel.cpp", "-xnone", *objects, "-o", f"built{suffix}"]
        done = cc.run(arguments, Path(beside))
        assert done.returncode == 0, done.stderr
        os.replace(Path(beside) / f"built{suffix}", path)
    return path


def call(kernels, function, cells, grid, block, shared, reverse=False) -> str | None:
    """Launch with arguments at addresses, as a driver does; the cause where it fails."""
    cause, pointers = ctypes.c_char_p(), (ctypes.c_void_p * len(cells))(*cells)
    sizes = (size if isinstance(size, tuple) else (size,) for size in (grid, block))
    dims = ((ctypes.c_uint * 3)(*(*size, 1, 1)[:3]) for size in sizes)
    how = *dims, ctypes.c_size_t(shared), pointers, int(reverse), ctypes.byref(cause)
    failed = kernels.launch(getattr(kernels, f"call_{function}"), *how)
    return cause.value.decode() if failed else None


def launch(
    kernels: ctypes.CDLL,
    function: str,
    *arguments: torch.Tensor | int | float | None,
    grid: int | tuple[int, ...] = 1,
    block: int | tuple[int, ...] = 32,
    shared: int = 0,
    reverse: bool = False,
) -> None:
    """One launch, to its end, or a Fault: the kernel hangs, or touches what is not its own.

    arguments: a contiguous tensor on the CPU, which is changed in place, is a pointer, None the null pointer, an int an
    int, a float a float; shared: bytes of dynamic shared memory; reverse: threads in the opposite order, blocks in a
    shuffled one.
    """
    expected = getattr(kernels, f"arguments_of_{function}")()
    assert expected == len(arguments), f"{function} has {expected} arguments, not {len(arguments)}"
    cells, copies, names = [], [], []
    types = {type(None): ctypes.c_void_p, int: ctypes.c_int, float: ctypes.c_float}
    try:
        for at, argument in enumerate(arguments):
            if not isinstance(argument, torch.Tensor):
                cells.append(types[type(argument)](argument))
                continue
            assert argument.is_contiguous()
            room = kernels.buffer_new(argument.nbytes)
            ctypes.memmove(room, argument.data_ptr(), argument.nbytes)
            copies.append((argument, room))
            names.append(f"argument {at}")
            cells.append(ctypes.c_void_p(room))
        addresses = [ctypes.addressof(cell) for cell in cells]
        if cause := call(kernels, function, addresses, grid, block, shared, reverse):
            raise Fault(f"{function}: {cause}; buffers: {', '.join(names)}")
        overrun = kernels.buffers_overrun()
        if overrun >= 0:
            where = [*names, "shared memory"][overrun]
            raise Fault(f"{function}: something was written beyond {where}")
        for tensor, room in copies:
            ctypes.memmove(tensor.data_ptr(), room, tensor.nbytes)
    finally:
        kernels.buffers_free()
