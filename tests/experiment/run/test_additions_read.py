"""Mistakes in a user's modules and folders are explained; nothing here stays registered."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lutlab.base.errors import LutlabError
from lutlab.experiment.artifact import catalog
from lutlab.experiment.artifact.artifact import load_artifact
from lutlab.experiment.run import additions


@pytest.fixture(autouse=True)
def _as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(catalog, "_folders", [*catalog._folders])


def test_both_keys_are_read_and_plugins_become_a_list(tmp_path: Path) -> None:
    (tmp_path / "first_plugin.py").write_text("")
    (tmp_path / "second_plugin.py").write_text("")
    (tmp_path / "my tables" / "p").mkdir(parents=True)
    (tmp_path / "my tables" / "p" / "t.yaml").write_text("")
    given = ["q=2,3", "plugins=first_plugin,second_plugin", "experiments=my tables", "--cfg"]
    assert additions.read(given) == [
        "q=2,3",
        "plugins=[first_plugin,second_plugin]",
        "experiments=my tables",
        "--cfg",
    ]
    assert {"first_plugin", "second_plugin"} <= sys.modules.keys()
    assert catalog.artifacts()["p/t"] == tmp_path / "my tables" / "p" / "t.yaml"


@pytest.mark.parametrize("given", [[], ["plugins=[]"], ["plugins=null", "experiments=null"]])
def test_nothing_is_added_where_nothing_is_given(given: list[str]) -> None:
    before = catalog.artifacts()
    additions.read(given)
    assert catalog.artifacts() == before


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("absent_plugin", None, "plugins=absent_plugin.*No module named 'absent_plugin'.*PYTHONPATH"),
        ("broken_plugin", "x = 1\nx / 0\n", r"ZeroDivisionError.*broken_plugin.py, line 2"),
        ("needy_plugin", "import not_there\n", r"No module named 'not_there' \(.*needy_plugin.py, line 1"),
        ("wrong_plugin", "def f(:\n", r"SyntaxError.*wrong_plugin.py, line 1"),
        (
            "taken_plugin",
            "from lutlab.base.registry import register\n@register('method', 'rtn')\nclass Mine: ...\n",
            "method 'rtn' is registered twice",
        ),
    ],
)  # fmt: skip
def test_a_module_that_cannot_be_imported(
    tmp_path: Path, name: str, source: str | None, message: str
) -> None:
    if source is not None:
        (tmp_path / f"{name}.py").write_text(source)
    with pytest.raises(LutlabError, match=message):
        additions.read([f"plugins={name}"])


def test_folders_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LutlabError, match="absent: no such folder"):
        additions.read(["experiments=absent"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(LutlabError, match=r"has no file <paper>/<artifact>\.yaml"):
        additions.read(["experiments=empty"])
    with pytest.raises(LutlabError, match="experiments=a,b: give one folder"):
        additions.read(["experiments=a,b"])


def test_a_name_that_exists_already_is_refused(tmp_path: Path) -> None:
    own = tmp_path / "mine" / "lut-gemm-v3" / "table4.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("")
    before = catalog.artifacts()
    with pytest.raises(LutlabError) as refused:
        catalog.add_folder(tmp_path / "mine")
    assert str(own) in str(refused.value)
    assert str(before["lut-gemm-v3/table4"]) in str(refused.value)
    assert catalog.artifacts() == before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "is no table"),
        ("a: [", "is not YAML"),
        ("same_as: lut-gemm-v3/tabel4", "unknown experiment 'lut-gemm-v3/tabel4': did you mean"),
        ("title: only", "citation: Field required"),
    ],
)
def test_a_file_that_is_no_artifact(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "mine" / "p").mkdir(parents=True)
    (tmp_path / "mine" / "p" / "t.yaml").write_text(text)
    catalog.add_folder(tmp_path / "mine")
    with pytest.raises(LutlabError, match=message):
        load_artifact("p/t")
