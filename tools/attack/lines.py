"""Hostile command lines, seeded: each must end in a documented exit code with at most one message, never a traceback.

python -m tools.attack.lines --cases 5000 --seed 1       unbounded; prints each line that breaks a promise, exits 1

A case is a valid line with one to three mutations. It runs in this process as `main()` does, up to where the first row
would be measured.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import random
import shlex
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from hydra.core.global_hydra import GlobalHydra

from lutlab import registry
from lutlab.experiment.row.row import choices, evaluator_keys, method_keys, row_keys
from lutlab.experiment.run import pipeline, results_command
from lutlab.experiment.run.main import main
from lutlab.fields import MISSING, spelled

# no model's shape has to be computed for these, so that a case takes milliseconds
VALID = (
    "method=rtn q=3 g=32 evaluate=[weight_error]",
    "method=rtn,bcq q=2,3 evaluate=[model_size] baseline=false",
    "method=bcq method.offset=true evaluate=[ppl:lambada-joined]",
    "model=product model.id=256x128 evaluate=[kernel_latency] mu=8",
    "model=synthetic model.id=opt-embedded-s model.layers=1 evaluate=[model_size]",
    "model=folder model.id=broken evaluate=[weight_error]",
    "+exp=table4 rows=[opt-30b/fp16]",
    "mode=dashboard",
    "results show 0123",
    "results list sweep",
    "results diff one other",
    "results export all.csv",
    "results prune quantized --yes",
    "results stale --results results",
    "workspaces --check",
)
LONG = "x" * 5000
_LIMIT = 60  # seconds of this processor, after which a line is said to hang
VALUES = (
    "", "null", "0", "-1", "-0.0", "1e400", "-1e400", "99999999999999999999", "1e9", "0.5", "nan", "inf", "true",
    "false", "3", "2.5", "8", "[]", "{}", "[1,2]", "[null]", "[[]]", "[a,[b]]", "{a:1}", "{a:{b:2}}", "{1:2}", "a,b",
    "2,2", "2,", ",", "1,two", "choice(1,2)", "range(1,3)", "range(0,1e9)", "interval(1,2)", "glob(*)", "sort(3,1)",
    "shuffle(1,2)", "'", '"', "''", "'a b'", "\\", "[", "]", "[1", "{", "}", "(", ")", "${q}", "${", "${oc.env:HOME}",
    "${nothing}", "???", "\u00e9\u4e16\U0001f600", "\u202egnp", "\t", "a\nb", "\x00", "\x1b[31m", "\udcff", LONG,
    "[" * 500, "/dev/null", "/dev/null/x", "..", ".", "/proc/self/mem", "~", "-", "--", "=", "==", "a=b", "@", "cpu:99",
    "cuda:7", "cpu:0", "0x0", "4096x", "1x1", "embedded", "hub", "auto", "zzz", "rtn", "1:2", "*", "%s", "{0}",
)  # fmt: skip
OPTIONS = (
    "--multirun", "-m", "--run", "--help", "-h", "--hydra-help", "--version", "--info", "--info=zzz", "--cfg", "job",
    "--cfg=job", "--resolve", "--package=model", "-p", "--config-dir=/nowhere", "--config-dir", "--config-path=x",
    "--config-name=zzz", "--config-name", "--shell-completion", "-sc=zzz", "--zzz", "--q=3", "-q", "--results",
    "--yes", "-", "--", "-c", "-cd", "-cn",
)  # fmt: skip
WORDS = (
    "q", "plan", "table4", "", " ", "=", "=3", "+", "~", "+q", "~q", "~method", "~q=4", "++", "++q=3", "+new=1",
    "++new=1", "+new.deep.er=1", "method@zzz=rtn", "method@model=rtn", "model@method=opt-125m", "q@x=1",
    "exp=table4,table4", "+exp=zzz", "+exp=null", "artifact=zzz", "artifact=", "row=1", "rows=[a]", "job={}",
    "q:3", "q = 3", "hydra=null", "hydra.mode=null", "hydra.zzz=1", "hydra/sweeper=basic",
    "hydra/launcher=joblib", "hydra/launcher=zzz", "hydra.launcher.n_jobs=0", "hydra.sweep.dir=/dev/null",
    "hydra.searchpath=[zzz]", "hydra.output_subdir=x", "hydra.job.chdir=true", "hydra.verbose=true",
    "hydra/job_logging=zzz", "local=zzz", "local=null", "knobs.luts=4", "knobs=null", "layers={'*': [4]}",
    "layers={'*': x}", "layers.a=1", "sublayers.attention=null", "model.q=3", "evaluator=null",
    "evaluator.ppl=null", "evaluator.zzz=1", "plugins=zzz", "plugins=[zzz,1]", "experiments=zzz",
    "data.root=/nowhere", "data.stand_in=null", "data.stand_in.wikitext2=zzz", "threads=1", "device=cpu", "q=2,2",
)  # fmt: skip


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


def _hangs(*_: object) -> None:
    raise TimeoutError(f"still at work after {_LIMIT} s")


class Generator:
    """Hostile lines, the same ones of the same seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.groups = {name: list(found) for name, found in choices([]).items()}
        keys = row_keys() | evaluator_keys()
        for name in registry.classes("method"):
            keys |= method_keys(name)
        # what a key takes, beside what no key should: half of the lines get as far as the plan
        self.values = {
            name: [*key.values, "???" if key.default is MISSING else spelled(key.default)]
            for name, key in keys.items()
        }

    def line(self) -> list[str]:
        """One line."""
        line = self.draw.choice(VALID).split()
        for _ in range(self.draw.choice((1, 1, 2, 3))):
            self._mutate(line)
        return line

    def _mutate(self, line: list[str]) -> None:
        draw = self.draw
        kinds: tuple[Callable[[list[str]], None], ...] = (
            self._set, self._set, self._set, self._set, self._choose, self._word, self._option, self._repeat,
            self._damage,
        )  # fmt: skip
        draw.choice(kinds)(line)

    def _place(self, line: list[str], argument: str) -> None:
        line.insert(self.draw.randint(0, len(line)), argument)

    def _set(self, line: list[str]) -> None:
        plus = self.draw.choice(("", "", "", "", "+", "++"))
        key = self.draw.choice([*self.values])
        value = self.draw.choice(self.draw.choice((VALUES, VALUES, self.values[key])))
        self._place(line, f"{plus}{key}={value}")

    def _choose(self, line: list[str]) -> None:
        group = self.draw.choice(list(self.groups))
        self._place(line, f"{group}={self.draw.choice([*self.groups[group], *VALUES])}")

    def _word(self, line: list[str]) -> None:
        self._place(line, self.draw.choice(WORDS))

    def _option(self, line: list[str]) -> None:
        self._place(line, self.draw.choice(OPTIONS))

    def _repeat(self, line: list[str]) -> None:
        if line:
            self._place(line, self.draw.choice(line))

    def _damage(self, line: list[str]) -> None:
        """Cut, double or replace a sign of one argument."""
        at = self.draw.randrange(len(line))
        word = line[at]
        place = self.draw.randint(0, len(word))
        sign = self.draw.choice(("", "=", ",", "'", "[", "}", "$", "\\", "@", "\u00e9", " "))
        line[at] = word[:place] + sign + word[place + self.draw.randint(0, 2) :]


def typed(line: Sequence[str]) -> Ended:
    """Run a line in this process, up to its first measurement; in the current directory."""
    GlobalHydra.instance().clear()
    signal.signal(signal.SIGVTALRM, _hangs)
    signal.setitimer(signal.ITIMER_VIRTUAL, _LIMIT)
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
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
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


def broken(cases: int, seed: int) -> Iterator[tuple[list[str], Ended]]:
    """The lines among so many that break a promise."""
    generator = Generator(seed)
    with scratch():
        for _ in range(cases):
            line = generator.line()
            ended = typed(line)
            if ended.broken:
                yield line, ended


def _command() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    count = 0
    for line, ended in broken(given.cases, given.seed):
        count += 1
        shown = " ".join(shlex.quote(argument)[:200] for argument in line)
        print(f"--- {ended.broken}: {shown!a}\n{ended.err[-1200:]!a}", flush=True)
    print(f"{given.cases} lines of seed {given.seed}: {count} broke a promise")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(_command())
