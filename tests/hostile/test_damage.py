"""A damaged file is refused by name, or noticed by name and made again, or makes no difference: never other numbers."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.hostile.kinds import KINDS, Kind

from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import SUMS, sealed, unsealed
from lutlab.base.kept.files import Damaged as DamagedFile

Content = Callable[[Any, bytes], bytes]


# ---- damages of a file's content: draw, content -> content ----


def flip(draw: Any, content: bytes) -> bytes:
    place = draw(st.integers(0, len(content) - 1) | st.integers(0, min(511, len(content) - 1)))
    return (
        content[:place]
        + bytes([content[place] ^ 1 << draw(st.integers(0, 7))])
        + content[place + 1 :]
    )


def truncate(draw: Any, content: bytes) -> bytes:
    return content[: draw(st.integers(0, len(content) - 1))]


def lose(draw: Any, content: bytes) -> bytes:
    first = draw(st.integers(0, len(content) - 1))
    return content[:first] + content[first + draw(st.sampled_from([1, 4, 64, 4096])) :]


def zero(draw: Any, content: bytes) -> bytes:
    first, size = draw(st.integers(0, len(content) - 1)), draw(st.sampled_from([1, 64, 4096]))
    return content[:first] + bytes(len(content[first : first + size])) + content[first + size :]


def append(draw: Any, content: bytes) -> bytes:
    return content + draw(
        st.sampled_from([b"\n", b"\0", b"{}", b"w1 w2\n"]) | st.binary(min_size=9)
    )


def encode(draw: Any, content: bytes) -> bytes:
    """A text as other programs save it."""
    try:
        text = content.decode()
    except ValueError:
        assume(False)
    ways = [
        b"\xef\xbb\xbf" + content, text.replace("\n", "\r\n").encode(), text.encode("utf-16"), b"\0" + content,
        b"\xe9" + content,
    ]  # fmt: skip
    return draw(st.sampled_from(ways))


def change(draw: Any, content: bytes) -> bytes:
    """One value of a JSON file is another one, or its key is gone: still JSON."""

    def places(value: Any) -> Iterator[tuple[Any, Any]]:
        keys = (
            value
            if isinstance(value, dict)
            else range(len(value))
            if isinstance(value, list)
            else ()
        )
        for key in keys:
            yield value, key
            yield from places(value[key])

    try:
        value = json.loads(content)
    except ValueError:
        assume(False)
    found = list(places(value))
    assume(found)
    holder, key = draw(st.sampled_from(found))
    new = draw(st.sampled_from(["gone", "x", None, -1, 1e308, [], {}, True]))
    if new == "gone":
        del holder[key]
    else:
        holder[key] = new
    return json.dumps(value).encode()


def other(draw: Any, content: bytes) -> bytes:
    return draw(st.sampled_from([b"", b"null", b"[]", b"{}", b"1e999", b"[" * 100_000]))


CONTENTS: list[Content] = [flip, truncate, lose, zero, append, encode, change, other]


# ---- damages of what a name leads to ----


def missing(victim: Path, others: list[Path]) -> None:
    victim.unlink()


def copied(victim: Path, others: list[Path]) -> None:
    """Another file of the kind under this one's name."""
    alike = [
        p for p in others if p.suffix == victim.suffix and p.read_bytes() != victim.read_bytes()
    ]
    assume(alike)
    content = alike[0].read_bytes()
    victim.unlink()
    victim.write_bytes(content)


def directory(victim: Path, others: list[Path]) -> None:
    victim.unlink()
    victim.mkdir()


def unreadable(victim: Path, others: list[Path]) -> None:
    """Its reading fails, for root too: EIO."""
    victim.unlink()
    victim.symlink_to("/proc/self/mem")


def dangling(victim: Path, others: list[Path]) -> None:
    victim.unlink()
    victim.symlink_to("nothing-is-there")


NAMES = [missing, copied, directory, unreadable, dangling]
ABSENT = (missing, dangling)  # what can be made again need not say so


# ---- what comes of it ----


@dataclass(frozen=True)
class Seen:
    """Numbers and identity, or the refusal; `said` is all that was printed, logged or raised."""

    numbers: Any
    identity: Any
    refused: bool
    said: frozenset[str]


def seen(kind: Kind, folder: Path) -> Seen:
    """One reading of a folder, with an empty log."""
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    handler.setLevel(logging.WARNING)
    numbers, identity, refused = None, None, False
    with (
        mock.patch.dict(os.environ),
        mock.patch.object(logging.getLogger(), "handlers", [handler]),
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
    ):
        try:
            numbers, identity = kind.read(folder)
        except LutlabError as error:
            refused = True
            said.write(f"{error}\n")
    return Seen(numbers, identity, refused, frozenset(said.getvalue().splitlines()))


