"""mode=plan: every cell, measured or not, with its predicted time and memory, disk and downloads. Runs nothing.

Of rows with predicted columns it says the latency, memory and least number of GPUs of the paper's model too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lutlab import predict
from lutlab.errors import LutlabError
from lutlab.experiment.artifact.artifact import Artifact
from lutlab.experiment.artifact.predicted import OOM, least, predicted
from lutlab.experiment.plan import cost
from lutlab.experiment.plan.plan import PlannedCell, PlannedRow
from lutlab.experiment.plan.resolve import Files
from lutlab.specs import EvalSpec, ModelRun, RunSpec


def print_plan(
    artifact: Artifact | None,
    rows: Sequence[PlannedRow],
    results: Path,
    console: Console,
    files: Files,
) -> None:
    """Print the plan of an artifact or a sweep."""
    console.print(f"plan: {artifact.name if artifact else 'sweep'} (predictions; nothing is run)\n")
    table = Table(box=None)
    for title in ("row", "model", "evaluation", "state"):
        table.add_column(title)
    for title in ("time", "memory"):
        table.add_column(title, justify="right")
    planned: dict[tuple[RunSpec, EvalSpec], cost.Cost | None] = {}
    unknown: set[str] = set()
    for row in rows:
        for evaluation, cell in {c.evaluation: c for c in row.cells.values()}.items():
            state, wanted = _state(cell)
            predicted = _predict(row, cell, unknown, files) if wanted else None
            if wanted:
                planned[row.spec, evaluation] = predicted
            text = f" on {evaluation.text.name}" if evaluation.text else ""
            table.add_row(
                row.key,
                row.spec.name,
                f"{evaluation.evaluator}{text}",
                state,
                f"{predicted.seconds:.1f} s" if predicted else "?" if wanted else "",
                f"{predicted.peak_bytes / 1e6:,.0f} MB" if predicted else "?" if wanted else "",
            )
    console.print(table)
    for reason in sorted({c.missing for row in rows for c in row.cells.values() if c.missing}):
        console.print(f"not run: {reason}", highlight=False)
    for reason in sorted(unknown):
        console.print(f"not predicted: {reason}", highlight=False)
    console.print(_summary(rows, planned, results), highlight=False)
    for line in _per_token(artifact, rows) if artifact else ():
        console.print(line, highlight=False, soft_wrap=True)


def _per_token(artifact: Artifact, rows: Sequence[PlannedRow]) -> Iterator[str]:
    """A line for each row with predicted columns: milliseconds, memory, the least GPUs that hold the model."""
    predictions = artifact.predictions()
    said = ""
    for row in rows:
        own = [of for (key, _), of in predictions.items() if key == row.key]
        if not own:
            continue
        found = [predict.latency(**of) for of in own]
        _, note = predicted(own[0])
        if note != said:
            yield f"\npredicted, of the paper's models, {note}:"
        said = note
        times = ", ".join(f"{one.ms_per_token:.1f}" if one.fits else OOM for one in found)
        sizes = ", ".join(f"{one.memory.each / 1e9:.1f}" for one in found)
        gpus = ", ".join(str(of["gpus"]) for of in own)
        enough = least(own[0])
        held = f"{enough} GPU(s) hold it" if enough else "no number of GPUs holds it"
        yield f"  {row.key}: {times} ms/token on {gpus} GPU(s); {sizes} GB each; {held}"


def _predict(
    row: PlannedRow, cell: PlannedCell, unknown: set[str], files: Files
) -> cost.Cost | None:
    """The cell's cost; None, and why, where the model's config is not here and the hub cannot be asked."""
    try:
        return cost.predict(row.spec, cell.evaluation, files)
    except LutlabError as error:
        unknown.add(str(error))
        return None


def _summary(
    rows: Sequence[PlannedRow],
    planned: dict[tuple[RunSpec, EvalSpec], cost.Cost | None],
    results: Path,
) -> str:
    known = [predicted for predicted in planned.values() if predicted]
    to_run = {spec for spec, _ in planned}
    seconds = sum(p.seconds for p in known)
    downloads = "an unknown amount"
    if len(known) == len(planned):
        seconds += sum(cost.quantize_seconds(spec) for spec in to_run)
        missing = {spec.model for spec in to_run if isinstance(spec, ModelRun)}
        downloads = f"{sum(cost.download_bytes(m) for m in missing) / 1e9:,.1f} GB"
    peak = max((p.peak_bytes for p in known), default=0)
    disk = len(planned) * cost.RECORD_BYTES
    if len(known) == len(planned):
        disk += sum(cost.disk_bytes(spec) for spec in to_run)
    more = "" if len(known) == len(planned) else f" for the {len(known)} predicted"
    return (
        f"{len(planned)} cells to measure, about {seconds:.0f} s one by one, at most {peak / 1e6:,.0f} MB{more}; "
        f"disk {disk / 1e6:,.1f} MB of {cost.free_bytes(results) / 1e9:,.0f} GB free; models to download: {downloads}"
    )


def _state(cell: PlannedCell) -> tuple[str, bool]:
    """State of a cell as it is printed, and whether it is to be measured."""
    if cell.missing:
        return "not run: see below", False
    if cell.done:
        return f"measured ({cell.cell_id})", False
    if cell.cell_id is None:
        return "to be downloaded and measured", True
    if cell.record is not None:
        return f"{cell.record.status} before, to be tried again", True
    return "to be measured", True
