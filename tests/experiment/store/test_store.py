from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import multiprocessing
import os
import random
import re
import shutil
from pathlib import Path

import pytest

from lutlab.base.errors import LutlabError
from lutlab.base.kept import files
from lutlab.experiment.store.record import Record, canonical, content_id, write_lines
from lutlab.experiment.store.store import Store

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


def damages(text: str) -> dict[str, tuple[bytes, str]]:
    """Name -> bytes that are not those of the record, and the cause as it is reported."""
    moved = json.loads(text)["record"] | {"provenance": {"identity": {"q": 4}}}
    other = {"sha256": hashlib.sha256(canonical(moved).encode()).hexdigest(), "record": moved}
    found = {
        "truncate": (text[: len(text) // 2].encode(), "not the JSON of a record"),
        "edit": (text.replace("0.3333333333333333", "0.25").encode(), "checksum does not match"),
        "empty": (b"", "not the JSON of a record"),
        "zeros": (bytes(len(text)), "not the JSON of a record"),
        "other json": (b"[1, 2]", "not the JSON of a record"),
        "deep json": (b"[" * 100_000, "not the JSON of a record"),
        "no UTF-8": (text.encode("utf-16"), "no UTF-8"),
        "another identity": (json.dumps(other).encode(), "not that of its provenance.identity"),
    }
    whole, chance = text.encode(), random.Random(5)
    for at in chance.sample(range(len(whole)), 40):
        flipped = bytes([whole[at] ^ 1 << chance.randrange(8)])
        found[f"flip {at}"] = (whole[:at] + flipped + whole[at + 1 :], "it is|its checksum")
    return found


def test_a_damaged_record_is_set_aside_and_never_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    path = store.save(RECORD)
    for name, (data, cause) in damages(path.read_text()).items():
        path.write_bytes(data)
        caplog.clear()
        found = store.load(RECORD.cell_id)
        if found is not None:  # a space between two values
            assert name.startswith("flip")
            assert found == RECORD
            continue
        (line,) = caplog.messages
        assert re.search(
            f"{path.name} is damaged .*({cause}).*{path.name}.damaged.*measures it", line
        )
        place = path.with_name(f"{path.name}.damaged")
        assert place.read_bytes() == data
        place.unlink()
        assert not path.exists()
    path.mkdir(exist_ok=True)
    assert store.load(RECORD.cell_id) is None
    assert store.save(RECORD).is_file()
    assert store.load(RECORD.cell_id) == RECORD


def test_a_record_under_another_cells_name_is_not_that_cells(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store, other = Store(tmp_path), "f" * 16
    for read in (store.load, lambda cell: store.all().get(cell)):
        shutil.copy(store.save(RECORD), store.path(other))
        assert read(other) is None
        assert (
            f"{other}.json is damaged (it is that of cell {RECORD.cell_id})" in caplog.messages[-1]
        )
        assert store.all() == {RECORD.cell_id: RECORD}


def test_full_disk_keeps_the_old_record_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    store.save(RECORD)

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "fsync", full)
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
    assert store.all() == {}
    assert store.path(RECORD.cell_id).with_suffix(".json.damaged").read_text() == "{}"


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
