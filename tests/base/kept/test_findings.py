"""Findings are given back as they were written, a damaged file counts as none, and writers at once lose nothing."""

import itertools
import stat
import threading

import pytest
from tests.base.refusals import refused

from lutlab.base.kept import findings
from lutlab.base.kept.findings import known, recall


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path))
    return tmp_path / "known"


def kept(path):
    return findings.kept(path, dict, {})


def in_place_of(path):
    """A folder in a file's place."""
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("damage", [
    lambda path: path.write_text("{}"),
    lambda path: path.write_bytes(path.read_bytes().replace(b"1", b"2")),
    lambda path: path.write_bytes(b"\xff"),
    lambda path: path.with_name("other.sealed").rename(path),
    in_place_of,
])  # fmt: skip
def test_a_damaged_file_is_set_aside_and_counts_as_none(tmp_path, caplog, damage):
    path = tmp_path / "findings.sealed"
    for file in (path, tmp_path / "other.sealed"):
        findings.keep(file, lambda: {"a": 1})
    assert kept(path) == {"a": 1}
    damage(path)
    assert kept(path) == {}
    (warning,) = caplog.records
    assert f"{path} is damaged (" in warning.getMessage()
    assert path.with_name("findings.sealed.damaged").exists()
    findings.keep(path, lambda: kept(path) | {"b": 2})
    assert kept(path) == {"b": 2}


def test_writers_at_once_lose_nothing(tmp_path):
    path = tmp_path / "findings.sealed"
    writers = [
        threading.Thread(target=findings.keep, args=(path, lambda n=n: kept(path) | {str(n): n}))
        for n in range(12)
    ]
    for act in (threading.Thread.start, threading.Thread.join):
        for writer in writers:
            act(writer)
    assert sorted(kept(path).values()) == list(range(12))


def test_a_folder_that_lacks_is_said(tmp_path):
    refused("cannot write .*none/x.*LUTLAB_CACHE", findings.keep, tmp_path / "none" / "x", dict)


def test_found_once_for_the_same_and_again_for_another(cache):
    assert known("answer", ["a", 1], lambda: 42) == 42
    assert known("answer", ["a", 1], lambda: pytest.fail("known")) == 42
    assert known("answer", ["a", 2], lambda: [43]) == [43]
    assert known("other", ["a", 1], lambda: 44) == 44
    modes = {stat.S_IMODE(path.stat().st_mode) for path in cache.iterdir()}
    assert modes == {0o600}


def replaced(path):
    """By the file of another key."""
    known("answer", [2], lambda: 43)
    path.write_bytes(next(p for p in path.parent.iterdir() if p != path).read_bytes())


@pytest.mark.parametrize("harm", [
    lambda path: path.write_bytes(path.read_bytes().replace(b"42", b"43")), replaced, lambda path: path.chmod(0o666),
], ids=["changed", "of another key", "writable by others"])  # fmt: skip
def test_a_file_that_is_not_as_it_was_written_is_set_aside(cache, caplog, harm):
    known("answer", [1], lambda: 42)
    (path,) = cache.iterdir()
    harm(path)
    assert known("answer", [1], lambda: 44) == 44
    assert "is damaged" in caplog.text
    assert known("answer", [1], lambda: pytest.fail("known")) == 44


def test_found_once_for_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path))
    count = itertools.count(1)

    def find():
        return {"é\udc80": ["a", next(count)]}

    first = recall("words", [b"ab", b"c"], find)
    assert recall("words", [b"ab", b"c"], find) == first == {"é\udc80": ["a", 1]}
    assert recall("words", [b"a", b"bc"], find) == {"é\udc80": ["a", 2]}
    (file, _) = sorted((tmp_path / "texts").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    file.write_bytes(file.read_bytes().replace(b'"a"', b'"b"'))
    assert recall("words", [b"ab", b"c"], find) == {"é\udc80": ["a", 3]}
    assert file.with_name(f"{file.name}.damaged").is_file()
    assert recall("words", [b"ab", b"c"], find) == {"é\udc80": ["a", 3]}


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path / "file"))
    assert [recall("words", [b"a"], lambda n=n: n) for n in (1, 2)] == [1, 2]
