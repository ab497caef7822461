"""Kill a run at random, run it again, and hold it against one that nobody disturbed.

    python -m tools.attack.kills --cases 1000 --seed 1 --table rows,report --counts counts.json

Half of the kills come at a random moment, half at the n-th time that a file is opened for writing, renamed or removed:
these moments are few and short, and the ones that matter. A case is killed up to three times before it may finish.
Then every number is that of the undisturbed run, what was measured before a kill was not measured again, nothing is
damaged, and no draft of a file is left. Exit code 1 where anything was found.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tools.attack.counts import Counts, Finding, interruptible
from tools.attack.forked import CRASH, HANG, REFUSED, TRACEBACK, VALUE, Seen, observed

DIFFERENT, AGAIN, STRAY, DAMAGED = "DIFFERENT", "AGAIN", "STRAY", "DAMAGED"
RESUMED, UNHARMED = "resumed", "unharmed"  # killed; or it ended before
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree")
_DRAFT = re.compile(r"\..+")
_OLD = 3 * 86400  # seconds: a draft that old is nobody's any more
_ROWS = [
    "model=folder", "data=hub", "data.source=folder", "logger=none", "g=16", "method=gptq", "calibration.samples=2",
    "calibration.seqlen=32", "calibration.text=wikitext103-train-head", "evaluate=[ppl:wikitext2,weight_error]",
]  # fmt: skip
# command lines, beside the folders they name
TABLES = {
    "rows": [*_ROWS, "q=3,4"],
    "streamed": [*_ROWS, "q=3", "stream=true", "baseline=false"],
    "quick": [*_ROWS, "method=rtn", "q=3", "baseline=false", "evaluate=[weight_error]"],
    "report": [*_ROWS, "q=3,4", "mode=report"],  # of what `rows` has measured
}


def _table(name: str, scratch: Path, folder: Path) -> int:
    """run.py in this process; its exit code."""
    from hydra.core.global_hydra import GlobalHydra

    from lutlab.experiment.run.main import main

    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    os.environ["LUTLAB_CACHE"] = str(folder / "cache")
    GlobalHydra.instance().clear()
    places = [f"model.id={scratch / 'model'}", f"data.root={scratch / 'data'}"]
    sys.argv = ["run.py", *TABLES[name], *places, f"results={folder / 'results'}"]
    return main()


def _kernels(scratch: Path, folder: Path) -> Any:
    from tools.attack.kinds_caches import call_kernels

    return call_kernels(True, folder)


def _saved(scratch: Path, folder: Path) -> Any:
    """Save where nothing is saved yet, and load."""
    from tools.attack.kinds_models import load_saved, make_saved

    if not (folder / "model").exists():
        make_saved("40KB", folder)
    return load_saved(folder)


# name -> scratch folder, folder of the run -> JSON that must be the same after every kill
RUNS: dict[str, Callable[[Path, Path], Any]] = {
    **{name: functools.partial(_table, name) for name in TABLES},
    "kernels": _kernels,
    "saved": _saved,
}


class Arena:
    """A model, texts and an undisturbed run of every table, made once; each case has a copy of its own folder."""

    def __init__(self, scratch: Path, tables: Sequence[str]) -> None:
        self._scratch, self.folder = scratch, scratch / "work"
        made = observed(self._make, 300)
        if made.outcome != VALUE:
            raise RuntimeError(made.said)
        self._warm()
        self._whole: dict[str, tuple[list[Any], int, float]] = {}
        for name in dict.fromkeys(["rows", *tables]):
            self.fresh(name)
            began = time.monotonic()
            seen = observed(self._counting(name, None), 300)
            if seen.outcome != VALUE or (name in TABLES and seen.value[0]):
                raise RuntimeError(f"{name} does not run: {seen.said}")
            value, changes = seen.value
            self._whole[name] = [value, self._numbers()], changes, time.monotonic() - began
            if name == "rows":
                shutil.copytree(self.folder, scratch / "done")

    def _make(self) -> None:
        from tools.attack.kinds_models import make_folder
        from tools.attack.kinds_texts import make_texts

        make_folder("5GB", self._scratch)
        make_texts(self._scratch / "data")

    def _warm(self) -> None:
        """Import here what every child needs; nothing that was read is known under the children's paths."""
        import tqdm

        tqdm.tqdm.monitor_interval = 0  # its thread would not survive a fork
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = RUNS["rows"](self._scratch, self._scratch / "warm")
        if code:
            raise RuntimeError("the undisturbed run does not end well")

    def fresh(self, name: str) -> None:
        """The folder as it is before a run: empty, for `report` with all records."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir()
        if name == "report":
            shutil.copytree(self._scratch / "done" / "results", self.folder / "results")
            shutil.rmtree(self.folder / "results" / "sweep")

    def _run(self, name: str) -> Any:
        return RUNS[name](self._scratch, self.folder)

    def _counting(self, name: str, last: int | None) -> Callable[[], tuple[Any, int]]:
        """A run that counts its changes of files, and kills itself before the one after the `last`."""

        def call() -> tuple[Any, int]:
            changes = 0

            def count(event: str, arguments: tuple[Any, ...]) -> None:
                nonlocal changes
                if not _changes(event, arguments, str(self.folder)):
                    return
                if changes == last:
                    os.kill(os.getpid(), signal.SIGKILL)
                changes += 1

            sys.addaudithook(count)
            return self._run(name), changes

        return call

    def _numbers(self) -> dict[str, Any]:
        """Every record's numbers, and every table."""
        records = {path.name: json.loads(path.read_text())["record"] for path in self._records()}
        kept = ("status", "values", "samples", "n", "evaluation", "run")
        tables = sorted(self.folder.glob("results/sweep/*/table.csv"))
        return {
            "records": {name: {key: r[key] for key in kept} for name, r in records.items()},
            "tables": {path.parent.name: path.read_text() for path in tables},
        }

    def _records(self) -> list[Path]:
        return sorted(self.folder.glob("results/records/*.json"))

    def attack(self, name: str, seed: int) -> tuple[str, Finding | None]:
        """Kill, run again, compare."""
        rng = random.Random(f"{name} {seed}")
        whole, changes, seconds = self._whole[name]
        self.fresh(name)
        said, killed = [], False
        for _ in range(rng.choice([1, 1, 2, 3])):
            if rng.random() < 0.5:
                last = rng.randrange(changes)
                seen = observed(self._counting(name, last), 300)
                said.append(f"at change {last} of {changes}")
            else:
                moment = rng.uniform(0, seconds)
                seen = observed(lambda: self._run(name), moment)
                said.append(f"after {moment:.3f} of {seconds:.3f} s")
            killed |= seen.outcome in (CRASH, HANG)
        before = {path: path.read_bytes() for path in self._records()}
        for path in self.folder.rglob(".*"):
            os.utime(path, (time.time() - _OLD,) * 2, follow_symlinks=False)
        again = observed(lambda: self._run(name), 300)
        if found := self._found(again, before, whole):
            what = f"killed {', '.join(said)}: {found[1]}"
            return found[0], Finding(
                "tools.attack.kills", f"--table {name} --seed {seed}", found[0], what, again.said
            )
        return RESUMED if killed else UNHARMED, None

    def _found(
        self, again: Seen, before: dict[Path, bytes], whole: list[Any]
    ) -> tuple[str, str] | None:
        """What is wrong after the last run."""
        if again.outcome in (TRACEBACK, CRASH, HANG, REFUSED):
            return again.outcome.upper(), ""
        if [again.value, self._numbers()] != whole:
            return DIFFERENT, f"{again.value} and the records, undisturbed {whole[0]}"
        if changed := [p.name for p, content in before.items() if p.read_bytes() != content]:
            return AGAIN, f"{changed} measured again"
        if damaged := [*self.folder.rglob("*.damaged*")]:
            return DAMAGED, f"{damaged}"
        if drafts := [p for p in self.folder.rglob(".*") if _DRAFT.fullmatch(p.name)]:
            return STRAY, f"left: {', '.join(str(p.relative_to(self.folder)) for p in drafts)}"
        return None


