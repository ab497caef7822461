"""Mistakes in a user's modules and folders are explained; nothing here stays registered."""

import sys

import pytest

from lutlab.base.errors import LutlabError
from lutlab.experiment.artifact import catalog
from lutlab.experiment.artifact.artifact import load_artifact
from lutlab.experiment.run import additions

TAKEN = "from lutlab.base.registry import register\n@register('method', 'rtn')\nclass Mine: ...\n"


@pytest.fixture(autouse=True)
def _as_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(catalog, "_folders", [*catalog._folders])


def written(folder, name, text=""):
    """The file of a table of one's own."""
    path = folder / "my tables" / f"{name}.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return path


def test_both_keys_are_read_and_plugins_become_a_list(tmp_path):
    for name in ("first_plugin", "second_plugin"):
        (tmp_path / f"{name}.py").write_text("")
    table = written(tmp_path, "p/t")
    line = ["q=2,3", "plugins=first_plugin,second_plugin", "experiments=my tables", "--cfg"]
    read = additions.read(line)
    assert read == [line[0], "plugins=[first_plugin,second_plugin]", *line[2:]]
    assert {"first_plugin", "second_plugin"} <= sys.modules.keys()
    assert catalog.artifacts()["p/t"] == table


@pytest.mark.parametrize("line", [[], ["plugins=[]"], ["plugins=null", "experiments=null"]])
def test_nothing_is_added_where_nothing_is_given(line):
    before = catalog.artifacts()
    additions.read(line)
    assert catalog.artifacts() == before


@pytest.mark.parametrize(("given", "source", "message"), [
    ("plugins=absent_plugin", None, "plugins=absent_plugin.*No module named 'absent_plugin'.*PYTHONPATH"),
    ("plugins=broken_plugin", "x = 1\nx / 0\n", r"ZeroDivisionError.*broken_plugin.py, line 2"),
    ("plugins=needy_plugin", "import not_there\n", r"No module named 'not_there' \(.*needy_plugin.py, line 1"),
    ("plugins=wrong_plugin", "def f(:\n", r"SyntaxError.*wrong_plugin.py, line 1"),
    ("plugins=taken_plugin", TAKEN, "method 'rtn' is registered twice"),
    ("experiments=absent", None, "absent: no such folder"),
    ("experiments=empty", None, r"has no file <paper>/<artifact>\.yaml"),
    ("experiments=a,b", None, "experiments=a,b: give one folder"),
])  # fmt: skip
def test_a_module_or_a_folder_that_cannot_be_taken(tmp_path, given, source, message):
    (tmp_path / "empty").mkdir()
    if source is not None:
        (tmp_path / f"{given.removeprefix('plugins=')}.py").write_text(source)
    with pytest.raises(LutlabError, match=message):
        additions.read([given])


def test_a_name_that_exists_already_is_refused(tmp_path):
    own = written(tmp_path, "lut-gemm-v3/table4")
    before = catalog.artifacts()
    with pytest.raises(LutlabError) as refused:
        catalog.add_folder(own.parents[1])
    assert str(own) in str(refused.value)
    assert str(before["lut-gemm-v3/table4"]) in str(refused.value)
    assert catalog.artifacts() == before


@pytest.mark.parametrize(("text", "message"), [
    ("- 1", "is no table"),
    ("a: [", "is not YAML"),
    ("same_as: lut-gemm-v3/tabel4", "unknown experiment 'lut-gemm-v3/tabel4': did you mean"),
    ("title: only", "citation: Field required"),
])  # fmt: skip
def test_a_file_that_is_no_artifact(tmp_path, text, message):
    catalog.add_folder(written(tmp_path, "p/t", text).parents[1])
    with pytest.raises(LutlabError, match=message):
        load_artifact("p/t")
