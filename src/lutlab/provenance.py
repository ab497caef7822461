"""Where a number comes from: code, libraries, machine. Attached to every record; nothing personal (no host name)."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).parent
# sources that decide a number: a change in any of them makes a new cell
_DECIDING = (
    "groups.py",
    "widths.py",
    "calibrate.py",
    "rescale.py",
    "apply.py",
    "modules.py",
    "data/*.py",
    "models/*.py",
    "quantizers/*.py",
    "formats/*.py",
    "evaluators/*.py",
)
_SEARCHING = ("allocate.py", "sensitivity.py")
_LIBRARIES = ("lutlab", "torch", "transformers", "tokenizers", "datasets", "numpy", "hydra-core")


def code_sha256() -> str:
    """Hash of the sources that decide measured numbers; part of every cell's id."""
    return _sources_sha256(_DECIDING)


def search_sha256() -> str:
    """Hash of the sources that decide the widths found under a budget; part of the ids of such cells."""
    return _sources_sha256(_SEARCHING)


@functools.cache
def _sources_sha256(patterns: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for path in sorted(p for pattern in patterns for p in _PACKAGE.glob(pattern)):
        digest.update(
            path.relative_to(_PACKAGE).as_posix().encode() + b"\0" + path.read_bytes() + b"\0"
        )
    return digest.hexdigest()


@functools.cache
def environment() -> dict[str, Any]:
    """Commit and dirty flag, library versions, device and threads of this process."""
    import torch

    cuda = torch.cuda.is_available()
    return {
        "git_commit": _git("rev-parse", "HEAD"),
        "git_dirty": bool(_git("status", "--porcelain", "--untracked-files=no", "--", "src")),
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


def _git(*arguments: str) -> str | None:
    """Output of a git command here; None outside a checkout or without git."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=_PACKAGE,
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
