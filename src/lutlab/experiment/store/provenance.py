"""Origin of a number: code, libraries, machine. Attached to every record; nothing personal (no host name).

An evaluator whose numbers are of the machine says so by `of_this_machine = True`. The ids of its cells then hold
processor, cores, instruction set and threads: a tokens/s of another machine, or of other threads, is another cell.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import lutlab
from lutlab.base import sources
from lutlab.base.devices import gpu_name
from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import sha256_of
from lutlab.base.lazy import torch
from lutlab.kernels.codegen import compiler
from lutlab.kernels.codegen.isa import described, detect

# Folders of a checkout whose files can decide a number.
DECIDING = ("src", "kernels", "experiments", "conf")
_LIBRARIES = (
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "lm-eval",
    "numpy",
    "hydra-core",
)
_NO_COMMIT = "(initial)"
# Libraries that ids hold at major.minor: a patch release is not to change a number.
_BY_MINOR = ("torch", "transformers")
# What a hook, or a shell inside another repository, sets: it would answer for that one.
_OF_ANOTHER = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_COMMON_DIR",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
)
_SECONDS_OF_GIT = 20.0


@functools.cache
def environment() -> dict[str, Any]:
    """Commit and dirty flag, digest of the sources, library versions, processor, threads and tools of this process.

    None is what cannot be known here: the commit of a wheel or of another user's repository, a compiler that is not
    installed.
    """
    cuda = torch.cuda.is_available()
    return git_state(repository()) | {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "sources": sources_digest(),
        "cpu": cpu_name(Path("/proc/cpuinfo")),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "isa": _isa(),
        "torch_cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "blas": blas(torch.__config__.show()),
        "compiler": _compiler(),
        "gpu": torch.cuda.get_device_name() if cuda else None,
        "cuda": torch.version.cuda if cuda else None,
        "versions": {"lutlab": lutlab.__version__, **{name: _version(name) for name in _LIBRARIES}},
    }


def machine(device: str, threads: int | None = None) -> dict[str, Any]:
    """Facts of the machine that ids of speeds hash.

    The device is one of torch's, or `spread`; the number of threads is torch's own by default.

    Raises:
        LutlabError: threads is less than 1, or LUTLAB_ISA names what this CPU cannot run.
    """
    if threads is not None and threads < 1:
        raise LutlabError(f"threads={threads}: give at least 1, or null for torch's own choice")
    about = environment()
    known = {
        "cpu": about["cpu"],
        "cores": about["cores"],
        "isa": detect().name,
        "threads": threads or torch.get_num_threads(),
    }
    if device == "cpu":
        return known
    gpus = torch.cuda.device_count() if device == "spread" else 1
    return known | {"gpu": gpu_name(device), "gpus": gpus}


def machine_name(about: Mapping[str, Any]) -> str:
    """`amd-epyc-25-17-avx512-2cores`: the folder of a machine, from its processor, the instruction set of lutlab's
    kernels, its cores, and its GPU, if it has one.

    Of an old record, which names none of lutlab's, the instruction set is torch's.
    """
    isa = about.get("isa") or about.get("torch_cpu_capability", "")
    name = f"{about['cpu']} {isa} {about['cores']}cores {about['gpu'] or ''}"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def repository() -> Path | None:
    """The top of lutlab's own repository, if it runs from there; git would also find one that lies around it."""
    root = sources.checkout()
    return root if root and (root / ".git").exists() else None


def git_state(root: Path | None, folders: Sequence[str] = DECIDING) -> dict[str, Any]:
    """git_commit, and git_dirty: whether a file that can decide a number differs from that commit.

    Such are the files below the folders, new ones that git does not ignore included: a module nobody added yet can be
    what measured.

    Both are None without a checkout, and where git cannot tell or nothing is committed.
    """
    unknown = {"git_commit": None, "git_dirty": None}
    if root is None:
        return unknown
    command = ("status", "--porcelain=v2", "--branch", "--untracked-files=all", "--", *folders)
    try:
        lines = ask_git(*command, root=root).decode(errors="replace").splitlines()
    except NoAnswer:
        return unknown
    heads = [line.split()[2] for line in lines if line.startswith("# branch.oid ")]
    if heads in ([], [_NO_COMMIT]):
        return unknown
    changed = [line for line in lines if not line.startswith("#")]
    return {"git_commit": heads[0], "git_dirty": bool(changed)}


