"""Call run.py inside this process (fast) or as a process of its own (where it is killed or uses other workers)."""

from __future__ import annotations

import copy
import io
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra._internal.config_repository import CachingConfigRepository
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from tests import warm

from lutlab.experiment.report import figure
from lutlab.experiment.run.main import main

ROOT = Path(__file__).resolve().parents[1]
# one short text, and nothing beside what is asked for
QUICK = ["evaluate=[ppl:lambada-joined,weight_error]", "logger=none", "baseline=false"]


@dataclass(frozen=True)
class Outcome:
    """Exit code and what was printed."""

    code: int
    out: str
    err: str


class CommandLine:
    """`command("q=3", …)` runs `python run.py q=3 … results=<folder>` in this process."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
    ) -> None:
        self.results = folder / "results"
        self._monkeypatch = monkeypatch
        self._capfd = capfd

    def __call__(self, *arguments: str) -> Outcome:
        code = _run(arguments, self.results, self._monkeypatch)
        captured = self._capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    def records(self) -> dict[str, dict[str, Any]]:
        """Cell id -> stored record."""
        return records(self.results)


def records(results: Path) -> dict[str, dict[str, Any]]:
    """Cell id -> stored record of a results folder."""
    files = sorted((results / "records").glob("*.json"))
    return {f.stem: json.loads(f.read_text())["record"] for f in files}


def printed(*arguments: str, results: Path) -> str:
    """Text that a run in this process prints: one for many tests, which `command` cannot be."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as out:
        assert _run(arguments, results, patch) == 0
    return out.getvalue()


_read: dict[tuple[object, ...], ConfigResult] = {}


def _reading_once(cls: type[ConfigSource]) -> Callable[[ConfigSource, str], ConfigResult]:
    """`load_config` of a class of sources, by path, size and time of the file."""
    load = cls.load_config

    def load_once(source: ConfigSource, config_path: str) -> ConfigResult:
        file = Path(source.path, source._normalize_file_name(config_path))
        about = file.stat() if file.is_file() else None
        key = (cls, file, about and (about.st_mtime_ns, about.st_size))
        if key not in _read:
            _read[key] = load(source, config_path)
        return copy.deepcopy(_read[key])

    return load_once


def _of(repository: CachingConfigRepository, delegate: object) -> None:
    repository.delegate, repository.cache = copy.copy(delegate), {}


def _run(arguments: Sequence[str], results: Path, patch: pytest.MonkeyPatch) -> int:
    """Where most of a short run's time would go: no figure is drawn, and Hydra, which composes a row five times, does
    not copy all schemas and read all files for each. What starts a process has both.
    """
    Plugins.instance()  # finds them, and makes their classes anew
    for scheme in ("file", "pkg"):
        source = SourcesRegistry.instance().resolve(scheme)
        patch.setattr(source, "load_config", _reading_once(source))
    patch.setattr(CachingConfigRepository, "__init__", _of)
    GlobalHydra.instance().clear()
    patch.setattr(figure, "render", lambda table: (b"<svg/>", b""))
    patch.setattr(sys, "argv", ["run.py", *arguments, f"results={results}"])
    threads = torch.get_num_threads()
    try:
        return main()
    finally:
        torch.set_num_threads(threads)  # `threads=` is a process' own


def start(*arguments: str, results: Path) -> warm.Child:
    """`python run.py …` as its own process, in the folder of the results."""
    return warm.start(ROOT / "run.py", *arguments, f"results={results}", cwd=results.parent)
