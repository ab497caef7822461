"""The lock: version, fingerprint and golden cell of each component, so that nobody forgets to raise a version.

    python -m tools.lock      check, and write tests/components.lock.json

Where a fingerprint moved, the numbers must be the same, which the golden cell shows to the last bit, or the version
must have been raised. A component without a golden cell (kernels, timers, evaluators of speeds) needs a person's word
for the first: --unchanged <component>. A test reads the same file in CI (tests/tools/test_lock.py).

    {"made_with": {library: version}, "components": {name: {"version", "fingerprint", "golden"}}}

`made_with` names the libraries and the machine of the golden cells; `golden` is null of what has none.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from lutlab.base import sources
from lutlab.base.errors import LutlabError, nearest
from lutlab.base.kept.files import write_atomically
from lutlab.experiment.store import components
from tools import golden

FILE = "tests/components.lock.json"
COMMAND = "make lock"


Lock = Mapping[str, Any]  # content of the file


def path() -> Path:
    """Path of the lock's file."""
    root = sources.checkout()
    if root is None:
        raise LutlabError("the lock is of a checkout, and lutlab runs from an installed package")
    return root / FILE


def read(file: Path) -> Lock:
    """The lock as it was written; without any component where there is no file."""
    if not file.exists():
        return {"made_with": {}, "components": {}}
    return json.loads(file.read_text(encoding="utf-8"))


def now() -> Lock:
    """The components as they are, their golden cells made here: some seconds."""
    cells = golden.golden_cells()
    found = {
        name: {
            "version": components.version(name),
            "fingerprint": components.fingerprint_of(name),
            "golden": cells.get(name),
        }
        for name in components.every_name()
    }
    return {"made_with": golden.made_with(), "components": found}


def comparable(old: Lock, new: Lock) -> bool:
    """Whether golden cells of both were made where they come out the same."""
    return old["made_with"] == new["made_with"]


def refusals(old: Lock, new: Lock, unchanged: Collection[str] = ()) -> dict[str, str]:
    """Component -> why the lock cannot go from old to new; {} where it can.

    Args:
        old: lock that is written.
        new: lock of the present sources.
        unchanged: components without a golden cell whose numbers a person knows to be the same.
    """
    same_place = comparable(old, new)
    old, new = old["components"], new["components"]
    both = sorted(old.keys() & new.keys())
    raised = any(old[n]["version"] < new[n]["version"] for n in both)
    found = {
        n: _refusal(n, old[n], new[n], same_place, raised)
        for n in both
        if n not in unchanged or new[n]["golden"] is not None
    }
    return {name: reason for name, reason in found.items() if reason}


def _refusal(
    name: str, old: Mapping[str, Any], new: Mapping[str, Any], same_place: bool, raised: bool
) -> str:
    """raised: whether any component's version was; one that rests on it may then have other numbers."""
    version, before = new["version"], old["version"]
    raise_it = f"raise its version from {version} to {version + 1}"
    if version != before:
        lowered = f"its version is {version} and was {before}: versions only rise"
        return lowered if version < before else ""
    moved = new["fingerprint"] != old["fingerprint"]
    if new["golden"] is None:
        return moved and (
            f"its source moved, and it has no golden cell: {raise_it}, or, if its numbers are the same, say so: "
            f"{COMMAND} UNCHANGED={name}"
        )
    if not same_place:
        return moved and (
            f"its source moved, and its golden cell was made with other libraries or on another processor: {raise_it}, "
            f"or run {COMMAND} at the commit before with these, and then again here"
        )
    if new["golden"] == old["golden"] or (raised and not moved):
        return ""
    if moved:
        return f"its source and its numbers moved: {raise_it}, or find what changed them"
    return "its numbers moved and its source did not: what it rests on did; raise the version of that, or its own"


def write(file: Path, lock: Lock) -> None:
    """Write the lock down."""
    text = json.dumps(lock, indent=1, sort_keys=True)
    write_atomically(file, f"{text}\n".encode())


def _matching(pattern: str, names: Collection[str]) -> list[str]:
    found = fnmatch.filter(names, pattern)
    if not found:
        raise LutlabError(f"unknown component '{pattern}': {nearest(pattern, names)}")
    return found


def told(reasons: Mapping[str, str]) -> str:
    """Reasons, a line for each component."""
    return "\n".join(f"{name}: {reason}" for name, reason in reasons.items())


def main(arguments: list[str] | None = None) -> int:
    """Check and write the lock; 1 where it is refused."""
    parser = argparse.ArgumentParser(description="Check the components' versions and lock them.")
    parser.add_argument(
        "--unchanged",
        nargs="+",
        default=[],
        metavar="component",
        help="its source moved, it has no golden cell, and its numbers are the same; patterns as kernel/*",
    )
    patterns = parser.parse_args(arguments).unchanged
    try:
        old, new = read(path()), now()
        unchanged = [name for pattern in patterns for name in _matching(pattern, new["components"])]
        if reasons := refusals(old, new, unchanged):
            raise LutlabError(f"the lock stays as it was\n{told(reasons)}")
    except LutlabError as error:
        print(f"error: {error}")
        return 1
    moved = [n for n, one in new["components"].items() if old["components"].get(n) != one]
    write(path(), new)
    print(f"{FILE}: {len(new['components'])} components, {len(moved)} of them anew")
    print("\n".join(f"  {name}" for name in moved))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
