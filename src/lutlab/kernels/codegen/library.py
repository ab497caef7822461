"""C source -> a library in this process, built once a machine and kept in the user's cache folder.

    <cache>/codegen/<name>-<isa>-<key>/   kernel.c · kernel.so · kernel.sealed (command, hashes; base/kept/built.py)

key = sha256 of source, compiler, flags and CPU features (a compiler named as "gcc -march=native" looks at the CPU).
<cache> is LUTLAB_CACHE or the user's cache folder; where it cannot be written, or others can change it, a private
temporary folder serves this process (base/kept/findings.py). Where no compiler is installed any more, a library of the
same source, flags and CPU features serves, whoever built it.
A folder that is not as it was built, or is another key's, is set aside and built again.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import json
import logging
import os
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lutlab.base.errors import LutlabError
from lutlab.base.kept import built, findings
from lutlab.kernels.codegen import compiler
from lutlab.kernels.codegen.compiler import Compiler, NoCompiler
from lutlab.kernels.codegen.isa import Isa, features, runnable

log = logging.getLogger(__name__)
# Of keys: hex digits, so that a folder that was set aside is no folder of a library.
_KEY_SIGNS = 32
_PROBE = "#include <omp.h>\nint threads(void) { return omp_get_max_threads(); }\n"


class Library(ctypes.CDLL):
    """A library of kernels; openmp: whether its loops are threaded."""

    openmp: bool


def load(source: str, name: str, isa: Isa, *, sanitize: tuple[str, ...] = ()) -> Library:
    """The library of a C source, built now or before.

    Args:
        source: all of it; only the compiler's own headers may be included.
        name: letters, digits, - and _; for people who look into the cache folder.
        isa: one that this CPU runs.
        sanitize: names for gcc's -fsanitize=, e.g. ("address", "undefined"); a finding ends the process.

    Raises:
        LutlabError: this CPU cannot run isa; the source does not compile; the library cannot be loaded or written.
        NoCompiler: there is no C compiler, and this library was never built.
    """
    can = runnable()
    if isa not in can:
        raise LutlabError(
            f"kernel {name} for {isa.name} ({' '.join(isa.flags)}): this CPU cannot run it; "
            f"it runs {', '.join(each.name for each in can)}"
        )
    if "address" in sanitize and "asan" not in os.environ.get("LD_PRELOAD", ""):
        raise LutlabError(
            "a library with AddressSanitizer ends a process that did not start with it: set LD_PRELOAD to what "
            f"'{compiler.find().command[0]} -print-file-name=libasan.so' prints"
        )
    identity = source, name, isa, tuple(sanitize)
    try:
        cc = compiler.find()
    except NoCompiler:
        before = None if compiler.named() else _built_before(*identity, cache_folder())
        if before is None:
            raise
        return _open(*before)
    return _load(*identity, cc, cache_folder())


@functools.cache
def _load(
    source: str, name: str, isa: Isa, sanitize: tuple[str, ...], cc: Compiler, cache: Path
) -> Library:
    """Load a library, once a process; compiler and cache folder are parameters: the environment may name others."""
    return _open(*_folder(source, name, isa, sanitize, cc, cache))


def _open(folder: Path, about: Mapping[str, Any]) -> Library:
    """The library of a folder that was found whole, and that nobody else can have changed since then."""
    try:
        library = Library(str(folder / "kernel.so"))
    except OSError as error:
        raise LutlabError(
            f"cannot load {folder / 'kernel.so'}: {error}. {about['command'].split()[0]} may build for another kind of "
            "machine than this Python runs on: name one that fits in LUTLAB_CC"
        ) from error
    library.openmp = about["openmp"]
    return library


def _built_before(
    source: str, name: str, isa: Isa, sanitize: tuple[str, ...], cache: Path
) -> tuple[Path, dict[str, Any]] | None:
    """An intact library of this source for this CPU, by any compiler, and its facts."""
    target = _target(_flags(isa, sanitize))
    for folder in sorted(cache.glob(f"{name}-{isa.name}-{'[0-9a-f]' * _KEY_SIGNS}")):
        about = built.kept(folder)
        if about and about["target"] == target and (folder / "kernel.c").read_text() == source:
            return folder, about
    return None


def _flags(isa: Isa, sanitize: tuple[str, ...]) -> tuple[str, ...]:
    return (*compiler.FLAGS, *compiler.LIBRARY, *isa.flags, *compiler.sanitizing(sanitize))


def _target(flags: tuple[str, ...]) -> str:
    """Hash of flags and CPU features: a library's target, beside its source and its compiler."""
    text = json.dumps({"flags": flags, "cpu": sorted(features())})
    return hashlib.sha256(text.encode()).hexdigest()


def build(source: str, name: str, isa: Isa, *, sanitize: tuple[str, ...] = ()) -> Path:
    """The folder of a built library, whether or not this CPU can run it; arguments and errors are those of load."""
    folder, _ = _folder(source, name, isa, tuple(sanitize), compiler.find(), cache_folder())
    return folder


def _folder(
    source: str, name: str, isa: Isa, sanitize: tuple[str, ...], cc: Compiler, cache: Path
) -> tuple[Path, dict[str, Any]]:
    """Folder of a library, from the cache or built now, and its facts."""
    flags = _flags(isa, sanitize)
    identity = {
        "source": source,
        "cc": asdict(cc),
        "flags": flags,
        "cpu": sorted(features()),
        "sealed": 1,  # another folder than that of a library without a seal
    }
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:_KEY_SIGNS]
    return built.take(
        cache, f"{name}-{isa.name}-{key}", functools.partial(_compile, source, cc, flags)
    )


def _compile(source: str, cc: Compiler, flags: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """kernel.c and kernel.so into an empty folder, whose parent is another one; returns their facts."""
    (folder / "kernel.c").write_text(source)
    arguments = ["kernel.c", "-o", "kernel.so", *flags, "-lm"]
    openmp = True
    done = cc.run([*arguments, *compiler.OPENMP], folder)
    if done.returncode and not _has_openmp(cc, folder.parent):
        log.warning("%s has no OpenMP: kernels run on a single thread", shlex.join(cc.command))
        openmp = False
        done = cc.run(arguments, folder)
    if done.returncode:
        refused = folder.parents[1] / "refused.c"
        os.replace(folder / "kernel.c", refused)
        raise LutlabError(
            f"the C compiler refuses a generated kernel, kept as {refused}:\n{shlex.join(done.args)}\n"
            f"{_first_error(done.stderr)}"
        )
    return {
        "openmp": openmp,
        "target": _target(flags),
        "command": shlex.join(done.args),
        "compiler": cc.version,
    }


def _first_error(message: str) -> str:
    """The first line that tells an error, with the two lines of source that compilers show below it.

    The linker's cause stands above the line that says it failed, without the word error: there it is the first line.
    """
    lines = message.splitlines()
    failed = ("ld returned", "linker command failed")
    errors = (
        at
        for at, line in enumerate(lines)
        if "error" in line.lower() and not any(words in line for words in failed)
    )
    first = next(errors, 0)
    return "\n".join(lines[first : first + 3])


def _has_openmp(cc: Compiler, folder: Path) -> bool:
    (folder / "probe.c").write_text(_PROBE)
    arguments = ["probe.c", "-o", "probe.so", *compiler.LIBRARY, *compiler.OPENMP]
    return cc.run(arguments, folder).returncode == 0


def cache_folder() -> Path:
    """Folder of libraries, and of all else that was found out about this machine; it may not exist yet."""
    return findings.cache_folder("codegen")
