"""Ways in which a file is damaged: of its bytes, of its JSON, of its text, of what its name leads to.

    damage(rng, victim, others)     changes the file; None where it cannot be applied, else in words what was done

A file is replaced, never written into: one that is mapped into memory would change under its reader.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Damage = Callable[[random.Random, Path, Sequence[Path]], str | None]


def _replaced(victim: Path, content: bytes) -> None:
    victim.unlink()
    victim.write_bytes(content)


def _stretch(rng: random.Random, size: int) -> tuple[int, int]:
    """First and last byte of a stretch, mostly a short one."""
    first = rng.randrange(size)
    return first, min(size, first + rng.choice([1, 4, 64, 4096, size]))


# ---- bytes ----


def flip(rng: random.Random, victim: Path, others: Sequence[Path]) -> str | None:
    content = bytearray(victim.read_bytes())
    if not content:
        return None
    # headers are short beside the data, and half of all attacks are on them
    place = rng.randrange(min(len(content), rng.choice([512, len(content)])))
    bit = rng.randrange(8)
    content[place] ^= 1 << bit
    _replaced(victim, content)
    return f"bit {bit} of byte {place} flipped"


def truncate(rng: random.Random, victim: Path, others: Sequence[Path]) -> str | None:
    content = victim.read_bytes()
    if not content:
        return None
    size = rng.choice([rng.randrange(len(content)), len(content) - 1])
    _replaced(victim, content[:size])
    return f"cut to {size} of {len(content)} bytes"


def empty(rng: random.Random, victim: Path, others: Sequence[Path]) -> str | None:
    _replaced(victim, b"")
    return "emptied"


def zero(rng: random.Random, victim: Path, others: Sequence[Path]) -> str | None:
    content = victim.read_bytes()
    if not content:
        return None
    first, last = _stretch(rng, len(content))
    _replaced(victim, content[:first] + bytes(last - first) + content[last:])
    return f"bytes {first} to {last} zeroed"


def garbage(rng: random.Random, victim: Path, others: Sequence[Path]) -> str | None:
    content = victim.read_bytes()
    if not content:
        return None
    first, last = _stretch(rng, len(content))
    _replaced(victim, content[:first] + rng.randbytes(last - first) + content[last:])
    return f"bytes {first} to {last} random"


def append(rng: random.Random, victim: Path, others: Sequence[Path]) -> str | None:
    added = rng.choice([b"\n", b"\0", b" ", b"{}", b"w1 w2\n", rng.randbytes(64)])
    _replaced(victim, victim.read_bytes() + added)
    return f"{added[:8]!r} appended"


def lose(rng: random.Random, victim: Path, others: Sequence[Path]) -> str | None:
    content = victim.read_bytes()
    if not content:
        return None
    first, last = _stretch(rng, len(content))
    _replaced(victim, content[:first] + content[last:])
    return f"bytes {first} to {last} lost"


# ---- JSON ----


def change_json(rng: random.Random, victim: Path, others: Sequence[Path]) -> str | None:
    """One value of a JSON file is another one, or its key is gone: still JSON."""
    try:
        value = json.loads(victim.read_bytes())
    except ValueError:
        return None
    places = list(_places(value))
    if not places:
        return None
    holder, key = rng.choice(places)
    old = holder[key]
    if rng.random() < 0.2:
        del holder[key]
        said = f"{key!r} removed"
    else:
        new = rng.choice(
            [old * 2 if isinstance(old, int | float) else "x", None, -1, 1e308, [], {}, True]
        )
        holder[key] = new
        said = f"{key!r} is {new!r} for {str(old)[:40]!r}"
    _replaced(victim, json.dumps(value).encode())
    return said


def _places(value: Any) -> Any:
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        yield value, key
        yield from _places(value[key])


def other_json(rng: random.Random, victim: Path, others: Sequence[Path]) -> str | None:
    """Valid JSON, or nearly, of another shape."""
    if victim.suffix not in (".json", ".jsonl", ".sealed"):
        return None
    deep = "[" * 100_000
    new = rng.choice(
        ["null", "[]", "{}", '"x"', "1", "true", "NaN", "1e999", '{"a": 1, "a": 2}', deep]
    )
    _replaced(victim, new.encode())
    return f"is {new[:8]}"


# ---- text ----


def encode(rng: random.Random, victim: Path, others: Sequence[Path]) -> str | None:
    """A text as other programs save it."""
    try:
        text = victim.read_bytes().decode()
    except ValueError:
        return None
    ways = {
        "BOM": lambda: b"\xef\xbb\xbf" + text.encode(),
        "CRLF": lambda: text.replace("\n", "\r\n").encode(),
        "CR": lambda: text.replace("\n", "\r").encode(),
        "UTF-16": lambda: text.encode("utf-16"),
        "NUL": lambda: _into(rng, text, "\0").encode(),
        "latin-1": lambda: _into(rng, text, "\xe9").encode("latin-1", "replace"),
    }
    name = rng.choice(list(ways))
    content = ways[name]()
    if content == victim.read_bytes():
        return None
    _replaced(victim, content)
    return name


def _into(rng: random.Random, text: str, character: str) -> str:
    place = rng.randrange(len(text) + 1)
    return text[:place] + character + text[place:]


# ---- names ----


def missing(rng: random.Random, victim: Path, others: Sequence[Path]) -> str | None:
    victim.unlink()
    return "missing"


def swap(rng: random.Random, victim: Path, others: Sequence[Path]) -> str | None:
    """Two files of a kind under each other's names, where their suffix is the same."""
    other = _another(rng, victim, others)
    if other is None:
        return None
    first, second = victim.read_bytes(), other.read_bytes()
    _replaced(victim, second)
    _replaced(other, first)
    return f"swapped with {other.name}"


