"""A job is complete and travels unharmed: as JSON, and as one override through Hydra's grammar."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from tests.experiment.row.composing import settings
from tests.test_architecture import RANK, SOURCE, module_of, room_of

from lutlab.base.errors import LutlabError
from lutlab.base.specs import ModelRun, TextSpec
from lutlab.experiment.artifact.columns import free_columns
from lutlab.experiment.artifact.rows import ArtifactRow
from lutlab.experiment.plan import plan
from lutlab.experiment.plan.plan import ComposedRow, Job, RunnableRow, job_from, job_of, override_of
from lutlab.experiment.plan.resolve import Files
from lutlab.experiment.run import worker
from lutlab.experiment.store.store import Store

QUICK = "evaluate=[ppl:wikitext2,weight_error]"
ODD = r"""it's "$HOME" ${q} \' \\ {a: [b], c=d} # é"""


def job(results: Path, *overrides: str) -> Job:
    asked = settings(f"results='{results}'", *overrides)
    columns = free_columns(asked.evaluate)
    row = plan.plan_row(ComposedRow(ArtifactRow("", {}, []), asked), columns, Files())
    return job_of(row, row.todo, asked.threads)


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


def entered(call: Callable[[], Any]) -> tuple[Any, set[str], int]:
    """The result of a call, the files that it entered, and how often one of a lower room called one above it."""
    files, climbs = set(), 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal climbs
        rooms = [room_of_file(at.f_code.co_filename) for at in (frame, frame.f_back) if at]
        if event == "call" and rooms[0]:
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
    line = ArtifactRow("", {}, []), settings(f"results='{tmp_path}'", "method=gptq", QUICK)
    columns = free_columns(line[1].evaluate)

    def planned() -> RunnableRow:
        return plan.plan_row(ComposedRow(*line), columns, Files())

    planned()  # what is read once a process
    row, files, _ = entered(planned)
    assert len(set(map(room_of_file, files))) <= 10
    _, files, climbs = entered(lambda: job_of(row, row.todo, None))
    assert len(files) <= 10
    assert climbs == 0
    assert {room_of_file(name) for name in files} & {"models", "checkpoint", "data"} <= {"data"}


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
    spec = TextSpec("topics", "embedded")
    with pytest.raises(LutlabError, match="another text here than where the run was planned"):
        Files().planned_text(spec, "0" * 64)


def test_a_speed_planned_for_another_machine_is_not_measured(tmp_path: Path) -> None:
    made = job(tmp_path, "evaluate=[generation]")
    made = dataclasses.replace(made, machine=made.machine | {"cpu": "another one"})
    worker.execute(made)
    (cell,) = made.cells
    record = Store(tmp_path).load(cell.cell_id)
    assert record.status == "failed"
    assert "measures the machine that it was planned on, cpu another one" in record.reason
