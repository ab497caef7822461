"""Rows that are one matrix product: planned, measured, resumed and reported as any other."""

from dataclasses import replace

import pytest
from tests.experiment.row.composing import settings

from lutlab.base.specs import EvalSpec
from lutlab.evaluators import kernel_latency
from lutlab.evaluators.kernel_latency import KernelLatency
from lutlab.experiment.plan.ids import Resolved, cell_identity
from lutlab.experiment.plan.resolve import Files, look
from lutlab.experiment.row.run import run_of
from lutlab.experiment.store.record import content_id
from lutlab.measure import products

PRODUCT = "model=product model.id=96x80"
SPEED = "evaluate=[kernel_latency]"
BCQ = f"{PRODUCT} method=bcq q=3 g=16"
WEIGHTS = "evaluator.kernel_latency.weights"


@pytest.fixture
def run(command, monkeypatch):
    """The outcome of a line that ends well, with its words a blank apart."""
    monkeypatch.setattr(products, "COLD_LIMIT", 20_000)
    monkeypatch.setitem(kernel_latency.ROUNDS, "cpu", 2)

    def words(line: str) -> str:
        outcome = command(*line.split(), "device=cpu", "logger=none")
        assert outcome.code == 0, outcome.err
        return " ".join(outcome.out.split())

    return words


def test_a_product_is_measured_once_and_reported(run, command, monkeypatch) -> None:
    line = f"{PRODUCT} {SPEED} method=none,bcq q=3 g=16"
    report = run(line)
    none, bcq = sorted(command.records().values(), key=lambda r: r["run"]["method"] == "bcq")
    assert (none["run"]["method"], bcq["run"]["method"]) == ("none", "bcq")
    assert none["values"]["speedup_fp32"] == 1
    assert bcq["run"]["shapes"] == [[96, 80, 1]]
    assert ["bcq" in kernel for kernel in bcq["facts"]["kernel"]] == [True]
    assert "synthetic-96x80" in report
    monkeypatch.setattr(KernelLatency, "measure", None)  # measuring anything now would fail
    assert run(line) == report


def test_what_fits_only_one_of_model_and_product_is_not_run(run, command) -> None:
    both = "evaluate=[kernel_latency,model_size]"
    assert "measured on a model, and a product is none" in run(f"{BCQ} {both}")
    assert "speed of one matrix product" in run(f"{both} q=3")
    assert len(command.records()) == 2


def test_weights_in_the_cache_are_other_cells_and_the_table_says_so(run, command) -> None:
    assert f"measured with {WEIGHTS}=resident" in run(f"{BCQ} {SPEED} {WEIGHTS}=resident")
    run(f"{BCQ} {SPEED} {WEIGHTS}=resident,cold")
    reports = {path.name for path in (command.results / "sweep").iterdir()}
    assert len(reports) == 2, "the second sweep did not write over the first"
    assert any(name.startswith(f"{WEIGHTS}-") for name in reports)
    records = command.records().values()
    measured = [(r["facts"]["weights"], r["evaluation"]["options"]) for r in records]
    assert len(measured) == 2, "a finished cell is not measured again"
    assert dict(measured) == {"resident": {"weights": "resident"}, "cold": {}}


def test_a_plan_predicts_products(run, command) -> None:
    plan = run(f"{PRODUCT} {SPEED} method=bcq q=3 mode=plan")
    assert "1 cells to measure" in plan
    assert "1 rows without a record here" in plan
    assert command.records() == {}


def test_the_choice_of_a_kernel_names_a_cell_and_a_short_name_is_the_same() -> None:
    choices = ("", "kernel=optq", "kernel=paper mu=4 +knobs.luts=4", "kernel=r0 mu=4 +knobs.luts=4")
    lines = [f"{PRODUCT} method=rtn q=3 {more}" for more in choices]
    auto, optq, paper, short = runs = [run_of(settings(*line.split())) for line in lines]
    assert (auto.kernel, auto.knobs) == ("auto", ())
    assert optq == replace(auto, kernel="optq")
    assert short == paper == replace(auto, kernel="paper", knobs=(("luts", 4), ("mu", 4)))
    evaluation = EvalSpec("kernel_latency")
    rows = [look(Resolved(run, {"only": evaluation}), None, Files()) for run in runs]
    assert len({content_id(cell_identity(row, evaluation)) for row in rows}) == 3
