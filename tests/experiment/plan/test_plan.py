"""Which cells a plan leaves out, and why; how long it takes; a job is complete and travels unharmed."""

import dataclasses
import functools
import sys
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from tests.base.refusals import refused
from tests.experiment.row.composing import settings
from tests.test_architecture import RANK, SOURCE, module_of, room_of

from lutlab.base.specs import CalibrationSpec, EvalSpec, ModelRun, ModelSpec, ProductRun, TextSpec
from lutlab.experiment.artifact.columns import ColumnSpec, free_columns
from lutlab.experiment.artifact.rows import ArtifactRow
from lutlab.experiment.plan import cost, plan
from lutlab.experiment.plan.cost import History
from lutlab.experiment.plan.plan import ComposedRow, job_from, job_of, override_of
from lutlab.experiment.plan.resolve import Files
from lutlab.experiment.row.spelling import to_json
from lutlab.experiment.run import worker
from lutlab.experiment.store.provenance import environment
from lutlab.experiment.store.record import Record
from lutlab.experiment.store.store import Store
from lutlab.models.shape import ModelShape

PRODUCT = "model=product model.id=96x80"
ENCODER = "model=bert-embedded-s"
CAUSAL, MASKED = "ppl.ppl:topics", "masked_lm.masked_loss:topics"


def composed(results: Path, *overrides: str) -> ComposedRow:
    return ComposedRow(ArtifactRow("", {}, []), settings(f"results='{results}'", *overrides))


def planned(row: ComposedRow, columns=None):
    return plan.plan_row(row, columns or free_columns(row.row.evaluate), Files())


def cell(results: Path, column: str, line: str = "", not_run: str = "") -> plan.PlannedCell:
    """The cell of a column `<evaluator>.<metric>[:<text>]`."""
    name, _, text = column.partition(":")
    evaluator, metric = name.split(".")
    about = {"title": "a", "unit": "b", "text": text or None, "not_run": not_run}
    columns = {"only": ColumnSpec(evaluator=evaluator, metric=metric, **about)}
    return planned(composed(results, *line.split()), columns).cells["only"]


@pytest.mark.parametrize(("column", "line", "missing"), [
    ("latency.latency_2gpu_ms", "", "needs 2 GPUs that share the model, here 0"),
    ("latency.latency_1gpu_ms", "", "no CUDA device"),
    ("model_size.ratio", "", ""),
    ("model_size.ratio", PRODUCT, "a product is none"),
    ("kernel_latency.latency_us", PRODUCT, ""),
    ("kernel_latency.latency_us", "", "not of a model"),
    (CAUSAL, "", ""),
    (CAUSAL, ENCODER, "of models for causal_lm"),
    (MASKED, ENCODER, ""),
    (MASKED, "", "of models for masked_lm"),
])  # fmt: skip
def test_a_column_that_nobody_measures_says_why(tmp_path, column, line, missing) -> None:
    reason = cell(tmp_path, column, line).missing
    assert missing in reason
    assert bool(missing) == bool(reason)


def test_the_reason_of_a_table_stands(tmp_path) -> None:
    only = cell(tmp_path, "latency.latency_2gpu_ms", not_run="needs 2 GPUs")
    assert (only.missing, only.cell_id) == ("needs 2 GPUs", None)


def test_what_an_evaluator_is_told_names_its_cells_and_its_own_defaults_do_not(tmp_path) -> None:
    key = "evaluator.kernel_latency.weights"
    plain, cold, resident, other = (
        cell(tmp_path, "kernel_latency.latency_us", f"{PRODUCT} {more}")
        for more in ("", f"{key}=cold", f"{key}=resident", "evaluator.generation.tokens=4")
    )
    assert plain == cold == other
    assert resident.evaluation.options == (("weights", "resident"),)
    assert resident.cell_id != plain.cell_id


def test_a_column_is_an_evaluator_a_metric_and_a_text() -> None:
    (key, column), *_ = free_columns(["ppl.bits_per_byte:topics"]).items()
    assert key == "ppl_bits_per_byte_topics"
    assert (column.metric, column.text) == ("bits_per_byte", "topics")
    refused(r"ppl has no metric 'bits': .*bits_per_byte", free_columns, ["ppl.bits:topics"])
    with pytest.raises(ValueError, match="did you mean 'latency'"):
        ColumnSpec(title="a", unit="b", evaluator="latencie", metric="x")


QUICK = "evaluate=[ppl:wikitext2,weight_error]"
ODD = r"""it's "$HOME" ${q} \' \\ {a: [b], c=d} # é"""


def job(results: Path, *overrides: str):
    row = planned(composed(results, *overrides))
    return job_of(row, row.todo, row.composed.row.threads)


@pytest.mark.parametrize(
    "overrides",
    [
        [QUICK, "method=rtn", "q=3", "skip=['*.fc1']", "sublayers.attention.q=2", "data.limit=4"],
        [QUICK, "method=gptq", "threads=2", "stream=true"],
        [QUICK, "method=bcq", "budget=4", "candidates.q=[2,3]"],
        ["evaluate=[kernel_latency]", "model=product", "model.id=96x80+80x96x4", "kernel=r4",
         "+knobs.warps=4", "evaluator.kernel_latency.weights=resident"],
    ],
    ids=["model", "calibrated", "budget", "product"],
)  # fmt: skip
def test_a_job_is_the_same_after_its_way(tmp_path: Path, overrides: list[str]) -> None:
    made = dataclasses.replace(job(tmp_path, *overrides), results=Path(ODD))
    (override,) = OverridesParser.create().parse_overrides([override_of(made)])
    assert override.key_or_group == "job"
    assert not override.is_sweep_override()
    assert job_from(override.value()) == made


