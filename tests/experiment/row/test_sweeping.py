"""Which rows a command line asks for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.experiment.row.composing import settings

from lutlab.base.errors import LutlabError
from lutlab.experiment.artifact.rows import ArtifactRow
from lutlab.experiment.row.row import ModelSpec
from lutlab.experiment.row.sweeping import baseline_of, parse, rows_of, variant, without_rows


def rows(*arguments: str, selected: tuple[str, ...] = ()) -> list[str]:
    (request,) = parse(arguments)
    asked = replace(settings("logger=none"), rows=selected)
    return [row.key for row in rows_of(request, asked)]


def test_rows_are_selected_by_name_or_pattern_in_the_order_of_the_table() -> None:
    everything = rows("+exp=table4")
    assert len(everything) == 10
    assert rows("+exp=table4", selected=("opt-66b/*",)) == everything[5:]
    assert rows("+exp=table4", selected=("*/fp16", "opt-30b/q3_*")) == [
        "opt-30b/fp16", "opt-30b/q3_g32", "opt-30b/q3_g64", "opt-66b/fp16",
    ]  # fmt: skip
    with pytest.raises(LutlabError, match=r"rows= names 'opt-13b/\*', which is not a row"):
        rows("+exp=table4", selected=("opt-30b/*", "opt-13b/*"))


def test_what_any_row_fixes_cannot_be_given_on_the_command_line() -> None:
    with pytest.raises(LutlabError, match=r"^sublayers.attention.q= contradicts"):
        rows("+exp=fig14", "sublayers.attention.q=3")
    assert rows("+exp=fig14", "calibration.samples=8")


def free(*arguments: str) -> list[list[str]]:
    (request,) = parse(arguments)
    return [row.overrides for row in rows_of(request, settings())]


def test_an_artifact_without_rows_at_a_scale_says_which_have_some() -> None:
    (product,) = parse(["+exp=nuqmm/table3"])
    found = without_rows(product, "real")
    assert "no rows at scale=real" in found
    assert found.endswith("give scale=embedded, small or paper")
    (table,), (free,) = parse(["+exp=table4"]), parse(["q=3"])
    assert without_rows(table, "real") == without_rows(free, "real") == ""


def test_a_field_of_one_of_several_methods_is_set_in_its_rows_only() -> None:
    assert free("method=rtn,bcq", "method.bcq.offset=true,false", "q=3") == [
        ["q=3", "method=rtn"],
        ["q=3", "method=bcq", "method.offset=True"],
        ["q=3", "method=bcq", "method.offset=False"],
    ]
    assert free("method.rtn.variant=awq") == [["method.variant=awq"]]  # the default method
    with pytest.raises(
        LutlabError, match=r"method.bcq.offset=true: no row .* has method=bcq, but rtn"
    ):
        free("method=rtn", "method.bcq.offset=true")


def test_full_precision_has_nothing_of_the_weights() -> None:
    line = ["q=3", "model=a", "method=bcq", "method.offset=true", "+tuning.steps=3", "data.limit=2"]
    row = baseline_of(ArtifactRow("", {}, line))
    assert row.overrides == ["model=a", "data.limit=2", "method=none"]


@pytest.mark.parametrize(
    ("source", "name", "folder"),
    [
        ("hub", "llama-7b", "embedded-llama-7b"),
        ("folder", "models/stories260K", "embedded-stories260K"),
        ("synthetic", "synthetic-huggyllama/llama-7b", "embedded-synthetic-llama-7b"),
        ("synthetic", "synthetic-llama-embedded-s", "embedded-synthetic-llama-embedded-s"),
    ],
)
def test_another_models_report_has_a_folder_that_names_it(source, name, folder) -> None:
    (request,) = parse(["+exp=qigen/fig4", "model=any"])
    model = {"source": source, "name": name, "id": "any", "revision": None, "layers": None}
    asked = replace(settings("logger=none"), model=ModelSpec(**model))
    assert variant(request, asked) == folder


def test_another_calibrations_report_stands_beside() -> None:
    (request,) = parse(["+exp=table6", "calibration.samples=128", "calibration.text=own", "seed=3"])
    assert variant(request, settings("logger=none")) == "embedded-samples-128-text-own"
