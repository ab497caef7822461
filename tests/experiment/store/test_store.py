from __future__ import annotations

import dataclasses
import errno
import json
import multiprocessing
import os
from pathlib import Path

import pytest

from lutlab import atomic
from lutlab.errors import LutlabError
from lutlab.experiment.store.lines import write_lines
from lutlab.experiment.store.record import Record
from lutlab.experiment.store.store import Store, content_id

RECORD = Record(
    cell_id="0123456789abcdef",
    status="done",
    run={"q": 4, "model": {"name": "m"}},
    evaluation={"evaluator": "ppl"},
    values={"ppl": 1 / 3},
    n=3,
    samples=(0.1, 1e-30, 3.0),
    facts={"text": "ünïcode"},
    provenance={"threads": 2},
    seconds=1.5,
)


def test_round_trip_is_exact(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.load(RECORD.cell_id) is None
    store.save(RECORD)
    assert store.load(RECORD.cell_id) == RECORD
    assert [p.name for p in store.folder.iterdir()] == [f"{RECORD.cell_id}.json"]


def test_identity_depends_on_content_not_order() -> None:
    assert content_id({"a": 1, "b": [2]}) == content_id({"b": [2], "a": 1})
    assert content_id({"a": 1}) != content_id({"a": 2})


@pytest.mark.parametrize("damage", ["truncate", "edit", "empty", "not json", "other json"])
def test_a_damaged_record_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    store = Store(tmp_path)
    path = store.save(RECORD)
    text = path.read_text()
    damaged = {
        "truncate": text[: len(text) // 2],
        "edit": text.replace("0.3333333333333333", "0.25"),
        "empty": "",
        "not json": "\x00\x01",
        "other json": "[1, 2]",
    }[damage]
    assert damaged != text
    path.write_text(damaged)
    with pytest.raises(LutlabError, match=f"{path.name} is damaged.*delete that file"):
        store.load(RECORD.cell_id)


def test_a_record_under_another_cells_name_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path)
    other = "f" * 16
    store.save(RECORD).rename(store.path(other))
    with pytest.raises(LutlabError, match=f"{other}.json is that of cell {RECORD.cell_id}"):
        store.load(other)


def test_full_disk_keeps_the_old_record_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    store.save(RECORD)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic.os, "fsync", full)
    with pytest.raises(LutlabError, match="the disk is full"):
        store.save(dataclasses.replace(RECORD, n=99))
    assert store.load(RECORD.cell_id) == RECORD
    assert len(list(store.folder.iterdir())) == 1


def test_unwritable_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "records").write_text("a file, not a folder")
    with pytest.raises(LutlabError, match="cannot write"):
        Store(tmp_path).save(RECORD)


def test_published_artifacts_are_read_and_never_written_to(tmp_path: Path) -> None:
    other = dataclasses.replace(RECORD, cell_id="fedcba9876543210", n=7)
    write_lines(tmp_path / "paper/table1/records.jsonl", [other])
    write_lines(tmp_path / "paper/table2/records.jsonl", [other, RECORD])
    store = Store(tmp_path)
    assert store.load(RECORD.cell_id) == RECORD
    assert store.load("0" * 16) is None
    assert list(store.all().items()) == [(RECORD.cell_id, RECORD), (other.cell_id, other)]
    with pytest.raises(LutlabError, match=r"holds published artifacts.*another results= folder"):
        store.save(RECORD)
    assert not store.folder.exists()


def test_all_records_of_a_local_store(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.all() == {}
    store.save(RECORD)
    # what others published is not this machine's own
    write_lines(tmp_path / "published/machine/paper/table1/records.jsonl", [RECORD])
    assert store.all() == {RECORD.cell_id: RECORD}
    store.path(RECORD.cell_id).write_text("{}")
    with pytest.raises(LutlabError, match="damaged"):
        store.all()


def _save_many(root: str, worker: int) -> None:
    store = Store(Path(root))
    for n in range(50):
        store.save(dataclasses.replace(RECORD, n=worker * 1000 + n))


def test_workers_share_a_store(tmp_path: Path) -> None:
    """Readers see whole records only, whoever wrote last."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_save_many, args=(str(tmp_path), i)) for i in range(2)]
    Store(tmp_path).save(RECORD)
    for worker in workers:
        worker.start()
    seen = set()
    while any(worker.is_alive() for worker in workers):
        seen.add(Store(tmp_path).load(RECORD.cell_id).n)
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert len(seen) > 1
    assert Store(tmp_path).load(RECORD.cell_id).n in (49, 1049)


def test_records_are_plain_json(tmp_path: Path) -> None:
    stored = json.loads(Store(tmp_path).save(RECORD).read_text())
    assert stored["record"]["values"] == {"ppl": 1 / 3}
