"""Damage files at random and count what comes of it.

    python -m tools.attack.damage --cases 1000 --seed 1 --kind blocks-rtn,records --counts counts.json

A case is a kind of file, a damage and a seed: `--kind blocks-rtn --damage flip --seed 17 --cases 1` repeats the one
that a finding names. The counts are written after every batch, and a run with the same file goes on from there. Exit
code 1 where anything was found.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lutlab.kept.files import SUMS
from tools.attack.counts import Counts, Finding, interruptible
from tools.attack.damages import ABSENT, ALL
from tools.attack.forked import CRASH, HANG, REFUSED, TRACEBACK, VALUE, Seen, observed
from tools.attack.kinds import Kind, all_kinds

SECONDS = 120  # of one reading, of slow kinds five times that; a longer one is taken for a hang
BROKEN = "BROKEN"  # the attack itself, not what it attacks
_BATCH = 50
NOTICED, SAME, OTHER_INPUT = "noticed", "same", "other input"
SILENT, UNNAMED, UNHEALED = "SILENT", "UNNAMED", "UNHEALED"
FINE = (NOTICED, REFUSED, SAME, OTHER_INPUT)
FINDINGS = (SILENT, UNNAMED, UNHEALED, TRACEBACK.upper(), CRASH.upper(), HANG.upper())


def verdict(kind: Kind, damage: str, victims: Iterable[Path], whole: Seen, seen: Seen) -> str:
    """One of FINE, or one of FINDINGS.

    Args:
        kind: the kind of files.
        damage: name of the damage.
        victims: files that differ from the undamaged folder's.
        whole: outcome for the undamaged folder.
        seen: outcome for the damaged one.
    """
    if seen.outcome in (TRACEBACK, CRASH, HANG):
        return seen.outcome.upper()
    named = is_named(seen, whole, victims)
    if seen.outcome == REFUSED:
        return REFUSED if named or damage in ABSENT else UNNAMED
    numbers, expected = seen.value["numbers"], whole.value["numbers"]
    if numbers == expected:
        return NOTICED if named else SAME
    if kind.of_user:
        return OTHER_INPUT
    identity = seen.value.get("identity")
    if identity != whole.value.get("identity") and damage not in kind.refused:
        return OTHER_INPUT
    if _part_of(numbers, expected):
        if named:
            return NOTICED
        if damage in ABSENT:
            return SAME
    return SILENT


def is_named(seen: Seen, whole: Seen, victims: Iterable[Path]) -> bool:
    """Whether one of the files, or its folder, is named in a line that was not said of the undamaged folder."""
    lines = set(seen.said.splitlines()) - set(whole.said.splitlines())
    return any(
        victim.name in line or f"/{victim.parent.name}" in line
        for victim in victims
        for line in lines
    )


def _part_of(some: Any, every: Any) -> bool:
    """Whether a mapping holds nothing but entries of another one."""
    return (
        isinstance(every, Mapping) and isinstance(some, Mapping) and some.items() <= every.items()
    )


class Unmade(Exception):
    """A kind of file that cannot be made, or not be read undamaged."""


class Range:
    """A kind of file made once, to be damaged again and again in a copy under the same name."""

    def __init__(self, kind: Kind, scratch: Path) -> None:
        self.kind = kind
        self._pristine = scratch / "pristine" / kind.name
        self.folder = scratch / "work" / kind.name
        self.folder.mkdir(parents=True)
        made = observed(lambda: kind.make(self.folder), seconds=300)
        if made.outcome != VALUE:
            raise Unmade(f"cannot be made: {made.said}")
        shutil.copytree(self.folder, self._pristine, symlinks=True)
        self.whole = self._observed()
        if self.whole.outcome != VALUE:
            raise Unmade(f"cannot be read undamaged: {self.whole.said}")

    def _observed(self) -> Seen:
        seconds = SECONDS * (5 if self.kind.slow else 1)
        return observed(lambda: self.kind.observe(self.folder), seconds)

    def attack(self, damage: str, seed: int) -> tuple[str, Finding | None] | None:
        """The verdict on one case, and the finding where it is bad; None where the damage cannot be applied."""
        shutil.rmtree(self.folder)
        shutil.copytree(self._pristine, self.folder, symlinks=True)
        rng = random.Random(f"{self.kind.name} {damage} {seed}")  # a string seeds alike everywhere
        files = self.kind.victims(self.folder)
        # the hub's, to its blobs
        links = {p: os.path.realpath(p) for p in self.folder.rglob("*") if p.is_symlink()}
        victim = rng.choice(files)
        what = ALL[damage](rng, victim, files)
        if what is None:
            return None
        victims = [victim, *(f for f in files if f != victim and self._differs(f))]
        victims += [link for link, target in links.items() if target == str(victim)]
        seen = self._observed()
        found = verdict(self.kind, damage, victims, self.whole, seen)
        # what is set aside and made again is as good as new; a folder without SHA256SUMS is said to be each time
        if found == NOTICED:
            again = self._observed()
            healed = again.value in (seen.value, self.whole.value)
            quiet = not is_named(again, self.whole, victims) or victim.name == SUMS
            if not healed or not quiet:
                found, seen = UNHEALED, again
        if found in FINE:
            return found, None
        what = f"{self.kind.name}, {victim.relative_to(self.folder)} {what}"
        said = f"{seen.value or ''} {seen.said}"
        return found, _finding(
            f"{self.kind.name} --damage {damage} --seed {seed}", found, what, said
        )

    def _differs(self, file: Path) -> bool:
        before = self._pristine / file.relative_to(self.folder)
        return not file.is_file() or file.read_bytes() != before.read_bytes()


def _finding(case: str, found: str, what: str, said: str) -> Finding:
    return Finding("tools.attack.damage", f"--kind {case}", found, what, said)


def cases(
    ranges: Sequence[Range], damages: Iterable[str], seed: int
) -> Iterator[tuple[Range, str, int]]:
    """Kinds in turn, damages at random, from a seed on, without end; slow ones beside others at every tenth seed."""
    damages = sorted(damages)
    quick = [one for one in ranges if not one.kind.slow]
    while ranges:
        for one in ranges if seed % 10 == 0 else quick or ranges:
            fitting = [name for name in damages if name not in one.kind.without]
            yield one, random.Random(f"{one.kind.name} {seed}").choice(fitting), seed
        seed += 1


def run(
    kinds: Sequence[Kind], damages: Iterable[str], number: int, seed: int, counts: Counts, scratch: Path
) -> None:  # fmt: skip
    """Attack kinds until there are so many cases; a kind that cannot be made is a finding too."""
    ranges = []
    for kind in kinds:
        try:
            ranges.append(Range(kind, scratch))
        except Unmade as error:
            finding = _finding(kind.name, BROKEN, kind.name, str(error))
            counts.add({"kind": kind.name, "damage": "none"}, BROKEN, finding)
    seed = seed if counts.next_seed is None else counts.next_seed
    for done, (one, damage, own) in enumerate(cases(ranges, damages, seed)):
        if counts.total >= number:
            break
        if done % _BATCH == 0:
            counts.write(own)
        if result := one.attack(damage, own):
            counts.add({"kind": one.kind.name, "damage": damage}, *result)
        seed = own + 1
    counts.write(seed)


def main(arguments: Sequence[str] | None = None) -> int:
    """Attack as the command line says; returns the exit code."""
    asked = _arguments(arguments)
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "WANDB_MODE": "offline",
        "TOKENIZERS_PARALLELISM": "false",
    }
    os.environ["OMP_NUM_THREADS"] = "1"
    known = {kind.name: kind for kind in all_kinds()}
    names = asked.kind.split(",") if asked.kind else list(known)
    if unknown := set(names) - set(known):
        print(f"no kind {', '.join(sorted(unknown))}: {', '.join(known)}", file=sys.stderr)
        return 2
    counts = Counts(asked.counts, ("kind", "damage"), FINE)
    damages = asked.damage.split(",") if asked.damage else ALL
    with tempfile.TemporaryDirectory(prefix="lutlab-attack-") as scratch, interruptible():
        chosen = [known[name] for name in names]
        run(chosen, damages, asked.cases, asked.seed, counts, Path(scratch))
    print(counts)
    return 1 if counts.findings else 0


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tools.attack.damage", description=__doc__)
    parser.add_argument("--cases", type=int, default=1000, help="in all, with those counted before")
    parser.add_argument("--seed", type=int, default=0, help="of the first case")
    parser.add_argument("--kind", help="some kinds, with commas between them")
    parser.add_argument("--damage", help=f"some of {', '.join(ALL)}")
    parser.add_argument("--counts", type=Path, help="JSON file of the counts, to go on from")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
