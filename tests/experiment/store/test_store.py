"""Records in a folder and as lines: what is read is what was written, and no damage passes."""

import dataclasses
import errno
import hashlib
import json
import multiprocessing
import os
import random
import re
import shutil
from unittest import mock

import pytest
from tests.base.refusals import refused

from lutlab.base.kept import files
from lutlab.experiment.store.record import Record, canonical, content_id, read_lines, write_lines
from lutlab.experiment.store.store import Store

RECORD = Record(
    cell_id="0123456789abcdef", status="done", run={"q": 4, "model": {"name": "m"}}, evaluation={"evaluator": "ppl"},
    values={"ppl": 1 / 3}, n=3, samples=(0.1, 1e-30, 3.0), facts={"text": "ünïcode"}, provenance={"threads": 2},
    seconds=1.5,
)  # fmt: skip


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path)


def test_round_trip_is_exact_and_plain_json(store: Store) -> None:
    assert store.load(RECORD.cell_id) is None
    path = store.save(RECORD)
    assert store.load(RECORD.cell_id) == RECORD
    assert [*store.folder.iterdir()] == [path] == [store.folder / f"{RECORD.cell_id}.json"]
    assert json.loads(path.read_text())["record"]["values"] == {"ppl": 1 / 3}


def test_identity_depends_on_content_not_order() -> None:
    assert content_id({"a": 1, "b": [2]}) == content_id({"b": [2], "a": 1})
    assert content_id({"a": 1}) != content_id({"a": 2})


def damages(text: str) -> dict[str, tuple[bytes, str]]:
    """Name -> bytes that are not those of the record, and the cause as it is reported."""
    moved = json.loads(text)["record"] | {"provenance": {"identity": {"q": 4}}}
    other = {"sha256": hashlib.sha256(canonical(moved).encode()).hexdigest(), "record": moved}
    whole, chance, no_record = text.encode(), random.Random(5), "not the JSON of a record"
    flips = {}
    for at in chance.sample(range(len(whole)), 40):
        flipped = bytes([whole[at] ^ 1 << chance.randrange(8)])
        flips[f"flip {at}"] = (whole[:at] + flipped + whole[at + 1 :], "it is|its checksum")
    return flips | {
        "truncate": (whole[: len(whole) // 2], no_record),
        "edit": (whole.replace(b"0.3333333333333333", b"0.25"), "checksum does not match"),
        "empty": (b"", no_record),
        "zeros": (bytes(len(text)), no_record),
        "other json": (b"[1, 2]", no_record),
        "deep json": (b"[" * 100_000, no_record),
        "no UTF-8": (text.encode("utf-16"), "no UTF-8"),
        "another identity": (json.dumps(other).encode(), "not that of its provenance.identity"),
    }


def test_a_damaged_record_is_set_aside_and_never_another(store: Store, caplog) -> None:
    path = store.save(RECORD)
    place = path.with_name(f"{path.name}.damaged")
    for name, (data, cause) in damages(path.read_text()).items():
        path.write_bytes(data)
        caplog.clear()
        record = store.load(RECORD.cell_id)
        if record is not None:  # a space between two values
            assert name.startswith("flip")
            assert record == RECORD
            continue
        (line,) = caplog.messages
        assert re.search(f"{path.name} is damaged .*({cause}).*{place.name}.*measures it", line)
        assert place.read_bytes() == data
        place.unlink()
        assert not path.exists()
    path.mkdir(exist_ok=True)
    assert store.load(RECORD.cell_id) is None
    assert store.save(RECORD).is_file()
    assert store.load(RECORD.cell_id) == RECORD


def test_a_record_under_another_cells_name_is_not_that_cells(store: Store, caplog) -> None:
    other = "f" * 16
    for read in (store.load, lambda cell: store.all().get(cell)):
        shutil.copy(store.save(RECORD), store.path(other))
        assert read(other) is None
        cause = f"it is that of cell {RECORD.cell_id}"
        assert f"{other}.json is damaged ({cause})" in caplog.messages[-1]
        assert store.all() == {RECORD.cell_id: RECORD}


def test_full_disk_keeps_the_old_record_and_leaves_nothing_behind(store, monkeypatch) -> None:
    store.save(RECORD)
    full = mock.Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    monkeypatch.setattr(files.os, "fsync", full)
    refused("the disk is full", store.save, dataclasses.replace(RECORD, n=99))
    assert store.load(RECORD.cell_id) == RECORD
    assert len(list(store.folder.iterdir())) == 1


def test_published_artifacts_are_read_and_never_written_to(store: Store, tmp_path) -> None:
    other = dataclasses.replace(RECORD, cell_id="fedcba9876543210", n=7)
    write_lines(tmp_path / "paper/table1/records.jsonl", [other])
    write_lines(tmp_path / "paper/table2/records.jsonl", [other, RECORD])
    assert store.load(RECORD.cell_id) == RECORD
    assert store.load("0" * 16) is None
    assert list(store.all().items()) == [(RECORD.cell_id, RECORD), (other.cell_id, other)]
    refused(r"holds published artifacts.*another results= folder", store.save, RECORD)
    assert not store.folder.exists()


def test_all_records_of_a_local_store(store: Store, tmp_path) -> None:
    assert store.all() == {}
    path = store.save(RECORD)
    # what others published is not this machine's own
    write_lines(tmp_path / "published/machine/paper/table1/records.jsonl", [RECORD])
    assert store.all() == {RECORD.cell_id: RECORD}
    path.write_text("{}")
    assert store.all() == {}
    assert path.with_suffix(".json.damaged").read_text() == "{}"


def save_many(store: Store, worker: int) -> None:
    for n in range(50):
        store.save(dataclasses.replace(RECORD, n=worker * 1000 + n))


def test_workers_share_a_store(store: Store) -> None:
    """Readers see whole records only, whoever wrote last."""
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=save_many, args=(store, i)) for i in range(2)]
    store.save(RECORD)
    for worker in workers:
        worker.start()
    seen = set()
    while any(worker.is_alive() for worker in workers):
        seen.add(store.load(RECORD.cell_id).n)
    assert [worker.exitcode for worker in workers] == [0, 0]
    assert len(seen) > 1
    assert store.load(RECORD.cell_id).n in (49, 1049)


