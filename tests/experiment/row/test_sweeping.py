"""Which rows a command line asks for, what a row is composed of, and which model it names by a place."""

from dataclasses import replace
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from tests.base.refusals import refused
from tests.experiment.row.composing import settings

from lutlab.base import sources
from lutlab.base.errors import Mistakes
from lutlab.base.fields import keys_of
from lutlab.base.specs import ModelSpec
from lutlab.experiment.artifact.rows import ArtifactRow
from lutlab.experiment.row.located import located
from lutlab.experiment.row.row import Row, register_choices, row_keys
from lutlab.experiment.row.sweeping import baseline_of, parse, rows_of, variant, without_rows


def rows(*arguments: str, selected: tuple[str, ...] = ()) -> list[str]:
    (request,) = parse(arguments)
    return [row.key for row in rows_of(request, replace(settings("logger=none"), rows=selected))]


def test_rows_are_selected_by_name_or_pattern_in_the_order_of_the_table() -> None:
    everything = rows("+exp=table4")
    assert len(everything) == 10
    assert rows("+exp=table4", selected=("opt-66b/*",)) == everything[5:]
    assert rows("+exp=table4", selected=("*/fp16", "opt-30b/q3_*")) == [
        "opt-30b/fp16", "opt-30b/q3_g32", "opt-30b/q3_g64", "opt-66b/fp16",
    ]  # fmt: skip


def test_what_any_row_fixes_cannot_be_given_on_the_command_line() -> None:
    refused(r"^sublayers.attention.q= contradicts", rows, "+exp=fig14", "sublayers.attention.q=3")
    assert rows("+exp=fig14", "calibration.samples=8")


def free(*arguments: str) -> list[list[str]]:
    (request,) = parse(arguments)
    return [row.overrides for row in rows_of(request, settings())]


def test_an_artifact_without_rows_at_a_scale_says_which_have_some() -> None:
    (product,) = parse(["+exp=nuqmm/table3"])
    message = without_rows(product, "real")
    assert "no rows at scale=real" in message
    assert message.endswith("give scale=embedded, small or paper")
    (table,), (free,) = parse(["+exp=table4"]), parse(["q=3"])
    assert without_rows(table, "real") == without_rows(free, "real") == ""


def test_a_field_of_one_of_several_methods_is_set_in_its_rows_only() -> None:
    rtn, *bcq = free("method=rtn,bcq", "method.bcq.offset=true,false", "q=3")
    assert rtn == ["q=3", "method=rtn"]
    assert bcq == [["q=3", "method=bcq", f"method.offset={value}"] for value in (True, False)]
    assert free("method.rtn.variant=awq") == [["method.variant=awq"]]  # the default method


def test_full_precision_has_nothing_of_the_weights() -> None:
    line = ["q=3", "model=a", "method=bcq", "method.offset=true", "+tuning.steps=3", "data.limit=2"]
    row = baseline_of(ArtifactRow("", {}, line))
    assert row.overrides == ["model=a", "data.limit=2", "method=none"]


@pytest.mark.parametrize(("source", "name", "folder"), [
    ("hub", "llama-7b", "embedded-llama-7b"),
    ("folder", "models/stories260K", "embedded-stories260K"),
    ("synthetic", "synthetic-huggyllama/llama-7b", "embedded-synthetic-llama-7b"),
    ("synthetic", "synthetic-llama-embedded-s", "embedded-synthetic-llama-embedded-s"),
])  # fmt: skip
def test_another_models_report_has_a_folder_that_names_it(source, name, folder) -> None:
    (request,) = parse(["+exp=qigen/fig4", "model=any"])
    row = replace(settings("logger=none"), model=ModelSpec(name, source, "any"))
    assert variant(request, row) == folder


def test_another_calibrations_report_stands_beside() -> None:
    (request,) = parse(["+exp=table6", "calibration.samples=128", "calibration.text=own", "seed=3"])
    assert variant(request, settings("logger=none")) == "embedded-samples-128-text-own"


QUANTIZED = '{"quantization_config": {"quant_method": "lutlab"}}'


@pytest.fixture
def places(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, config in {"plain": "{}", "packed": QUANTIZED}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(config)
    (tmp_path / "a blank").mkdir()
    (tmp_path / "file.gguf").write_bytes(b"GGUF")


@pytest.mark.parametrize(("place", "lines"), [
    ("opt-125m", ["model=opt-125m"]),
    ("folder", ["model=folder"]),
    ("plain", ["model=folder", "model.id=plain"]),
    ("'it\\'s'", ["model='it\\'s'"]),
    ("owner/name", ["model=hub", "model.id=owner/name"]),
    ("a,b", ["model=a,b"]),
    ("a blank", ["model=folder", "model.id='a blank'"]),
    ("packed", ["model=folder", "model.id=packed", "method=stored"]),
    ("file.gguf", ["model=folder", "model.id=file.gguf"]),
])  # fmt: skip
def test_a_place_is_looked_for(place, lines, places):
    first, *more = located([f"model={place}", "q=3"], ["opt-125m", "folder"])
    assert [first, *(line for line in more if line != "q=3")] == lines


def test_what_the_line_says_of_the_method_stands(places):
    assert located(["model=packed", "method=rtn"], [])[2:] == ["method=rtn"]
    assert "method=stored" not in located(["+exp=table4", "model=packed"], [])


def row(**given) -> Row:
    """As presets make it, which no line is checked for."""
    register_choices()
    with initialize_config_dir(str(sources.folder("conf")), version_base="1.3"):
        config = compose("config", ["device=cpu"])
    OmegaConf.set_struct(config, False)
    return Row.of(OmegaConf.merge(config, given))


def test_a_key_that_does_not_exist_is_named_with_the_nearest() -> None:
    with pytest.raises(Mistakes, match=r"no key 'model\.nmae': did you mean 'model\.name'"):
        row(model={"nmae": "x"})


def test_all_that_presets_set_wrongly_is_said_at_once() -> None:
    with pytest.raises(Mistakes) as caught:
        row(q="three", threads=0, skip="fc", method={"variant": [1]}, data={"source": "moon"})
    source = "unknown data.source 'moon': known: embedded, folder, hub"
    names = {line.partition("=")[0] for line in caught.value.said}
    assert names == {"q", "threads", "skip", "method.variant", source}


def test_values_have_the_types_of_their_fields() -> None:
    typed = row(q=3.0, stream=1, name=7, skip=["a"], budget=3, results="there", knobs={"luts": 4})
    assert (typed.q, type(typed.q), typed.stream, typed.name) == (3, int, True, "7")
    assert (typed.skip, typed.budget, typed.results) == (("a",), 3.0, Path("there"))
    assert typed.all_knobs == (("luts", 4),)
    assert row(mu=4).all_knobs == (("mu", 4),)


def test_a_field_of_a_spec_is_a_key() -> None:
    """As docs/architecture.md says of model.task: nothing else names it on its way to the command line."""
    (task,) = (key for key in keys_of(ModelSpec, "model.") if key.name == "model.task")
    assert row_keys()["model.task"] == task
    assert task.values == ("sequence_classification",)
    assert task.about.startswith("sequence_classification: a causal model")
