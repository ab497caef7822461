"""A user's own method, evaluator and table, from outside the package, through the command line.

Each command is a process of its own: what is registered stays for the rest of a process.
"""

import re

import pytest
from tests.command_line import records, start
from tests.experiment.run.table4 import cells_of
from tests.pages import write_files

from lutlab.base.errors import LutlabError
from lutlab.experiment.row.row import check_presets

PLUGINS = "plugins=my_method,my_evaluator"
TABLE1 = (PLUGINS, "experiments=tables", "+exp=my-paper/table1")


@pytest.fixture
def own(tmp_path):
    """The files of the documentation's pages; the table is of the user's method and evaluator."""
    write_files(tmp_path)
    table = tmp_path / "tables" / "my-paper" / "table1.yaml"
    text = table.read_text().replace("method=rtn", "method=shrunk")
    text = text.replace("evaluator: model_size", "evaluator: layer_count")
    table.write_text(text.replace("metric: bits_per_weight", "metric: layers"))
    return tmp_path


def command(folder, *arguments, code=0):
    """Output or, where it fails, errors of run.py called in the folder."""
    process = start(*arguments, "logger=none", results=folder / "results")
    out, err = process.communicate()
    assert process.returncode == code, err
    return err if code else out


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["basic", "joblib"])
def test_a_table_of_a_users_method_and_evaluator(own, launcher):
    """joblib: a worker is another process, which imports the module again."""
    assert "Me 2026" in command(own, *TABLE1, f"hydra/launcher={launcher}")
    rows = cells_of(own / "results" / "my-paper" / "table1" / "embedded")
    cells = {(r["row"], r["column"]): float(r["measured"]) for r in rows}
    assert cells["model/q3", "size"] == cells["model/q8", "size"] > 0
    assert 0.25 < cells["model/q8", "error"] < 0.251 < cells["model/q3", "error"]


@pytest.mark.slow
def test_a_users_method_in_a_sweep(own):
    """plugins=a,b is two modules, not a sweep; the method's field is typed by its dataclass."""
    (own / "other_lab.py").write_text("")
    arguments = ["plugins=my_method,other_lab", "method=shrunk", "evaluate=[weight_error]", "q=8"]
    command(own, *arguments, "method.factor=0.9")
    (record,) = records(own / "results").values()
    assert record["run"]["options"] == {"factor": 0.9}
    assert record["values"]["weight_relative_mse"] == pytest.approx(0.01, rel=0.05)
    assert "method.factor" in command(own, *arguments, "method.factor=much", code=2)


@pytest.mark.slow
def test_a_users_evaluator_in_a_sweep(own):
    """One file: its column, direction and cost are declared in it."""
    sweep = ["plugins=my_evaluator", "evaluate=[layer_count]", "evaluator.layer_count.per=2"]
    assert "1 cells to measure" in command(own, *sweep, "mode=plan")
    assert "count" in command(own, *sweep)
    (record,) = records(own / "results").values()
    assert record["values"] == {"layers": 12}


def test_a_metric_that_no_evaluator_declares_is_refused_when_the_table_is_read(own):
    table = own / "tables" / "my-paper" / "table1.yaml"
    right = table.read_text()
    table.write_text(right.replace("metric: layers", "metric: layer"))
    errors = command(own, *TABLE1, code=2)
    assert "columns.size" in errors
    assert "layer_count has no metric 'layer': did you mean 'layers'?" in errors
    table.write_text(right.replace("me2026", "you2026"))
    assert re.search("no entry 'you2026'.*did you mean 'me2026'", command(own, *TABLE1, code=2))


def test_presets_of_a_users_own(own):
    """Hydra's --config-dir; its groups are those of conf/."""
    preset = own / "conf" / "model" / "mine.yaml"
    preset.parent.mkdir(parents=True)
    preset.write_text("name: mine\nsource: embedded\nid: opt-embedded-s\n")
    line = ["--config-dir=conf", "model=mine", "evaluate=[weight_error]", "mode=plan"]
    assert "mine" in command(own, *line)


def test_help_lists_what_a_user_added(own):
    shown = command(own, "--help", "all", PLUGINS, "experiments=tables")
    assert "exp/my-paper: all, table1" in shown
    choices = shown.partition("\nmethod: ")[2].partition(":")[0]  # may go on in a second line
    assert "shrunk" in choices.replace(",", "").split()


def test_presets_are_read_and_other_files_of_their_folder_are_not(tmp_path):
    """`--config-dir=.` is of a folder that holds more."""
    for folder in ("model", ".github"):
        (tmp_path / folder).mkdir()
    (tmp_path / ".github" / "ci.yaml").write_text("on: ${{ no yaml of ours }}: [")
    (tmp_path / "model" / "mine.yaml").write_text("source: embedded\n")
    check_presets([tmp_path])
    (tmp_path / "model" / "mine.yaml").write_text("")
    with pytest.raises(LutlabError, match=r"mine\.yaml is empty"):
        check_presets([tmp_path])
