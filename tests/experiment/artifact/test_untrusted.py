"""An experiment's file is data, whoever wrote it: it sets a row's own keys, and runs and looks up nothing."""

import dataclasses
import sys

import pytest
from pydantic import ValidationError
from tests.base.refusals import refused

from lutlab.experiment.artifact import catalog
from lutlab.experiment.artifact.artifact import load_artifact
from lutlab.experiment.artifact.predicates import evaluate
from lutlab.experiment.artifact.rows import ROW_KEYS, AxisEntry
from lutlab.experiment.artifact.yaml_file import read_yaml
from lutlab.experiment.row.row import Row

TABLE = """
title: A table
citation: park2024lutgemm
source: Table 1
axes: [{row: {labels: {Model: m}, overrides: ["%s"]}}]
columns: {size: {title: size, unit: bits, evaluator: model_size, metric: bits_per_weight, published: false}}
"""


def test_a_row_may_set_keys_that_exist() -> None:
    assert set(ROW_KEYS) < {field.name for field in dataclasses.fields(Row)}


@pytest.mark.parametrize("override", [
    "hydra.run.dir=/elsewhere", "hydra/launcher=joblib", "hydra.job.env_set.LUTLAB_CC=evil", "plugins=evil",
    "plugins=[evil]", "experiments=../..", "results=/elsewhere", "job='{}'", "artifact=x", "mode=track",
    "logger=online", "local=default", "+evil=1", "++q=3", "~method", "+knobs=1", "method@hydra=rtn",
    "model@_global_=x", "q=${oc.env:HOME}", "q=$\\{oc.env:HOME\\}", "model.name='${oc.env:HOME}'", "q", "=3",
    "model=../../evil", "model=/etc/evil", "method=.", "exp=table4", "q=3\nplugins=evil\\", "Q.x=3",
])  # fmt: skip
def test_a_row_may_do_nothing_but_set_values(override: str) -> None:
    for overrides in ([override], {"embedded": ["q=3", override]}):
        with pytest.raises(ValidationError, match="override"):
            AxisEntry(labels={}, overrides=overrides)


def test_a_hostile_row_is_refused_before_it_is_composed(command, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(catalog, "_folders", [*catalog._folders])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("A_SECRET", "wonderland")
    table = tmp_path / "mine" / "paper" / "t.yaml"
    table.parent.mkdir(parents=True)
    table.write_text(TABLE % "model.name=${oc.env:A_SECRET}")
    outcome = command(f"experiments={tmp_path / 'mine'}", "+exp=paper/t", "mode=plan")
    assert outcome.code == 2
    assert "no plain <key>=<value>" in outcome.err
    assert "wonderland" not in outcome.out + outcome.err
    for name in ("paper/../../conf/config", "../mine/paper/t", str(table)):
        refused("unknown experiment", load_artifact, name)


@pytest.mark.parametrize("option", ["--experimental-rerun", "--experimental"])
def test_no_pickled_run_is_loaded(command, tmp_path, option: str) -> None:
    (tmp_path / "config.pickle").write_bytes(b"cbuiltins\nexit\n(I3\ntR.")
    outcome = command(option, str(tmp_path / "config.pickle"))
    assert outcome.code == 2
    assert "unpickle" in outcome.err


def laughs(line: str) -> str:
    """Ten lines, each ten times the one before it."""
    lines = "\n".join(line.format(a=f"a{i}", b=f"a{i - 1}") for i in range(1, 11))
    return f"a0: &a0 {{k: v}}\n{lines}\n"


@pytest.mark.parametrize(("text", "message"), [
    (laughs("{a}: &{a} [*{b},*{b},*{b},*{b},*{b},*{b},*{b},*{b},*{b},*{b}]"), "anchors stand for"),
    (laughs("{a}: &{a} {{<<: [*{b},*{b},*{b},*{b},*{b},*{b},*{b},*{b}]}}"), "anchors stand for"),
    ("a: &a [*a]", "for themselves"),
    ("[" * 800 + "]" * 800, "nested too deeply"),
    ("a: 1\nb: 2\na: 3", "line 1: 'a' stands twice"),
    ("!!python/object/apply:os.system [exit]", "not YAML.*could not determine a constructor"),
    ('a: "\\e]0;title\\a"', "control character"),
    ("a: [", "not YAML"),
    (b"a: \xff", "not YAML in UTF-8"),
])  # fmt: skip
def test_a_file_that_is_no_plain_data_is_a_message(tmp_path, text, message: str) -> None:
    path = tmp_path / "t.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(message, read_yaml, path)


@pytest.mark.parametrize("predicate", [
    "().__class__.__bases__[0]", "a.__class__ < 3", "9**9**9 > 0", "__import__('os').system('exit')",
    "a if b else a", "[a for a in b]", "a.ppl.x < 1", "lambda: a", "f'{a}'", "a := 3", "abs(*a) > 0",
    "eval('1') > 0", "a[0] > 1", "abs.ppl < 3", "a << 3", "a // b", "ａ.__ｃlass__ < 3", "-" * 5000 + "a < 3",
    "(" * 1000 + "a" + ")" * 900 + "< 3", "(" * 5000 + "a" + ")" * 5000 + "< 3",
    "a" + "+a" * 20000 + "< 3", "a < 3 \0", "1e999 < a", "'a' and a", "not a", "a + (a < 3) < 4", "abs(a < 3)",
    "'" * 3, "-(a < b)", "True < a",
])  # fmt: skip
def test_a_claim_is_arithmetic_alone(predicate: str) -> None:
    refused("claim", evaluate, predicate, {"a": {"ppl": 3.0}, "b": {"ppl": 0.0}}, "ppl")
