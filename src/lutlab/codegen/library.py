"""C source -> a library in this process, built once a machine and kept in the user's cache folder.

    <cache>/codegen/<name>-<isa>-<key>/   kernel.c · kernel.so · kernel.json (command, hash of the library)

key = sha256 of source, compiler, flags and CPU features (a compiler named as "gcc -march=native" looks at the CPU).
A folder is built beside and renamed, so that two processes that build at once never see half of it: the second finds
the first one's. A library whose hash is not the one written beside it is built again. <cache> is LUTLAB_CACHE or the
user's cache folder; where it cannot be written, a temporary folder serves this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import logging
import os
import shlex
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path

from lutlab.codegen import compiler
from lutlab.codegen.compiler import Compiler
from lutlab.codegen.isa import Isa, features, runnable
from lutlab.errors import LutlabError

log = logging.getLogger(__name__)
_PROBE = "#include <omp.h>\nint threads(void) { return omp_get_max_threads(); }\n"


def load(source: str, name: str, isa: Isa, *, sanitize: tuple[str, ...] = ()) -> ctypes.CDLL:
    """The library of a C source, built now or before; `openmp` on it says whether its loops are threaded.

    Args:
        source: all of it; only the compiler's own headers may be included.
        name: for people who look into the cache folder.
        isa: one that this CPU runs.
        sanitize: of gcc's -fsanitize=, e.g. ("address", "undefined"); a finding ends the process.

    Raises:
        LutlabError: this CPU cannot run isa; the source does not compile.
        NoCompiler: there is no C compiler.
    """
    if isa not in runnable():
        raise LutlabError(
            f"kernel {name} for {isa.name} ({' '.join(isa.flags)}): this CPU cannot run it; "
            f"it runs {', '.join(can.name for can in runnable())}"
        )
    return _load(source, name, isa, tuple(sanitize), compiler.find(), _cache())


@functools.cache
def _load(
    source: str, name: str, isa: Isa, sanitize: tuple[str, ...], cc: Compiler, cache: Path
) -> ctypes.CDLL:
    if "address" in sanitize and "asan" not in os.environ.get("LD_PRELOAD", ""):
        raise LutlabError(
            "a library with AddressSanitizer ends a process that did not start with it: set "
            f"LD_PRELOAD to the path that '{cc.command[0]} -print-file-name=libasan.so' prints"
        )
    folder = build(source, name, isa, sanitize=sanitize)
    library = ctypes.CDLL(str(folder / "kernel.so"))
    library.openmp = json.loads((folder / "kernel.json").read_text())["openmp"]
    return library


def build(source: str, name: str, isa: Isa, *, sanitize: tuple[str, ...] = ()) -> Path:
    """The folder of a built library, whether or not this CPU can run it.

    Raises:
        LutlabError: the source does not compile.
        NoCompiler: there is no C compiler.
    """
    cc = compiler.find()
    flags = (*compiler.FLAGS, *compiler.LIBRARY, *isa.flags, *_sanitizing(sanitize))
    identity = {"source": source, "cc": asdict(cc), "flags": flags, "cpu": sorted(features())}
    key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]
    return _built(_cache(), f"{name}-{isa.name}-{key}", source, cc, flags)


def _sanitizing(sanitize: tuple[str, ...]) -> tuple[str, ...]:
    if not sanitize:
        return ()
    return (f"-fsanitize={','.join(sanitize)}", "-fno-sanitize-recover=all", "-g")


def _built(cache: Path, stem: str, source: str, cc: Compiler, flags: tuple[str, ...]) -> Path:
    folder = cache / stem
    if _intact(folder):
        return folder
    beside = Path(tempfile.mkdtemp(prefix=f".{stem}.", dir=cache))
    try:
        _compile(source, cc, flags, beside)
        if folder.exists():
            log.warning("%s is damaged: built again", folder)
            os.replace(folder, beside / "damaged")
            shutil.rmtree(beside / "damaged")
        with contextlib.suppress(OSError):  # another process was first: its folder is as good
            os.replace(beside, folder)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return folder


def _intact(folder: Path) -> bool:
    """The library is there, and is the one that was built."""
    try:
        written = json.loads((folder / "kernel.json").read_text())
        return written["sha256"] == _sha256(folder / "kernel.so")
    except (OSError, ValueError, KeyError):
        return False


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _compile(source: str, cc: Compiler, flags: tuple[str, ...], folder: Path) -> None:
    """kernel.c, kernel.so and kernel.json into a folder."""
    (folder / "kernel.c").write_text(source)
    arguments = ["kernel.c", "-o", "kernel.so", *flags, "-lm"]
    openmp = True
    done = cc.run([*arguments, *compiler.OPENMP], folder)
    if done.returncode and not _has_openmp(cc, folder):
        log.warning("%s has no OpenMP: kernels run on a single thread", cc.command[0])
        openmp = False
        done = cc.run(arguments, folder)
    if done.returncode:
        lines = done.stderr.splitlines()
        first = next((i for i, line in enumerate(lines) if "error" in line.lower()), 0)
        raise LutlabError(
            f"the C compiler refuses a generated kernel: {shlex.join(done.args)}\n"
            + "\n".join(lines[first : first + 3])
        )
    about = {
        "sha256": _sha256(folder / "kernel.so"),
        "openmp": openmp,
        "command": shlex.join(done.args),
        "compiler": cc.version,
    }
    (folder / "kernel.json").write_text(json.dumps(about, indent=2))


def _has_openmp(cc: Compiler, folder: Path) -> bool:
    (folder / "probe.c").write_text(_PROBE)
    arguments = ["probe.c", "-o", "probe.so", *compiler.LIBRARY, *compiler.OPENMP]
    return cc.run(arguments, folder).returncode == 0


def _cache() -> Path:
    named = os.environ.get("LUTLAB_CACHE")
    if not named:
        import platformdirs

        named = platformdirs.user_cache_dir("lutlab")
    return _writable(Path(named) / "codegen")


@functools.cache
def _writable(folder: Path) -> Path:
    """The folder, or a temporary one with one warning."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        log.warning(
            "cannot write %s (%s): kernels are built in a temporary folder, again in every process; "
            "set LUTLAB_CACHE to a folder that can be written",
            folder,
            error.strerror,
        )
        return Path(tempfile.mkdtemp(prefix="lutlab-"))