class NoAnswer(Exception):
    """git is not installed, refuses (another user's repository), finds a broken one, or takes too long."""


def ask_git(*arguments: str, root: Path | None = None) -> bytes:
    """The output of a git command in a folder, or the current one; nothing is written into the repository.

    Raises:
        NoAnswer: git fails; the error has its message.
    """
    variables = {key: value for key, value in os.environ.items() if key not in _OF_ANOTHER}
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=root,
            env=variables | {"GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            check=False,
            timeout=_SECONDS_OF_GIT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswer(f"git cannot be run: {error}") from error
    if done.returncode:
        raise NoAnswer(done.stderr.decode(errors="replace").strip())
    return done.stdout


def sources_digest() -> str:
    """16 hex digits of all files of lutlab that can decide a number, the same of a wheel and its checkout."""
    package = Path(lutlab.__file__).parent
    roots = {"src": package, **{name: sources.folder(name) for name in DECIDING[1:]}}
    digest = hashlib.sha256()
    for name, root in roots.items():
        inside = ((path.relative_to(root), path) for path in sorted(root.rglob("*")))
        for place, path in inside:
            left_out = "__pycache__" in place.parts or (
                root == package and place.parts[0] == "share"
            )
            if path.is_file() and not left_out:
                digest.update(f"{name}/{place.as_posix()} {sha256_of(path)}\n".encode())
    return digest.hexdigest()[:16]


def blas(torch_says: str) -> str | None:
    """The library that multiplies matrices and factors them on a CPU, by what torch says of its build.

    >>> blas("Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 20240605, BLAS_INFO=mkl, ")
    'mkl 2024.2'
    """
    name = re.search(r"BLAS_INFO=(\w+)", torch_says)
    version = re.search(r"Math Kernel Library Version ([\d.]+)", torch_says)
    return " ".join(match[1] for match in (name, version) if match) or None


def libraries(*names: str) -> dict[str, str]:
    """Versions of torch and of other distributions as ids hold them: {"torch": "2.13", "lm-eval": "0.4.13"}.

    Raises:
        importlib.metadata.PackageNotFoundError: one of them is not installed.
    """
    versions = {name: importlib.metadata.version(name) for name in ("torch", *names)}
    return versions | {name: major_minor(versions[name]) for name in _BY_MINOR if name in versions}


def major_minor(version: str) -> str:
    """The first two numbers of a version.

    >>> major_minor("2.13.0+cpu")
    '2.13'
    """
    return ".".join(version.partition("+")[0].split(".")[:2])


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _isa() -> str | None:
    """The instruction set of lutlab's kernels; None where LUTLAB_ISA names none that runs."""
    try:
        return detect().name
    except LutlabError:  # whoever needs kernels says so
        return None


def _compiler() -> str | None:
    """The version of the C compiler that builds lutlab's kernels; None: torch multiplies."""
    try:
        return compiler.find().version
    except compiler.NoCompiler:
        return None


def cpu_name(cpuinfo: Path) -> str:
    """`AMD EPYC 25/17`: the name of a CPU, its family and its model, as virtual machines share one name.

    The vendor comes first where the name does not have it; an ARM core says implementer and part.
    """
    lines = (line.partition(":") for line in described(cpuinfo).splitlines())
    about = {name.strip(): value.strip() for name, _, value in lines}
    name = about.get("model name") or platform.processor() or platform.machine()
    name = " ".join(re.sub(r"\((R|TM|tm|r)\)", "", name).split())
    vendor = re.sub("^(Authentic|Genuine)", "", about.get("vendor_id", ""))
    for first, second in (("cpu family", "model"), ("CPU implementer", "CPU part")):
        if first in about and second in about:
            name += f" {about[first]}/{about[second]}"
    return name if vendor.lower() in name.lower() else f"{vendor} {name}"
