"""Seconds of a plan: medians of this machine's records, else a rate of its kind of work, else unknown."""

import dataclasses

import pytest

from lutlab.base.specs import CalibrationSpec, EvalSpec, ModelRun, ModelSpec, ProductRun, TextSpec
from lutlab.experiment.plan import cost
from lutlab.experiment.plan.cost import History
from lutlab.experiment.plan.resolve import Files
from lutlab.experiment.row.spelling import to_json
from lutlab.experiment.store.provenance import environment
from lutlab.experiment.store.record import Record
from lutlab.models.shape import ModelShape

SHAPE = ModelShape(
    parameters=10**9, linear_parameters=8 * 10**8, hidden=128, layers=4, vocabulary=2048, seqlen=512,
    inputs=((128, 384),),
)  # fmt: skip
TEXT = TextSpec("wikitext2", "hub", limit=4)
PPL = EvalSpec("ppl", TEXT)
RUN = ModelRun(ModelSpec("m", "folder", "m"), "bcq", 3, 128)
NOTHING = History({}, {})


@pytest.fixture(autouse=True)
def machine(monkeypatch) -> None:
    """A model of 1e9 parameters on a machine of 100 GFlop/s."""
    monkeypatch.setattr(cost, "_matmul_rate", lambda device, dtype: 1e11)
    monkeypatch.setattr(cost, "shape_of", lambda spec: SHAPE)


def record(seconds: float, run: ModelRun = RUN, evaluation: EvalSpec = PPL, **provenance) -> Record:
    about = environment() | provenance
    facts = {"quantize_seconds": 10 * seconds}
    return Record("0", "done", to_json(run), to_json(evaluation), {}, 1, (), facts, about, seconds)


def test_records_of_this_machine_decide_by_their_median() -> None:
    records = [*map(record, (2, 3, 50)), record(1000, cpu="another")]
    history = History.of(records)
    assert history.cell_seconds(RUN, PPL, Files()) == 3
    assert history.quantize_seconds(RUN) == 30
    wider = dataclasses.replace(RUN, q=4)  # another width of the same model takes as long
    assert history.cell_seconds(wider, PPL, Files()) == 3
    assert history.quantize_seconds(wider) == 30


def test_what_was_not_recorded_takes_a_rate() -> None:
    history = History.of([record(2)])
    longer = EvalSpec("ppl", dataclasses.replace(TEXT, limit=8))
    assert history.cell_seconds(RUN, longer, Files()) == 2 * 1e9 * 8 * 512 / 5e10
    assert NOTHING.quantize_seconds(RUN) == pytest.approx(0.27 * 800)
    assert NOTHING.cell_seconds(RUN, EvalSpec("weight_error"), Files()) < 1


def test_what_no_rate_says_is_unknown() -> None:
    assert NOTHING.cell_seconds(RUN, EvalSpec("generation"), Files()) is None
    product = ProductRun(((8, 16, 1),), "bcq", 3, 128)
    assert NOTHING.cell_seconds(product, EvalSpec("kernel_latency"), Files()) is None
    assert NOTHING.quantize_seconds(product) == 0
    calibration = CalibrationSpec(TEXT, samples=128, seqlen=512, seed=0)
    calibrated = dataclasses.replace(RUN, method="gptq", calibration=calibration)
    assert NOTHING.quantize_seconds(calibrated) is None
    assert History.of([record(2, calibrated)]).quantize_seconds(calibrated) == 20
    assert History.of([record(2, calibrated)]).quantize_seconds(RUN) == 0.27 * 800
