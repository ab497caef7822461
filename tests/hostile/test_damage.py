"""A damaged file is refused by name, or noticed by name and made again, or makes no difference: never other numbers."""

import contextlib
import io
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.hostile.kinds import KINDS, Kind

from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import SUMS


def splice(draw: Any, content: bytes) -> bytes:
    """A part of it, a bit, all from there on or nothing, is lost, zero or another."""
    end = len(content)
    first = draw(st.sampled_from([0, end]) | st.integers(0, end) | st.integers(0, min(511, end)))
    part = content[first : first + draw(st.sampled_from([0, 1, 1, 4, 64, 4096, end]))]
    flipped = bytes(byte ^ 1 << draw(st.integers(0, 7)) for byte in part[:1]) + part[1:]
    texts = [*b"\n|\0|{}|w1 w2\n|\xef\xbb\xbf|\xe9|null|[]|1e999".split(b"|"), b"[" * 100_000]
    new = st.sampled_from([b"", b"", bytes(len(part)), flipped, flipped]) | st.sampled_from(texts)
    return content[:first] + draw(new | st.binary(min_size=9)) + content[first + len(part) :]


def encode(draw: Any, content: bytes) -> bytes:
    utf_16 = content.decode(errors="replace").encode("utf-16")
    return draw(st.sampled_from([utf_16, content.replace(b"\n", b"\r\n")]))


def change(draw: Any, content: bytes) -> bytes:
    """One value of a JSON file is another one, or its key is gone: still JSON."""
    try:
        value = json.loads(content)
    except ValueError:
        assume(False)
    places, waiting = [], [value]
    for holder in waiting:
        if isinstance(holder, dict | list):
            keys = [*holder] if isinstance(holder, dict) else range(len(holder))
            places += [(holder, key) for key in keys]
            waiting += [holder[key] for key in keys]
    assume(places)
    holder, key = draw(st.sampled_from(places))
    holder[key] = draw(st.sampled_from(["gone", "x", None, -1, 1e308, [], {}, True]))
    if holder[key] == "gone":
        del holder[key]
    return json.dumps(value).encode()


CONTENTS = [splice, splice, splice, splice, encode, change]
NAMES = {  # what stands where a file was, or another content of its kind
    "missing": lambda place, another: None,
    "dangling": lambda place, another: place.symlink_to("nothing-is-there"),
    "unreadable": lambda place, another: place.symlink_to("/proc/self/mem"),  # for root too: EIO
    "directory": lambda place, another: place.mkdir(),
    "copied": lambda place, another: place.write_bytes(another),
}
ABSENT = ("missing", "dangling")  # what can be made again need not say so


class Seen(NamedTuple):
    """Numbers, none of what is refused, and identity; `told` is all that was printed, logged or raised."""

    numbers: Any
    identity: Any
    told: set[str]


def seen(kind: Kind, folder: Path) -> Seen:
    """One reading of a folder, with an empty log."""
    told, numbers, identity = io.StringIO(), None, None
    handler = logging.StreamHandler(told)
    handler.setLevel(logging.WARNING)
    with (
        mock.patch.dict(os.environ),
        mock.patch.object(logging.getLogger(), "handlers", [handler]),
        contextlib.redirect_stdout(told),
        contextlib.redirect_stderr(told),
    ):
        try:
            identity, numbers = kind.identity(folder), kind.read(folder)
        except LutlabError as error:
            told.write(f"{error}\n")
    return Seen(numbers, identity, {*told.getvalue().splitlines()})


def readings(kind: Kind, folder: Path, spoil: Any = lambda copy: None) -> Iterator[Seen]:
    """What a copy reads as, again and again; under the same name, and never where it was read before."""
    with tempfile.TemporaryDirectory(prefix="lutlab-hostile-") as at:
        copy = Path(shutil.copytree(folder, Path(at) / folder.name, symlinks=True))
        spoil(copy)
        while True:
            yield seen(kind, copy)


def check(kind: Kind, folder: Path, whole: Seen, damage: Any, draw: Any) -> None:
    """A damage that is drawn, in a copy of a folder, is met as it should be."""
    files = sorted(p for p in folder.glob(kind.files) if p.is_file() and not p.is_symlink())
    victim = draw(st.sampled_from(files))
    before = victim.read_bytes()
    if damage in NAMES:
        alike = (p.read_bytes() for p in files if p.suffix == victim.suffix)
        content = next((other for other in alike if other != before), None)
    else:
        content = damage(draw, before)
    assume((damage in NAMES and damage != "copied") or content not in (before, None))

    def spoil(copy: Path) -> None:
        place = copy / victim.relative_to(folder)
        place.unlink()  # one that is mapped into memory would change under its reader
        NAMES[damage if damage in NAMES else "copied"](place, content)

    def named(reading: Seen) -> bool:
        names = (victim.name, f"/{victim.parent.name}")
        return any(name in line for line in reading.told - whole.told for name in names)

    copy = readings(kind, folder, spoil)
    after = next(copy)
    excused = named(after) or damage in ABSENT
    if after.numbers is None:
        assert excused, f"{victim}: refused, and no file named: {after.told}"
    elif not kind.of_user and (after.identity == whole.identity or after.numbers == whole.numbers):
        part = isinstance(after.numbers, dict) and after.numbers.items() <= whole.numbers.items()
        right = after.numbers == whole.numbers or (part and excused)
        assert right, f"{victim}: other numbers, and the same identity: {after}"
        if named(after) and victim.name != SUMS:
            again = next(copy)
            healed = not named(again) and again.numbers in (after.numbers, whole.numbers)
            assert healed, f"{victim}: not healed: {again.told}"


@pytest.fixture(scope="module", params=KINDS)
def pristine(request, tmp_path_factory) -> tuple[Kind, Path, Seen]:
    """A kind, a folder of it that is only copied, and what it reads as."""
    kind, folder = KINDS[request.param], tmp_path_factory.mktemp("hostile") / "whole"
    folder.mkdir()
    with mock.patch.dict(os.environ):
        (kind.make or kind.read)(folder)
    whole = next(readings(kind, folder))
    assert whole.numbers is not None, whole.told
    return kind, folder, whole


@pytest.mark.slow
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damage_is_noticed(data, pristine) -> None:
    kind, folder, whole = pristine
    check(kind, folder, whole, data.draw(st.sampled_from([*CONTENTS, *NAMES])), data.draw)
    assert next(readings(kind, folder)).numbers == whole.numbers, "no damage outlives its folder"


def vague(folder: Path) -> int:
    if (folder / "number").read_bytes() != b"7":
        raise LutlabError("something is damaged")
    return 7


def nagging(folder: Path) -> int:
    if (folder / "number").read_bytes() != b"7":
        logging.getLogger("lutlab.test").warning("number is damaged")
    return 7


@pytest.mark.parametrize(("read", "wrong"), [
    (vague, "no file named"),
    (nagging, "not healed"),
    (lambda folder: (folder / "number").read_bytes(), "other numbers"),
])  # fmt: skip
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_bad_reader_is_caught(read, wrong, data, tmp_path) -> None:
    (tmp_path / "number").write_bytes(b"7")
    whole = seen(Kind(read), tmp_path)
    with pytest.raises(AssertionError, match=wrong):
        check(Kind(read), tmp_path, whole, splice, data.draw)