def _changes(event: str, arguments: tuple[Any, ...], folder: str) -> bool:
    """Whether an audit event is a change of a file below a folder."""
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES
    return bool(writes or event in _CHANGES) and str(arguments[0]).startswith(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill as the command line says; returns the exit code."""
    parser = argparse.ArgumentParser("python -m tools.attack.kills", description=__doc__)
    parser.add_argument("--cases", type=int, default=100, help="in all, with those counted before")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--table", default=",".join(RUNS), help=f"some of {', '.join(RUNS)}")
    parser.add_argument("--counts", type=Path, help="JSON file of the counts, to go on from")
    asked = parser.parse_args(arguments)
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    import torch

    torch.set_num_threads(1)  # no pool: it would not survive a fork
    names = asked.table.split(",")
    counts = Counts(asked.counts, ("table",), (RESUMED, UNHARMED))
    seed = counts.next_seed if counts.next_seed is not None else asked.seed
    with tempfile.TemporaryDirectory(prefix="lutlab-kills-") as scratch, interruptible():
        arena = Arena(Path(scratch), names)
        while counts.total < asked.cases:
            name = names[seed % len(names)]
            counts.add({"table": name}, *arena.attack(name, seed))
            seed += 1
            counts.write(seed)
        os.chdir("/")
    print(counts)
    return 1 if counts.findings else 0


if __name__ == "__main__":
    sys.exit(main())
