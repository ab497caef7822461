"""Findings are given back as they were written, a damaged file counts as none, and writers at once lose nothing."""

import threading

import pytest

from lutlab.errors import LutlabError
from lutlab.kernels import tuned


def kept(path):
    return tuned.kept(path, dict, {})


def in_place_of(path):
    """A folder in a file's place."""
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text("{}"),
        lambda path: path.write_bytes(path.read_bytes().replace(b"1", b"2")),
        lambda path: path.write_bytes(b"\xff"),
        lambda path: path.with_name("other.sealed").rename(path),
        in_place_of,
    ],
)
def test_a_damaged_file_is_set_aside_and_counts_as_none(tmp_path, caplog, damage):
    path = tmp_path / "findings.sealed"
    for file in (path, tmp_path / "other.sealed"):
        tuned.keep(file, lambda: {"a": 1})
    assert kept(path) == {"a": 1}
    damage(path)
    assert kept(path) == {}
    (warning,) = caplog.records
    assert f"{path} is damaged (" in warning.getMessage()
    assert path.with_name("findings.sealed.damaged").exists()
    tuned.keep(path, lambda: kept(path) | {"b": 2})
    assert kept(path) == {"b": 2}


def test_writers_at_once_lose_nothing(tmp_path):
    path = tmp_path / "findings.sealed"
    writers = [
        threading.Thread(target=tuned.keep, args=(path, lambda n=n: kept(path) | {str(n): n}))
        for n in range(12)
    ]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert sorted(kept(path).values()) == list(range(12))


def test_a_folder_that_lacks_is_said(tmp_path):
    with pytest.raises(LutlabError, match=r"cannot write .*findings.sealed.*LUTLAB_CACHE"):
        tuned.keep(tmp_path / "none" / "findings.sealed", dict)
