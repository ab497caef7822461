"""The C compiler of this machine: the one named by LUTLAB_CC or CC, else the first of cc, gcc, clang.

Flags, beside those of the instruction set (isa.py), and why:

    -O3 -fPIC -shared            a fast library
    -fopenmp                     threads; left out where the compiler has no OpenMP (library.py says so)
    -ffp-contract=fast           a * b + c may be one FMA, which rounds once instead of twice
    -fno-math-errno              nobody reads errno after a square root
    -fno-strict-aliasing         packed words are read as bytes, halves and words

Never -ffast-math: it drops NaN and inf, reorders sums, and flushes denormals in the whole process that loads it.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lutlab.base.errors import LutlabError
from lutlab.base.kept.findings import known

FLAGS = (
    "-std=gnu11",
    "-O3",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-strict-aliasing",
)
OPENMP = ("-fopenmp",)
LIBRARY = ("-fPIC", "-shared")
_NAMES = ("cc", "gcc", "clang")
# As x86_64-linux-gnu-gcc-12: a compiler's own file, which its size and time identify.
_PLAIN = re.compile(r"([a-z0-9_]+-)*(gcc|clang)(-[0-9.]+)?")


def sanitizing(sanitize: Sequence[str]) -> tuple[str, ...]:
    """Flags for sanitizers by gcc's names, e.g. ("address", "undefined"); any finding ends the process."""
    if not sanitize:
        return ()
    return (f"-fsanitize={','.join(sanitize)}", "-fno-sanitize-recover=all", "-g")


class NoCompiler(LutlabError):
    """There is no C compiler, or the one that was named cannot be run: kernels cannot be built."""


@dataclass(frozen=True)
class Compiler:
    """command: program with its own arguments; version: the first line it says of itself."""

    command: tuple[str, ...]
    version: str

    def run(self, arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
        """Compile in a folder; the caller looks at the return code.

        Raises:
            NoCompiler: the program is gone or may not be run.
        """
        try:
            return subprocess.run(
                [*self.command, *arguments], cwd=folder, capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise NoCompiler(
                f"cannot run {self.command[0]}: {error.strerror}. Name a working C compiler in LUTLAB_CC"
            ) from error


def find() -> Compiler:
    """The compiler that builds here.

    Raises:
        NoCompiler: none is installed, or LUTLAB_CC or CC names one that does not run.
    """
    path = os.environ.get("PATH", "")
    if variable := named():
        return _named(variable, os.environ[variable], path)
    return _installed(path)


def named() -> str | None:
    """The variable of the environment that names a compiler, if one does."""
    return next((name for name in ("LUTLAB_CC", "CC") if os.environ.get(name)), None)


@functools.cache
def _named(variable: str, value: str, path: str) -> Compiler:
    try:
        words = shlex.split(value)
    except ValueError as error:  # a quote without its other half
        raise NoCompiler(f"{variable}={value}: {error}") from error
    program = shutil.which(words[0], path=path) if words else None
    if program is None:
        raise NoCompiler(
            f"{variable}={value}: no such program. Name a C compiler, or unset {variable} to take "
            f"the first of {', '.join(_NAMES)}"
        )
    return _identify((program, *words[1:]))


@functools.cache
def _installed(path: str) -> Compiler:
    for name in _NAMES:
        if program := shutil.which(name, path=path):
            return _identify((program,))
    raise NoCompiler(
        f"no C compiler: none of {', '.join(_NAMES)} is on the PATH. Install one (Debian, Ubuntu: apt install gcc; "
        "conda: conda install gcc; macOS: xcode-select --install) or name it in LUTLAB_CC"
    )


def _identify(command: tuple[str, ...]) -> Compiler:
    program = Path(command[0]).resolve()
    if len(command) == 1 and _is_one_program(program):
        file = program.stat()
        decides = [command[0], str(program), file.st_size, file.st_mtime_ns, file.st_ino]
        return Compiler(command, known("compiler", decides, lambda: _version(command)))
    return Compiler(command, _version(command))


def _is_one_program(program: Path) -> bool:
    """Whether a compiler is its file: not a script, nor a cache or a wrapper that runs another, which may change."""
    try:
        with program.open("rb") as file:
            binary = file.read(4) == b"\x7fELF"
    except OSError:  # one may run what one may not read
        return False
    return binary and _PLAIN.fullmatch(program.name) is not None


def _version(command: tuple[str, ...]) -> str:
    """The first line that a compiler says of itself."""
    try:
        version = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise NoCompiler(
            f"{shlex.join(command)} --version fails: {error}. Name a working C compiler in LUTLAB_CC"
        ) from error
    return version.partition("\n")[0].strip()
