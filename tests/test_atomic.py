"""What killed writers left is removed by the next run, and nothing else."""

import os
import time
import uuid

from lutlab.atomic import draft_beside, remove_leftovers, write_atomically


def test_only_old_leftovers_are_removed(tmp_path):
    kept = [write_atomically(tmp_path / "table.md", b"x"), tmp_path / ".hidden"]
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
    with draft_beside(tmp_path / "model") as draft:
        assert not killed.exists()
        assert draft.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == [others]
    assert remove_leftovers(tmp_path.parent, f"{tmp_path.name}/.*") == [others]
