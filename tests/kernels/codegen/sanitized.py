"""Run a generated C function under AddressSanitizer and UBSan, in a program of its own.

    y = call(source, "add", x, torch.empty(3), 3, isa=isa, folder=tmp_path)[1]

Each tensor is copied to memory of exactly its size, so that one byte read or written beyond it ends the program.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import torch

from lutlab.base.kept import findings
from lutlab.kernels.codegen import compiler, isa, library
from lutlab.kernels.codegen.isa import Isa

PORTABLE = isa.ISAS[-1]
# A source to try things with.
SCALE = """
void scale(const float *x, float *y, long n, float c, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long i = 0; i < n; i++) y[i] = x[i] * c;
}
"""
SANITIZERS = ("address", "undefined")
WARNINGS = ("-Wall", "-Wextra", "-Werror", "-Wno-psabi")  # no vector is ever passed

_MAIN = """
#include <stdio.h>
#include <stdlib.h>

static void *buffer(const char *path, size_t size) {
    void *memory = NULL;
    FILE *file = fopen(path, "rb");
    if (!file || posix_memalign(&memory, 16, size) || fread(memory, 1, size, file) != size) exit(90);
    fclose(file);
    return memory;
}

static void keep(const char *path, void *memory, size_t size) {
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(memory, 1, size, file) != size || fclose(file)) exit(91);
    free(memory);
}
"""


def program(source: str, main: str, isa: Isa, folder: Path) -> subprocess.CompletedProcess[str]:
    """Compile a C source and its main with sanitizers and run them; a finding is a return code and a stderr.

    A warning of the compiler is an error here. The program is kept in the user's cache folder. It is not optimized,
    which takes a third of the time to compile.
    """
    cc = compiler.find()
    flags = (*compiler.FLAGS, *isa.flags, *compiler.sanitizing(SANITIZERS), *compiler.OPENMP)
    flags = (*WARNINGS, *flags, "-O0", "-lm")
    identity = "\n".join((source, main, cc.version, *cc.command, *flags))
    name = f"sanitized-{hashlib.sha256(identity.encode()).hexdigest()[:32]}"
    kept = findings.writable(library.cache_folder()) / name
    if not kept.exists():
        (folder / "kernel.c").write_text(source)
        (folder / "main.c").write_text('#include "kernel.c"\n' + main)
        built = cc.run(["main.c", "-o", "main", *flags], folder)
        assert built.returncode == 0, built.stderr
        beside = kept.with_name(f".{name}-{os.getpid()}")
        shutil.copy(folder / "main", beside)
        os.replace(beside, kept)
    return subprocess.run([str(kept)], cwd=folder, capture_output=True, text=True, check=False)


def call(
    source: str, function: str, *arguments: torch.Tensor | int | float, isa: Isa, folder: Path
) -> list[torch.Tensor]:
    """Call a function of a C source; what its tensor arguments hold afterwards, in their order.

    arguments: tensors become pointers to their contiguous elements, numbers stay numbers; folder: an empty one, for the
    program and its data. AssertionError: the program does not compile, or a sanitizer found something.
    """
    tensors = [a.contiguous() for a in arguments if isinstance(a, torch.Tensor)]
    passed, opened, kept = [], [], []
    for argument in arguments:
        if not isinstance(argument, torch.Tensor):
            passed.append(repr(argument))
            continue
        at, size = len(opened), argument.nbytes
        _bytes(tensors[at]).tofile(folder / f"in{at}")
        passed.append(f"b{at}")
        opened.append(f'    void *b{at} = buffer("in{at}", {size});\n')
        kept.append(f'    keep("out{at}", b{at}, {size});\n')
    body = f"{''.join(opened)}    {function}({', '.join(passed)});\n{''.join(kept)}    return 0;\n"
    main = f"{_MAIN}\nint main(void) {{\n{body}}}\n"
    done = program(source, main, isa, folder)
    assert done.returncode == 0, done.stderr
    after = [torch.empty_like(tensor) for tensor in tensors]
    for at, tensor in enumerate(after):
        _bytes(tensor)[:] = np.fromfile(folder / f"out{at}", np.uint8)
    return after


def _bytes(tensor: torch.Tensor) -> np.ndarray:
    """The memory of a contiguous tensor, of whatever dtype."""
    return tensor.view(-1).view(torch.uint8).numpy()
