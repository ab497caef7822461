"""A file is whole, or says that it is damaged; what killed writers left is removed by the next, and nothing else."""

import os
import time
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lutlab.base.kept import files
from lutlab.base.kept.files import Damaged, remove_leftovers, sealed, unsealed


def test_only_old_leftovers_are_removed(tmp_path):
    kept = [files.write_atomically(tmp_path / "table.md", b"x"), tmp_path / ".hidden"]
    kept += [tmp_path / f".table.md.{uuid.uuid4().hex}"]  # of a writer at work
    old = tmp_path / f".figure.svg.{uuid.uuid4().hex}"
    for path in [*kept[1:], old]:
        path.write_bytes(b"half")
    before = time.time() - 7200
    for path in [kept[0], kept[1], old]:
        os.utime(path, (before, before))
    assert remove_leftovers(tmp_path) == [old]
    assert sorted(tmp_path.iterdir()) == sorted(kept)
    assert remove_leftovers(tmp_path / "nowhere") == []


def test_a_draft_is_gone_and_takes_older_ones_of_its_name_with_it(tmp_path):
    killed, others = (tmp_path / f".{name}.{uuid.uuid4().hex}" for name in ("model", "other"))
    for path in (killed, others):
        path.mkdir()
        (path / "config.json").write_text("half")
        os.utime(path, (0, 0))
    with files.draft_beside(tmp_path / "model") as draft:
        assert not killed.exists()
        assert draft.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == [others]
    assert remove_leftovers(tmp_path.parent, f"{tmp_path.name}/.*") == [others]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@given(JSON, st.text(max_size=5), st.data())
def test_every_damage_of_a_sealed_value_is_noticed(value, name, data):
    whole = sealed(value, name)
    assert unsealed(whole, name) == value
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (bytes(flipped), whole[:at], b"\0" * len(whole), whole + b"\n"):
        with pytest.raises(Damaged):
            unsealed(damaged, name)
    with pytest.raises(Damaged):
        unsealed(whole, name + "x")


def test_sha256_is_that_of_the_bytes(tmp_path):
    (tmp_path / "abc").write_bytes(b"abc")
    assert files.sha256_of(tmp_path / "abc").startswith(
        "ba7816bf8f01cfea"
    )  # FIPS 180-2, appendix B.1


def test_what_is_set_aside_stays(tmp_path):
    file = tmp_path / "file.json"
    for text in ("first", "second", "third"):
        file.write_text(text)
        files.set_aside(file)
    kept = {path.name: path.read_text() for path in tmp_path.iterdir()}
    names = ("file.json.damaged", "file.json.damaged-2", "file.json.damaged-3")
    assert kept == dict(zip(names, ("first", "second", "third"), strict=True))
