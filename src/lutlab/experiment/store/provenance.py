"""Where a number comes from: code, libraries, machine. Attached to every record; nothing personal (no host name)."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from lutlab import sources
from lutlab.errors import LutlabError
from lutlab.kernels.codegen import cuda, templates

_PACKAGE = Path(__file__).resolve().parents[2]
# sources that decide every number: a change in any of them makes new cells of all
_DECIDING = (
    "groups.py",
    "compress/widths.py",
    "compress/calibrate.py",
    "compress/rescale.py",
    "compress/driver.py",
    "modules.py",
    "data/*.py",
    "models/*.py",
)
# packages of which a number rests on what its method, its evaluator and the sources above import
_CHOSEN = ("quantizers", "formats", "evaluators")
_SEARCHING = ("compress/allocate.py", "compress/search.py")
# Kernels decide speeds. Of other numbers they decide as little as torch's own do, the last bits, and the record names
# the kernel: a faster one does not make an accuracy new. A device's are those that its entrances import.
_ENTRANCES = {
    "cpu": ("kernels/cpu/linear.py", "kernels/cpu/qigen_gemv.py"),
    "gpu": ("kernels/gpu/linear.py",),
}
_CLOCKS = ("measure/*.py",)
_OF_SPEEDS = ("kernels", "codegen", "formats")
_COMMITTED = ("src", "kernels", "experiments", "conf")  # pathspecs: from the top of the checkout
_LIBRARIES = ("lutlab", "torch", "transformers", "tokenizers", "datasets", "numpy", "hydra-core")


@functools.cache
def code_sha256(*modules: str) -> str:
    """Hash of the sources that decide a number, part of the id of its cell.

    Args:
        modules: of the method and the evaluator, such as `lutlab.quantizers.rtn`; without any, all count.

    Raises:
        LutlabError: a module has no file, as one typed into a notebook.
    """
    roots = _matching(_DECIDING) | {_source(module) for module in modules}
    if not modules:
        roots |= _matching(tuple(f"{package}/*.py" for package in _CHOSEN))
    return _sources_sha256(_with_imports(roots))


@functools.cache
def search_sha256() -> str:
    """Hash of the sources that decide the widths found under a budget; part of the ids of such cells."""
    return _sources_sha256(_matching(_SEARCHING))


@functools.cache
def kernels_sha256(device: str) -> str:
    """Hash of a device's kernels, of what builds and what times them; part of the ids of speeds and memory peaks."""
    return _sources_sha256(_kernels(device))


def _kernels(device: str) -> set[Path]:
    """The sources of kernels_sha256. device: cpu, or any other for a GPU."""
    kind, root = ("cpu", templates.ROOT) if device == "cpu" else ("gpu", cuda.ROOT)
    modules = _with_imports(_matching(_ENTRANCES[kind] + _CLOCKS), _OF_SPEEDS)
    return modules | set(root.rglob("*.*"))


def _matching(patterns: tuple[str, ...]) -> set[Path]:
    return {path for pattern in patterns for path in _PACKAGE.glob(pattern)}


def _source(module: str) -> Path:
    file = getattr(importlib.import_module(module), "__file__", None)
    if file is None:
        raise LutlabError(
            f"{module} has no source file, so results could not say which code made them: "
            "put your method or evaluator into a file and import it"
        )
    return Path(file)


def _with_imports(roots: set[Path], packages: tuple[str, ...] = _CHOSEN) -> set[Path]:
    """Sources, and all of the packages that they import, directly or not, inside functions included."""
    found, waiting = set(), set(roots)
    while waiting:
        path = waiting.pop()
        found.add(path)
        waiting |= _imports(path, packages) - found
    return found


@functools.cache
def _imports(path: Path, packages: tuple[str, ...]) -> frozenset[Path]:
    names = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    found = set()
    for package, *inside in (name.split(".") for name in names):
        if package == "lutlab" and inside and inside[0] in packages:
            target = _PACKAGE.joinpath(*inside)
            found.add(target / "__init__.py" if target.is_dir() else target.with_suffix(".py"))
    return frozenset(filter(Path.exists, found))


def _sources_sha256(paths: set[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        inside = [
            root for root in (_PACKAGE, templates.ROOT, cuda.ROOT) if path.is_relative_to(root)
        ]
        name = path.relative_to(inside[0]) if inside else path.name
        digest.update(f"{name}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


@functools.cache
def environment() -> dict[str, Any]:
    """Commit and dirty flag, library versions, device and threads of this process."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": _dirty(),
        "code_sha256": code_sha256(),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpu": torch.cuda.get_device_name() if cuda else None,
        "cuda": torch.version.cuda if cuda else None,
        "versions": {name: _version(name) for name in _LIBRARIES},
    }


def _dirty() -> bool | None:
    """Whether a file that decides numbers differs from the commit; None where there is no commit to compare with."""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *_COMMITTED)
    return None if changed is None else bool(changed)


def _git(*arguments: str) -> str | None:
    """Output of a git command at the top of lutlab's own repository; None without one, or without git."""
    root = sources.checkout()
    if root is None or not (root / ".git").exists():  # git would find a repository around lutlab
        return None
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
