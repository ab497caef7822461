"""A sample of the attacks of damage.py, and the attacks themselves: they tell what was noticed from what was not."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from lutlab.errors import LutlabError
from lutlab.kept.files import Damaged, sealed, unsealed
from tools.attack.counts import Counts
from tools.attack.damage import (
    FINDINGS,
    FINE,
    NOTICED,
    OTHER_INPUT,
    SAME,
    SILENT,
    UNHEALED,
    UNNAMED,
    Range,
    run,
)
from tools.attack.damages import ALL
from tools.attack.kinds import Kind, all_kinds

# One of each way of reading; the others take longer to make, and `make attack` has them all.
SAMPLED = (
    "blocks-gptq", "statistics", "records", "records-frame", "published", "folder-shards", "saved", "gguf",
    "texts", "cached-texts", "races", "yaml",
)  # fmt: skip
CASES = 44


@pytest.mark.slow
def test_a_sample_of_damages_is_noticed(tmp_path: Path) -> None:
    counts = Counts(None, ("kind", "damage"), FINE)
    run([kind for kind in all_kinds() if kind.name in SAMPLED], ALL, CASES, 1, counts, tmp_path)
    assert not counts.findings, "\n".join(counts.findings)
    assert counts.total == CASES


# ---- readers of one file, good and bad ----


def make_number(folder: Path) -> None:
    (folder / "number.json").write_bytes(sealed(7, "number.json"))


def careful(folder: Path) -> dict[str, Any]:
    path = folder / "number.json"
    try:
        return {"numbers": unsealed(path.read_bytes(), path.name)}
    except (OSError, Damaged) as error:
        raise LutlabError(f"{path}: {error}") from error


def silent(folder: Path) -> dict[str, Any]:
    return {"numbers": (folder / "number.json").stat().st_size}


def vague(folder: Path) -> dict[str, Any]:
    try:
        return careful(folder)
    except LutlabError as error:
        raise LutlabError("something is damaged") from error


def nagging(folder: Path) -> dict[str, Any]:
    try:
        return careful(folder)
    except LutlabError as error:
        logging.getLogger("lutlab.test").warning("%s", error)
        return {"numbers": 7}


def healing(folder: Path) -> dict[str, Any]:
    found = nagging(folder)
    make_number(folder)
    return found


def honest(folder: Path) -> dict[str, Any]:
    content = (folder / "number.json").read_bytes()
    return {"numbers": len(content), "identity": content.hex()}


def careless(folder: Path) -> dict[str, Any]:
    return {"numbers": json.loads((folder / "number.json").read_text().partition("\n")[2])}


def dying(folder: Path) -> dict[str, Any]:
    if silent(folder)["numbers"] < 60:
        os.kill(os.getpid(), signal.SIGSEGV)
    return {"numbers": 7}


@pytest.mark.parametrize(
    ("reader", "damage", "found"),
    [
        (careful, "truncate", "refused"),
        (careful, "append", "refused"),
        (careful, "directory", "refused"),
        (silent, "truncate", SILENT),
        (vague, "flip", UNNAMED),
        (nagging, "flip", UNHEALED),
        (healing, "flip", NOTICED),
        (honest, "append", OTHER_INPUT),
        (dying, "append", SAME),
        (careless, "empty", "TRACEBACK"),
        (careless, "directory", "TRACEBACK"),
        (dying, "empty", "CRASH"),
    ],
)
def test_a_verdict_is_what_the_reader_deserves(reader, damage, found, tmp_path) -> None:
    result = Range(Kind("toy", make_number, reader), tmp_path).attack(damage, 3)
    assert result
    assert result[0] == found, result[1]
    assert (result[1] is None) == (found in FINE)
    assert found in (*FINE, *FINDINGS)


def test_a_hang_is_ended(tmp_path, monkeypatch) -> None:
    def hanging(folder: Path) -> dict[str, Any]:
        time.sleep(600 * (not (folder / "number.json").stat().st_size))
        return {"numbers": 7}

    monkeypatch.setattr("tools.attack.damage.SECONDS", 0.5)
    assert Range(Kind("toy", make_number, hanging), tmp_path).attack("empty", 0)[0] == "HANG"


@pytest.mark.parametrize("damage", ALL)
def test_a_damage_is_one_and_is_repeated_by_its_seed(damage, tmp_path) -> None:
    contents = []
    for repeat in (tmp_path / "one", tmp_path / "two"):
        files = [repeat / name / "a.json" for name in ("x", "y")]
        for number, file in enumerate(files):
            file.parent.mkdir(parents=True)
            file.write_text(json.dumps({"lines": ["ä\n", number], "n": 3}, indent=1))
        assert ALL[damage](random.Random(5), files[0], files)
        whole = not files[0].is_symlink() and files[0].is_file()
        contents.append(files[0].read_bytes() if whole else damage)
    assert contents[0] == contents[1]
    assert contents[0] != json.dumps({"lines": ["ä\n", 0], "n": 3}, indent=1).encode()
