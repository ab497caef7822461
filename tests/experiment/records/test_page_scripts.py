"""The page's scripts run in their order: what one reads when it is loaded is defined above it."""

from __future__ import annotations

import re

from lutlab.experiment.records.dashboard import SCRIPTS, _part

DEFINED = re.compile(r"(?:const|let) (\w+)")
FUNCTION = re.compile(r"(?:async )?function (\w+)")
RUNS = re.compile(r"(?:(?:const|let) \w+ = )?(\w+)\(")


def test_nothing_is_read_before_it_is_defined():
    """A `const` is unreadable above its line: whatever runs on load stands below all that its functions read."""
    lines = "\n".join(_part(f"{name}.js") for name in SCRIPTS).splitlines()
    defined = {m[1]: at for at, line in enumerate(lines) if (m := DEFINED.match(line))}
    bodies = {
        m[1]: "\n".join(lines[at : lines.index("}", at)])
        for at, line in enumerate(lines)
        if (m := FUNCTION.match(line))
    }

    def reads(code: str, seen: frozenset[str] = frozenset()) -> set[str]:
        words = set(re.findall(r"\w+", code))
        called = words & (bodies.keys() - seen)
        return (words & defined.keys()).union(*(reads(bodies[f], seen | called) for f in called))

    calls = {
        at: line for at, line in enumerate(lines) if (m := RUNS.match(line)) and m[1] in bodies
    }
    assert len(calls) > 5
    for at, line in calls.items():
        late = {word for word in reads(line) if defined[word] > at}
        assert not late, (
            f"line {at + 1} of the scripts, {line!r}, reads {late} before it is defined"
        )
