"""The page's scripts run in their order: what one reads when it is loaded is defined above it."""

from __future__ import annotations

import re

from lutlab.experiment.records.dashboard import SCRIPTS, _part

TOP = re.compile(r"^(?:const|let) (\w+)|^const \{([^}]*)\}", re.MULTILINE)


def test_nothing_is_read_before_it_is_defined():
    """A `const` is unreadable above its line: whatever runs on load stands below all that its functions read."""
    text = "\n".join(_part(f"{name}.js") for name in SCRIPTS)
    lines = text.splitlines()
    defined = {m[1]: text[: m.start()].count("\n") for m in TOP.finditer(text) if m[1]}
    starts = [n for n, line in enumerate(lines) if re.match(r"(?:async )?function (\w+)", line)]
    bodies = {}
    for first in starts:
        last = next(n for n in range(first, len(lines)) if lines[n] == "}")
        bodies[re.match(r"(?:async )?function (\w+)", lines[first])[1]] = "\n".join(
            lines[first:last]
        )
    inside = {
        n for first in starts for n in range(first, first + bodies_length(bodies, lines, first))
    }

    def reads(code: str, seen: frozenset[str] = frozenset()) -> set[str]:
        words = set(re.findall(r"\b\w+\b", code))
        called = words & (bodies.keys() - seen)
        deeper = (reads(bodies[name], seen | called) for name in called)
        return (words & defined.keys()).union(*deeper)

    for number, line in enumerate(lines):
        runs = re.match(r"(?:const|let) \w+ = (\w+)\(|(\w+)\(", line)
        name = runs and (runs[1] or runs[2])
        if number in inside or name not in bodies:
            continue
        late = {word for word in reads(line) if defined[word] > number}
        assert not late, (
            f"line {number + 1} of the scripts, {line!r}, reads {late} before it is defined"
        )


def bodies_length(bodies: dict[str, str], lines: list[str], first: int) -> int:
    """Lines of the function that begins in a line."""
    name = re.match(r"(?:async )?function (\w+)", lines[first])[1]
    return bodies[name].count("\n") + 2
