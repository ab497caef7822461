"""Which cells a plan leaves out, and why."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.experiment.row.composing import settings

from lutlab.base.errors import LutlabError
from lutlab.experiment.artifact.columns import ColumnSpec, free_columns
from lutlab.experiment.artifact.rows import ArtifactRow
from lutlab.experiment.plan import plan
from lutlab.experiment.plan.resolve import Files


def planned(tmp_path: Path, *overrides: str, **column: str) -> plan.PlannedCell:
    columns = {"only": ColumnSpec(title="a", unit="b", **column)}
    asked = settings(f"results='{tmp_path}'", *overrides)
    row = plan.plan_row(plan.ComposedRow(ArtifactRow("", {}, []), asked), columns, Files())
    return row.cells["only"]


def test_a_column_that_nobody_measures_says_why(tmp_path: Path) -> None:
    column = {"evaluator": "latency", "metric": "latency_2gpu_ms"}
    cell = planned(tmp_path, not_run="needs 2 GPUs", **column)
    assert (cell.missing, cell.cell_id) == ("needs 2 GPUs", None)
    few = "needs 2 GPUs that share the model, here 0"
    assert planned(tmp_path, **column).missing == few
    column["metric"] = "latency_1gpu_ms"
    assert "no CUDA device" in planned(tmp_path, **column).missing


def test_models_and_products_have_evaluators_of_their_own(tmp_path: Path) -> None:
    product = ["model=product", "model.id=96x80"]
    size = {"evaluator": "model_size", "metric": "ratio"}
    speed = {"evaluator": "kernel_latency", "metric": "latency_us"}
    assert planned(tmp_path, **size).missing == ""
    assert "a product is none" in planned(tmp_path, *product, **size).missing
    assert planned(tmp_path, *product, **speed).missing == ""
    assert "not of a model" in planned(tmp_path, **speed).missing


def test_what_an_evaluator_is_told_names_its_cells_and_its_own_defaults_do_not(tmp_path) -> None:
    product = ["model=product", "model.id=96x80"]
    speed = {"evaluator": "kernel_latency", "metric": "latency_us"}
    key = "evaluator.kernel_latency"
    plain, cold, resident, other = (
        planned(tmp_path, *product, *more, **speed)
        for more in ([], [f"{key}.weights=cold"], [f"{key}.weights=resident"], ["evaluator.generation.tokens=4"])
    )  # fmt: skip
    assert plain == cold == other
    assert resident.evaluation.options == (("weights", "resident"),)
    assert resident.cell_id != plain.cell_id


def test_an_unknown_evaluator_is_a_mistake() -> None:
    with pytest.raises(LutlabError, match="did you mean 'latency'"):
        free_columns(["latencie"])
    with pytest.raises(LutlabError, match=r"ppl has no metric 'bits': .*bits_per_byte"):
        free_columns(["ppl.bits:topics"])
    (key, column), *_ = free_columns(["ppl.bits_per_byte:topics"]).items()
    assert (key, column.metric, column.text) == (
        "ppl_bits_per_byte_topics",
        "bits_per_byte",
        "topics",
    )
    with pytest.raises(ValueError, match="did you mean 'latency'"):
        ColumnSpec(title="a", unit="b", evaluator="latencie", metric="x")


def test_an_evaluator_measures_models_of_its_own_task(tmp_path: Path) -> None:
    perplexity = {"evaluator": "ppl", "metric": "ppl", "text": "topics"}
    masked = {"evaluator": "masked_lm", "metric": "masked_loss", "text": "topics"}
    encoder = "model=bert-embedded-s"
    assert planned(tmp_path, **perplexity).missing == ""
    assert "of models for causal_lm" in planned(tmp_path, encoder, **perplexity).missing
    assert planned(tmp_path, encoder, **masked).missing == ""
    assert "of models for masked_lm" in planned(tmp_path, **masked).missing
