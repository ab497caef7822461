"""Counts of verdicts and the findings behind them, in a JSON file from which a stopped attack goes on."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lutlab.kept.files import write_atomically

_SHOWN = 600  # characters of what a finding said


@dataclass(frozen=True)
class Finding:
    """A case that went wrong, and the arguments that repeat it."""

    module: str
    case: str
    verdict: str
    what: str
    said: str

    def __str__(self) -> str:
        said = " ".join(self.said.split())[-_SHOWN:]
        return f"{self.verdict}: {self.what}\n    python -m {self.module} {self.case} --cases 1\n    {said}"


@contextmanager
def interruptible() -> Iterator[None]:
    """An attack may be ended by Ctrl-C at any time: its counts so far are printed."""
    try:
        yield
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)


class Counts:
    """Verdicts by kind, by damage or by what a table is made of."""

    def __init__(self, path: Path | None, by: Sequence[str], fine: Sequence[str]) -> None:
        """Go on from the file where it is there.

        Args:
            path: the JSON file; None keeps nothing.
            by: a table each.
            fine: verdicts that are no findings.
        """
        self._path, self._fine, self._began = path, fine, time.monotonic()
        known = json.loads(path.read_text()) if path and path.exists() else {}
        self.next_seed: int | None = known.get("next_seed")
        self.tables = {name: Counter(known.get(name, {})) for name in by}
        self.findings: list[str] = known.get("findings", [])
        self._seconds: float = known.get("seconds", 0.0)

    def add(self, case: Mapping[str, str], found: str, finding: Finding | None) -> None:
        """Count a case, which says of each table in which row it stands; a finding is printed at once."""
        for by, name in case.items():
            self.tables[by][f"{name} | {found}"] += 1
        if finding:
            self.findings.append(str(finding))
            print(finding, file=sys.stderr, flush=True)

    @property
    def total(self) -> int:
        """All cases, with those of the file."""
        return sum(next(iter(self.tables.values())).values())

    @property
    def seconds(self) -> float:
        """Time spent, with that of the file."""
        return self._seconds + time.monotonic() - self._began

    def write(self, next_seed: int) -> None:
        """Keep all."""
        if self._path:
            known = {
                **self.tables,
                "findings": self.findings,
                "next_seed": next_seed,
                "seconds": self.seconds,
            }
            write_atomically(self._path, json.dumps(known, indent=1).encode())

    def __str__(self) -> str:
        tables = [self._table(by) for by in self.tables]
        sums = f"{self.total} cases, {len(self.findings)} findings, {self.seconds:.0f} s"
        return "\n\n".join([*tables, sums])

    def _table(self, by: str) -> str:
        """A row a kind or a damage, a column a verdict."""
        rows: dict[str, Counter[str]] = {}
        for key, count in self.tables[by].items():
            name, _, found = key.partition(" | ")
            rows.setdefault(name, Counter())[found] += count
        rows = dict(sorted(rows.items())) | {"in all": sum(rows.values(), Counter())}
        bad = sorted(rows["in all"].keys() - set(self._fine))
        columns = [*self._fine, *bad]
        head = f"{by:20}" + "".join(f"{column:>12}" for column in columns) + f"{'cases':>8}"
        lines = [
            f"{name:20}" + "".join(f"{row[c]:>12}" for c in columns) + f"{row.total():>8}"
            for name, row in rows.items()
        ]
        return "\n".join([head, *lines])
