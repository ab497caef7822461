"""A folder of texts and a definition of a task are read, and nothing beside them runs."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lutlab.base.errors import LutlabError
from lutlab.base.specs import TextSpec
from lutlab.data import load_text, tasks


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Texts, and whatever a loader of data sets would run beside them; the current folder, too."""
    folder = tmp_path / "texts"
    script = f"from pathlib import Path\nPath({str(tmp_path / 'canary')!r}).touch()\nevil = None\n"
    for name in (
        "texts.py",
        "wikitext2.py",
        "wikitext2/wikitext2.py",
        "wikitext2/trap.py",
        "trap.py",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(script)
    (folder / "wikitext2" / "wiki.test.raw").write_text(" \n = A = \n some words \n")
    for name in ("wiki.test.pkl", "cache.arrow", "state.json", "dataset_infos.json"):
        (folder / "wikitext2" / name).write_bytes(pickle.dumps("x"))
    monkeypatch.chdir(folder)
    yield folder
    assert not (tmp_path / "canary").exists()
    assert not {"trap", "wikitext2"} & set(sys.modules)


def test_a_folder_of_texts_runs_no_script(folder: Path) -> None:
    assert " = A = \n" in load_text(TextSpec("wikitext2", "folder", str(folder))).rows


def test_a_definition_names_functions_and_calls_none(folder: Path) -> None:
    path = folder / "trap.yaml"
    path.write_text("task: trap\ndoc_to_text: !function trap.evil\ndataset_path: texts\n")
    assert tasks._read(path)[0]["doc_to_text"] == "trap.evil"
    path.write_text("task: !!python/object/apply:os.system [exit]\n")
    with pytest.raises(LutlabError, match="python/object/apply"):
        tasks._read(path)