OTHER = dataclasses.replace(RECORD, cell_id="00ff", facts={"text": "two\nlines\u2028"})


def test_round_trip_is_exact_sorted_and_the_same_bytes(tmp_path) -> None:
    path = write_lines(tmp_path / "a/records.jsonl", [RECORD, OTHER, RECORD])
    assert list(read_lines(path).items()) == [(OTHER.cell_id, OTHER), (RECORD.cell_id, RECORD)]
    again = write_lines(tmp_path / "b/records.jsonl", [OTHER, RECORD])
    assert again.read_bytes() == path.read_bytes()
    lines = [json.loads(line) for line in path.read_text().removesuffix("\n").split("\n")]
    assert [line["record"]["cell_id"] for line in lines] == [OTHER.cell_id, RECORD.cell_id]


@pytest.mark.parametrize(("damage", "message"), [
    (lambda text: text[:-100], "records.jsonl, line 2: .*damaged.*git"),
    (lambda text: text.replace(b'"cell_id":"0123', b'"cell_id":"3210'), "records.jsonl, line 2: .*damaged.*git"),
    (lambda text: text + b"\n", "records.jsonl, line 3: .*damaged.*git"),
    (lambda text: text + b"[1, 2]\n", "records.jsonl, line 3: .*damaged.*git"),
    (lambda text: b"\xff" + text, r"records\.jsonl cannot be read .*restore the file with git"),
    (lambda text: text * 2, "line 3: cell 00ff has a second record"),
])  # fmt: skip
def test_a_damage_is_named(tmp_path, damage, message: str) -> None:
    path = write_lines(tmp_path / "records.jsonl", [RECORD, OTHER])
    damaged = damage(path.read_bytes())
    assert damaged != path.read_bytes()
    path.write_bytes(damaged)
    refused(message, read_lines, path)


def test_a_changed_file_is_read_again(tmp_path) -> None:
    path = write_lines(tmp_path / "records.jsonl", [RECORD])
    assert read_lines(path)[RECORD.cell_id].n == RECORD.n
    write_lines(path, [dataclasses.replace(RECORD, n=123_456)])
    assert read_lines(path)[RECORD.cell_id].n == 123_456
