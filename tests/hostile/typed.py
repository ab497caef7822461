"""A command line run in this process up to its first measurement: how it ends, and what it says."""

import contextlib
import io
import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from hydra.core.global_hydra import GlobalHydra

from lutlab.experiment.run import pipeline, results_command
from lutlab.experiment.run.main import main


class Ended(NamedTuple):
    """How a line ended; `code` is None where an exception came out."""

    code: int | None
    out: str
    err: str

    @property
    def broken(self) -> str:
        """The promise that was not kept; empty where all were."""
        message, lines = self.err.strip(), len(self.err.strip().splitlines())
        if self.code is None or "Traceback (most recent" in self.out + self.err:
            return "traceback"
        if self.code == 0:
            return ""
        promises = {
            f"exit code {self.code} of a line that measures nothing": self.code == 2,
            "refused without a message": message,
            f"a message of {lines} lines, {len(message)} characters": lines <= 40 and len(message) <= 6000,
            "a message that is not lutlab's": message.startswith(("lutlab: ", "usage: ")),
        }  # fmt: skip
        return next((name for name, kept in promises.items() if not kept), "")


def typed(line: Sequence[str]) -> Ended:
    """Run a line in this process, up to its first measurement; in the current directory."""
    GlobalHydra.instance().clear()
    out, err = io.StringIO(), io.StringIO()
    stop = mock.Mock(side_effect=SystemExit(0))  # the first row would be measured now
    with (
        mock.patch.object(sys, "argv", ["run.py", *line]),
        mock.patch.object(sys, "stdin", io.StringIO()),
        mock.patch.object(logging.getLogger(), "handlers", []),  # a process of its own has none
        mock.patch.multiple(pipeline, _measure=stop, _report=stop, fill=stop, open_tracker=mock.Mock()),
        mock.patch.object(results_command, "_rerun", stop),
        mock.patch.dict(os.environ),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):  # fmt: skip
        try:
            code = main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else None
        except BaseException:
            code = None
            err.write(traceback.format_exc())
    return Ended(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def scratch() -> Iterator[None]:
    """A current directory with nothing but a broken model folder in it."""
    with tempfile.TemporaryDirectory(prefix="lutlab-fuzz-") as folder, contextlib.chdir(folder):
        Path("broken").mkdir()
        Path("broken/config.json").write_text("{")
        with mock.patch.object(sys, "path", [*sys.path]):
            yield
