"""Origin of a number: code, libraries, machine. Attached to every record; nothing personal (no host name)."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from lutlab import sources

# Folders of a checkout whose files can decide a number.
_DECIDING = ("src", "kernels", "experiments", "conf")
_LIBRARIES = (
    "lutlab",
    "torch",
    "transformers",
    "tokenizers",
    "datasets",
    "lm-eval",
    "numpy",
    "hydra-core",
)
# Libraries whose major.minor is part of every id; a patch release is not to change a number.
_IN_IDS = ("torch", "transformers")


@functools.cache
def environment() -> dict[str, Any]:
    """Commit and dirty flag, library versions, device and threads of this process."""
    import torch

    cuda = torch.cuda.is_available()
    return git_state(repository()) | {
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


def repository() -> Path | None:
    """The top of lutlab's own repository, if it runs from there; git would also find one that lies around it."""
    root = sources.checkout()
    return root if root and (root / ".git").exists() else None


def git_state(root: Path | None) -> dict[str, Any]:
    """git_commit, and git_dirty: whether a file that can decide a number differs from that commit.

    Such are the files below src, kernels, experiments and conf, new ones that git does not ignore included: a module
    nobody added yet can be what measured.

    Args:
        root: top of a checkout; None, and both are None, as they are where git cannot tell.
    """
    unknown = {"git_commit": None, "git_dirty": None}
    if root is None:
        return unknown
    command = ["git", "status", "--porcelain=v2", "--branch", "--untracked-files=all"]
    try:
        done = subprocess.run(
            [*command, "--", *_DECIDING],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
            timeout=20,
        )
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return unknown
    if done.returncode != 0:
        return unknown
    heads = [line for line in done.stdout.splitlines() if line.startswith("# branch.oid ")]
    changed = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    return {"git_commit": heads[0].split()[2], "git_dirty": bool(changed)}


def libraries(*exact: str) -> dict[str, str]:
    """Libraries as ids hold them: {"torch": "2.13", "transformers": "5.2"}, and some at their exact version.

    Raises:
        importlib.metadata.PackageNotFoundError: one of them is not installed.
    """
    found = {name: major_minor(importlib.metadata.version(name)) for name in _IN_IDS}
    return found | {name: importlib.metadata.version(name) for name in exact}


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


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"