def copy(rng: random.Random, victim: Path, others: Sequence[Path]) -> str | None:
    """Another file of the kind under this one's name."""
    other = _another(rng, victim, others)
    if other is None:
        return None
    _replaced(victim, other.read_bytes())
    return f"is a copy of {other.name}"


def _another(rng: random.Random, victim: Path, others: Sequence[Path]) -> Path | None:
    content = victim.read_bytes()
    alike = [
        p for p in others if p != victim and p.suffix == victim.suffix and p.read_bytes() != content
    ]
    return rng.choice(alike) if alike else None


def swap_folders(rng: random.Random, victim: Path, others: Sequence[Path]) -> str | None:
    """The whole folder of one file under the name of another's, as of two kernels."""
    folders = sorted(
        {p.parent for p in others if p.parent.parent == victim.parent.parent} - {victim.parent}
    )
    if not folders:
        return None
    other = rng.choice(folders)
    shutil.rmtree(victim.parent)
    shutil.copytree(other, victim.parent)
    return f"its folder is a copy of {other.name}"


def directory(rng: random.Random, victim: Path, others: Sequence[Path]) -> str | None:
    victim.unlink()
    victim.mkdir()
    return "a directory"


def loop(rng: random.Random, victim: Path, others: Sequence[Path]) -> str | None:
    victim.unlink()
    victim.symlink_to(victim.name)
    return "a link to itself"


def dangling(rng: random.Random, victim: Path, others: Sequence[Path]) -> str | None:
    victim.unlink()
    victim.symlink_to("nothing-is-there")
    return "a link to nothing"


def unreadable(rng: random.Random, victim: Path, others: Sequence[Path]) -> str | None:
    """A file whose reading fails, for root too: EIO."""
    victim.unlink()
    victim.symlink_to("/proc/self/mem")
    return "unreadable"


BYTES: dict[str, Damage] = {
    f.__name__: f for f in (flip, truncate, empty, zero, garbage, append, lose)
}
JSON: dict[str, Damage] = {f.__name__: f for f in (change_json, other_json)}
TEXT: dict[str, Damage] = {"encode": encode}
NAMES: dict[str, Damage] = {
    f.__name__: f
    for f in (missing, swap, copy, swap_folders, directory, loop, dangling, unreadable)
}
ALL = BYTES | JSON | TEXT | NAMES
# Files that are not there, or lead nowhere: what can be made again need not say so.
ABSENT = ("missing", "dangling")