def fault(kind: Kind, damage: Any, victims: list[Path], folder: Path, whole: Seen) -> str:
    """What is wrong with how a damage was met; empty where nothing is."""

    def named(found: Seen) -> bool:
        names = [name for v in victims for name in (v.name, f"/{v.parent.name}")]
        return any(name in line for line in found.said - whole.said for name in names)

    after = seen(kind, folder)
    if after.refused:
        return (
            "" if named(after) or damage in ABSENT else f"refused, and no file named: {after.said}"
        )
    same = after.numbers == whole.numbers
    if kind.of_user or (after.identity != whole.identity and not same):
        return ""
    part = isinstance(after.numbers, dict) and after.numbers.items() <= whole.numbers.items()
    if not same and not (part and (named(after) or damage in ABSENT)):
        return f"other numbers, and the same identity: {after.numbers}, said {after.said}"
    if named(after) and all(victim.name != SUMS for victim in victims):
        again = seen(kind, folder)
        if again.numbers not in (after.numbers, whole.numbers) or named(again):
            return f"not healed: {again.said}"
    return ""


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, Seen]]:
    """Kind -> a folder of it that is only copied, and what it reads as."""

    @functools.cache
    def made(name: str) -> tuple[Path, Seen]:
        folder = tmp_path_factory.mktemp("hostile") / "whole"
        folder.mkdir()
        with mock.patch.dict(os.environ):
            KINDS[name].make(folder)
        return folder, reread(KINDS[name], folder)

    return made


def reread(kind: Kind, folder: Path) -> Seen:
    """What a copy reads as; under the same name, and never where it was read before."""
    with tempfile.TemporaryDirectory(prefix="lutlab-hostile-") as at:
        copy = Path(at) / folder.name
        shutil.copytree(folder, copy, symlinks=True)
        found = seen(kind, copy)
    assert not found.refused, found.said
    return found


def met(kind: Kind, folder: Path, whole: Seen, damage: Any, draw: Any) -> str:
    """The fault of a damage that is drawn, in a copy of a folder."""
    with tempfile.TemporaryDirectory(prefix="lutlab-hostile-") as at:
        copy = Path(at) / folder.name
        shutil.copytree(folder, copy, symlinks=True)
        files = sorted(p for p in copy.glob(kind.files) if p.is_file() and not p.is_symlink())
        victim = draw(st.sampled_from(files))
        before = victim.read_bytes()
        if damage in NAMES:
            damage(victim, files)
        else:
            assume(before)
            content = damage(draw, before)
            assume(content != before)
            victim.unlink()  # one that is mapped into memory would change under its reader
            victim.write_bytes(content)
        found = fault(kind, damage, [victim], copy, whole)
    return found and f"{victim.relative_to(copy)}: {found}"


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damage_is_noticed(name: str, data: st.DataObject, pristine: Callable) -> None:
    folder, whole = pristine(name)
    damage = data.draw(st.sampled_from([*CONTENTS, *NAMES]))
    assert met(KINDS[name], folder, whole, damage, data.draw) == ""
    again = reread(KINDS[name], folder)
    assert again.numbers == whole.numbers, "nothing of a damage outlives its folder"


# ---- readers of one file, good and bad: the test itself tells them apart ----


def make_number(folder: Path) -> None:
    (folder / "number.json").write_bytes(sealed(7, "number.json"))


def careful(folder: Path) -> tuple[Any, None]:
    path = folder / "number.json"
    try:
        return unsealed(path.read_bytes(), path.name), None
    except (OSError, DamagedFile) as error:
        raise LutlabError(f"{path}: {error}") from error


def vague(folder: Path) -> tuple[Any, None]:
    try:
        return careful(folder)
    except LutlabError as error:
        raise LutlabError("something is damaged") from error


def silent(folder: Path) -> tuple[Any, None]:
    return (folder / "number.json").stat().st_size, None


def nagging(folder: Path) -> tuple[Any, None]:
    try:
        return careful(folder)
    except LutlabError as error:
        logging.getLogger("lutlab.test").warning("%s", error)
        return 7, None


def healing(folder: Path) -> tuple[Any, None]:
    found = nagging(folder)
    make_number(folder)
    return found


@pytest.mark.parametrize(
    ("reader", "said"),
    [
        (careful, ""),
        (healing, ""),
        (vague, "no file named"),
        (silent, "other numbers"),
        (nagging, "not healed"),
    ],
)
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_reader_gets_what_it_deserves(
    reader: Callable, said: str, data: st.DataObject, tmp_path: Path
) -> None:
    make_number(tmp_path)
    kind = Kind(make_number, reader)
    found = met(kind, tmp_path, seen(kind, tmp_path), truncate, data.draw)
    assert said in found
    assert bool(found) == bool(said)
