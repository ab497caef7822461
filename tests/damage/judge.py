"""Was a damage noticed? The verdict on one case, by what was seen of the undamaged and of the damaged folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.damage.damages import ABSENT
from tests.damage.forked import CRASH, HANG, REFUSED, TRACEBACK, Seen
from tests.damage.kinds import Kind

NOTICED, SAME, OTHER_INPUT = "noticed", "same", "other input"
SILENT, UNNAMED, UNHEALED = "SILENT", "UNNAMED", "UNHEALED"
FINE = (NOTICED, REFUSED, SAME, OTHER_INPUT)
FINDINGS = (SILENT, UNNAMED, UNHEALED, TRACEBACK.upper(), CRASH.upper(), HANG.upper())


def verdict(kind: Kind, damage: str, victims: Iterable[Path], whole: Seen, seen: Seen) -> str:
    """One of FINE, or one of FINDINGS.

    Args:
        kind: of the files.
        damage: its name.
        victims: the files that differ from the undamaged folder's.
        whole: of the undamaged folder.
        seen: of the damaged one.
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
