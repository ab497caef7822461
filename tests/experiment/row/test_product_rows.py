"""Rows that are one matrix product: planned, measured, resumed and reported as any other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.command_line import CommandLine
from tests.experiment.row.composing import settings

from lutlab.base.specs import EvalSpec
from lutlab.evaluators import kernel_latency
from lutlab.evaluators.kernel_latency import KernelLatency
from lutlab.experiment.plan.ids import Resolved, cell_identity
from lutlab.experiment.plan.resolve import Files, look
from lutlab.experiment.row.run import run_of
from lutlab.experiment.store.record import content_id
from lutlab.measure import products

PRODUCT = ["model=product", "model.id=96x80", "device=cpu", "logger=none"]
SPEED = "evaluate=[kernel_latency]"


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "COLD_LIMIT", 20_000)
    monkeypatch.setitem(kernel_latency.ROUNDS, "cpu", 2)


def test_a_product_is_measured_once_and_reported(
    command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = command(*PRODUCT, SPEED, "method=none,bcq", "q=3", "g=16")
    assert outcome.code == 0, outcome.err
    found = {record["run"]["method"]: record for record in command.records().values()}
    assert found.keys() == {"none", "bcq"}
    assert found["none"]["values"]["speedup_fp32"] == 1
    assert found["bcq"]["run"]["shapes"] == [[96, 80, 1]]
    (kernel,) = found["bcq"]["facts"]["kernel"]
    assert "bcq" in kernel
    assert "synthetic-96x80" in outcome.out
    monkeypatch.setattr(KernelLatency, "measure", None)  # measuring anything now would fail
    assert command(*PRODUCT, SPEED, "method=none,bcq", "q=3", "g=16").out == outcome.out


def test_what_fits_only_one_of_model_and_product_is_not_run(command: CommandLine) -> None:
    outcome = command(*PRODUCT, "evaluate=[kernel_latency,model_size]", "method=bcq", "q=3", "g=16")
    assert outcome.code == 0, outcome.err
    assert "measured on a model, and a product is none" in " ".join(outcome.out.split())
    outcome = command("evaluate=[kernel_latency,model_size]", "logger=none", "q=3")
    assert "speed of one matrix product" in " ".join(outcome.out.split())
    assert len(command.records()) == 2


def test_weights_in_the_cache_are_other_cells_and_the_table_says_so(command: CommandLine) -> None:
    resident = "evaluator.kernel_latency.weights=resident"
    outcome = command(*PRODUCT, SPEED, "method=bcq", "q=3", "g=16", resident)
    assert outcome.code == 0, outcome.err
    assert f"measured with {resident}" in " ".join(outcome.out.split())
    command(*PRODUCT, SPEED, "method=bcq", "q=3", "g=16", f"{resident},cold")
    reports = {path.name for path in (command.results / "sweep").iterdir()}
    assert len(reports) == 2, "the second sweep did not write over the first"
    assert any(name.startswith("evaluator.kernel_latency.weights-") for name in reports)
    facts = [(r["facts"]["weights"], r["evaluation"]) for r in command.records().values()]
    found = {kind: evaluation["options"] for kind, evaluation in facts}
    assert found == {"resident": {"weights": "resident"}, "cold": {}}
    assert len(facts) == 2, "a finished cell is not measured again"


def test_a_plan_predicts_products(command: CommandLine) -> None:
    outcome = command(*PRODUCT, SPEED, "method=bcq", "q=3", "mode=plan")
    assert outcome.code == 0, outcome.err
    assert "1 cells to measure" in outcome.out
    assert "1 rows without a record here" in " ".join(outcome.out.split())
    assert command.records() == {}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model=product", "model.id=4096", SPEED], "not the shape of a product"),
        (["model=product", "model.id=96x80", "kernel=ato", SPEED], "did you mean 'auto'"),
        (["kernel=optq"], "set model=product"),
        (["mu=4"], "mu is of a single product"),
        ([*PRODUCT[:2], "+knobs.luts=4", SPEED], "kernel=auto has no knob 'luts'"),
        ([*PRODUCT, SPEED, "evaluator.kernel_latency.weights=hot"], "known: cold, resident"),
        (
            [*PRODUCT, SPEED, "evaluator.kernel_latency.rounds=0"],
            "rounds=0: give a whole number of at least 1",
        ),
        (
            [*PRODUCT, SPEED, "+evaluator.kernel_latenci.rounds=2"],
            "did you mean 'evaluator.kernel_latency.rounds'",
        ),
        (
            [*PRODUCT, SPEED, "+evaluator.kernel_latency.round=2"],
            "round': did you mean 'evaluator.kernel_latency.rounds'",
        ),
    ],
)
def test_mistakes_are_messages(command: CommandLine, overrides: list[str], message: str) -> None:
    outcome = command(*overrides, "logger=none", "device=cpu")
    assert outcome.code == 2
    assert message in outcome.err
    assert "Traceback" not in outcome.err


def test_the_choice_of_a_kernel_names_a_cell_and_a_short_name_is_the_same() -> None:
    runs = [
        run_of(settings(*PRODUCT[:2], "method=rtn", "q=3", *more))
        for more in (
            [],
            ["kernel=optq"],
            ["kernel=paper", "mu=4", "+knobs.luts=4"],
            ["kernel=r0", "mu=4", "+knobs.luts=4"],
        )
    ]
    auto, optq, paper, short = runs
    assert (auto.kernel, auto.knobs) == ("auto", ())
    assert optq == replace(auto, kernel="optq")
    assert short == paper == replace(auto, kernel="paper", knobs=(("luts", 4), ("mu", 4)))
    evaluation = EvalSpec("kernel_latency")
    rows = [look(Resolved(run, {"only": evaluation}), None, Files()) for run in runs]
    assert len({content_id(cell_identity(row, evaluation)) for row in rows}) == 3
