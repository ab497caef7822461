"""Shared fixtures: no network, no account, one torch thread a worker."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Read when torch is imported. Workers share the cores; a second thread does not speed tiny models up.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
from hypothesis import settings
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.command_line import CommandLine

# The same examples in each run: what passes today passes tomorrow. `make test-random` draws others, which add up.
settings.register_profile("random", deadline=None, max_examples=100)
settings.register_profile(
    "lutlab", settings.get_profile("random"), derandomize=True, max_examples=25
)
settings.load_profile("lutlab")

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real data and models beside the checkout; the product works without it, these tests skip."""
    folder = ROOT.parent / "shared"
    if not (folder / "data").is_dir():
        pytest.skip("no ../shared with real data and models")
    return folder


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> CommandLine:
    """run.py in this process, with results under tmp_path."""
    return CommandLine(tmp_path, monkeypatch, capfd)


@pytest.fixture
def trapped(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, from which no process may import: modules by the names of those that a child needs."""
    folder = tmp_path_factory.mktemp("trap")
    for name in ("lutlab", "torch", "transformers", "numpy"):
        (folder / f"{name}.py").write_text("raise SystemExit('the trap was imported')\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine that can build no kernel for the CPU: torch multiplies."""
    from lutlab.kernels.cpu.rows import rows_gemv

    monkeypatch.setenv("LUTLAB_CC", str(tmp_path / "none"))
    rows_gemv._library.cache_clear()
    yield
    rows_gemv._library.cache_clear()


def locked() -> bool:
    """Whether what is installed of requirements/lock.txt has the versions that stand there."""
    lines = (ROOT / "requirements" / "lock.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    installed = {
        canonicalize_name(package.name): package.version
        for package in importlib.metadata.distributions()
    }
    return all(
        pin.specifier.contains(installed[pin.name], prereleases=True)
        for pin in pins
        if pin.name in installed and (pin.marker is None or pin.marker.evaluate())
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make every warning an error, under the lock: what newer libraries deprecate fails no one's tests.

    For LUTLAB_ISA see tests/kernels/simde.py.
    """
    if locked():
        config.addinivalue_line("filterwarnings", "error")
    if "LUTLAB_ISA" in os.environ:
        from tests.kernels import simde

        simde.emulate()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, and say so, what needs a GPU where there is none."""
    import torch

    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