def entered(call):
    """The result of a call, the files that it entered, and how often one of a lower room called one above it."""
    files, climbs = set(), 0

    def note(frame, event, _):
        nonlocal climbs
        if event != "call" or not room_of_file(frame.f_code.co_filename):
            return
        rooms = [room_of_file(at.f_code.co_filename) for at in (frame, frame.f_back) if at]
        files.add(frame.f_code.co_filename)
        climbs += bool(rooms[-1]) and RANK[rooms[0]] > RANK[rooms[-1]]

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        result = call()
    finally:
        sys.setprofile(before)
    return result, files, climbs


def test_a_row_is_planned_in_ten_rooms_and_its_job_in_one_file(tmp_path: Path) -> None:
    """Ids are computed from hashes, so that no text, model or checkpoint is opened on the way to the job."""
    line = composed(tmp_path, "method=gptq", QUICK)
    planned(line)  # what is read once a process
    row, files, _ = entered(lambda: planned(line))
    assert len(set(map(room_of_file, files))) <= 10
    _, files, climbs = entered(lambda: job_of(row, row.todo, None))
    assert len(files) <= 10
    assert climbs == 0
    assert {room_of_file(name) for name in files} & {"models", "checkpoint", "data"} <= {"data"}


@functools.cache  # asked at every call of a plan
def room_of_file(name: str) -> str:
    path = Path(name)
    return room_of(module_of(path)) if path.is_relative_to(SOURCE) else ""


def test_a_job_names_what_is_kept_and_with_which_texts(tmp_path: Path) -> None:
    plain = job(tmp_path, QUICK, "method=rtn")
    assert (plain.quantized, plain.inputs, plain.machine) == (None, None, None)
    assert {bool(cell.text_sha256) for cell in plain.cells} == {True, False}
    calibrated = job(tmp_path, QUICK, "method=gptq")
    assert isinstance(calibrated.run, ModelRun)
    assert calibrated.quantized.parent == tmp_path / "quantized"
    assert calibrated.inputs.parent == tmp_path / "calibration"
    assert calibrated.calibration_sha256


def test_another_text_at_the_worker_is_refused() -> None:
    text = TextSpec("topics", "embedded")
    refused("another text here than where", Files().planned_text, text, "0" * 64)


def test_a_speed_planned_for_another_machine_is_not_measured(tmp_path: Path) -> None:
    here = job(tmp_path, "evaluate=[generation]")
    worker.execute(dataclasses.replace(here, machine=here.machine | {"cpu": "another one"}))
    record = Store(tmp_path).load(here.cells[0].cell_id)
    assert record.status == "failed"
    assert "measures the machine that it was planned on, cpu another one" in record.reason


SHAPE = ModelShape(
    parameters=10**9, linear_parameters=8 * 10**8, hidden=128, layers=4, vocabulary=2048, seqlen=512,
    inputs=((128, 384),),
)  # fmt: skip
TEXT = TextSpec("wikitext2", "hub", limit=4)
PPL = EvalSpec("ppl", TEXT)
RUN = ModelRun(ModelSpec("m", "folder", "m"), "bcq", 3, 128)
NOTHING = History({}, {})


@pytest.fixture
def machine(monkeypatch) -> None:
    """A model of 1e9 parameters on a machine of 100 GFlop/s."""
    monkeypatch.setattr(cost, "_matmul_rate", lambda device, dtype: 1e11)
    monkeypatch.setattr(cost, "shape_of", lambda spec: SHAPE)


def record(seconds: float, run=RUN, evaluation=PPL, **provenance) -> Record:
    about = environment() | provenance
    facts = {"quantize_seconds": 10 * seconds}
    return Record("0", "done", to_json(run), to_json(evaluation), {}, 1, (), facts, about, seconds)


def test_records_of_this_machine_decide_by_their_median(machine) -> None:
    records = [*map(record, (2, 3, 50)), record(1000, cpu="another")]
    history = History.of(records)
    assert history.cell_seconds(RUN, PPL, Files()) == 3
    assert history.quantize_seconds(RUN) == 30
    wider = dataclasses.replace(RUN, q=4)  # another width of the same model takes as long
    assert history.cell_seconds(wider, PPL, Files()) == 3
    assert history.quantize_seconds(wider) == 30


def test_what_was_not_recorded_takes_a_rate(machine) -> None:
    history = History.of([record(2)])
    longer = EvalSpec("ppl", dataclasses.replace(TEXT, limit=8))
    assert history.cell_seconds(RUN, longer, Files()) == 2 * 1e9 * 8 * 512 / 5e10
    assert NOTHING.quantize_seconds(RUN) == pytest.approx(0.27 * 800)
    assert NOTHING.cell_seconds(RUN, EvalSpec("weight_error"), Files()) < 1


def test_what_no_rate_says_is_unknown(machine) -> None:
    assert NOTHING.cell_seconds(RUN, EvalSpec("generation"), Files()) is None
    product = ProductRun(((8, 16, 1),), "bcq", 3, 128)
    assert NOTHING.cell_seconds(product, EvalSpec("kernel_latency"), Files()) is None
    assert NOTHING.quantize_seconds(product) == 0
    calibration = CalibrationSpec(TEXT, samples=128, seqlen=512, seed=0)
    calibrated = dataclasses.replace(RUN, method="gptq", calibration=calibration)
    assert NOTHING.quantize_seconds(calibrated) is None
    assert History.of([record(2, calibrated)]).quantize_seconds(calibrated) == 20
    assert History.of([record(2, calibrated)]).quantize_seconds(RUN) == 0.27 * 800
