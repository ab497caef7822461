"""A command line run in this process up to its first measurement: how it ends, and what it says."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from hydra.core.global_hydra import GlobalHydra

from lutlab.experiment.run import pipeline, results_command
from lutlab.experiment.run.main import main


class Stopped(Exception):
    """The first row would be measured now."""


@dataclass(frozen=True)
class Ended:
    """How a line ended; `code` is None where an exception came out."""

    code: int | None
    out: str
    err: str

    @property
    def broken(self) -> str:
        """The promise that was not kept; empty where all were."""
        said = self.err.strip()
        if self.code is None or "Traceback (most recent" in self.out + self.err:
            return "traceback"
        if self.code not in (0, 2):
            return f"exit code {self.code} of a line that measures nothing"
        if self.code == 2 and not said:
            return "refused without a message"
        if self.code == 2 and (len(said.splitlines()) > 40 or len(said) > 6000):
            return f"a message of {len(said.splitlines())} lines, {len(said)} characters"
        if self.code == 2 and not said.startswith(("lutlab: ", "usage: ")):
            return "a message that is not lutlab's"
        return ""


def typed(line: Sequence[str]) -> Ended:
    """Run a line in this process, up to its first measurement; in the current directory."""
    GlobalHydra.instance().clear()
    out, err = io.StringIO(), io.StringIO()
    stop = mock.Mock(side_effect=Stopped)
    with (
        mock.patch.object(sys, "argv", ["run.py", *line]),
        mock.patch.object(logging.getLogger(), "handlers", []),  # a process of its own has none
        mock.patch.object(pipeline, "_measure", stop),
        mock.patch.object(pipeline, "_report", stop),
        mock.patch.object(pipeline, "open_tracker", mock.Mock()),
        mock.patch.object(pipeline, "fill", stop),
        mock.patch.object(results_command, "_rerun", stop),
        mock.patch.object(sys, "stdin", io.StringIO()),
        mock.patch.dict(os.environ),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            code = main()
        except Stopped:
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else None
        except BaseException:
            code = None
            err.write(traceback.format_exc())
    return Ended(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """An empty current directory with a broken model folder in it."""
    before, paths = Path.cwd(), list(sys.path)
    folder = Path(tempfile.mkdtemp(prefix="lutlab-fuzz-"))
    (folder / "broken").mkdir()
    (folder / "broken" / "config.json").write_text("{")
    os.chdir(folder)
    try:
        yield folder
    finally:
        os.chdir(before)
        sys.path[:] = paths
        shutil.rmtree(folder)
