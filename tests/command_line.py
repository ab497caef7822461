"""Call run.py inside this process (fast) or as a process of its own (where it is killed or uses other workers)."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from tests import warm
from tests.compositions import files_read_once

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


def _run(arguments: Sequence[str], results: Path, patch: pytest.MonkeyPatch) -> int:
    """No figure is drawn, a quarter of a short run's time; what starts a process draws them."""
    GlobalHydra.instance().clear()
    patch.setattr(figure, "render", lambda table: (b"<svg/>", b""))
    patch.setattr(sys, "argv", ["run.py", *arguments, f"results={results}"])
    threads = torch.get_num_threads()
    try:
        with files_read_once():
            return main()
    finally:
        torch.set_num_threads(threads)  # `threads=` is a process' own


def start(*arguments: str, results: Path) -> warm.Child:
    """`python run.py …` as its own process, in the folder of the results."""
    return warm.start(ROOT / "run.py", *arguments, f"results={results}", cwd=results.parent)
