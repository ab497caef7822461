"""The table of mode=plan: a line a row with its cells, seconds, and bytes of its weights; nothing is run."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lutlab.base.errors import LutlabError
from lutlab.base.specs import EvalSpec, ModelRun, RunSpec
from lutlab.experiment.artifact.artifact import Artifact
from lutlab.experiment.artifact.predicted import OOM, least, predicted
from lutlab.experiment.plan.cost import History
from lutlab.experiment.plan.plan import PlannedRow
from lutlab.experiment.plan.resolve import Files
from lutlab.experiment.store.store import Store
from lutlab.models import hub
from lutlab.models.shape import shape_of
from lutlab.predict import latency


def print_plan(
    artifact: Artifact | None,
    rows: Sequence[PlannedRow],
    results: Path,
    console: Console,
    files: Files,
) -> None:
    """Print the plan of an artifact or a sweep: what all of it takes, then a line for each row.

    Of rows with predicted columns it says the latency, memory and least number of GPUs of the paper's model too.
    """
    table = Table(box=None)
    for title in ("row", "model"):
        table.add_column(title, no_wrap=True, overflow="ellipsis", ratio=1)
    for title in ("done", "to do", "not run", "time", "weights"):
        table.add_column(title, justify="right", no_wrap=True, min_width=max(7, len(title)))
    history = History.of(Store(results).all().values())
    planned: set[tuple[RunSpec, EvalSpec]] = set()
    times: list[float | None] = []
    errors: set[str] = set()
    for row in rows:
        cells = {cell.evaluation: cell for cell in row.cells.values()}
        todo = [e for e, cell in cells.items() if not (cell.missing or cell.done)]
        fresh = [e for e in todo if (row.spec, e) not in planned]  # another row's else
        planned |= {(row.spec, e) for e in todo}
        seconds = weights = None
        try:
            weights = _weight_bytes(row.spec)
            seconds = _seconds(history, row.spec, fresh, files)
        except LutlabError as error:  # the model's config is not here
            errors.add(str(error))
        done = sum(cell.done for cell in cells.values())
        counts = (done, len(todo), len(cells) - done - len(todo))
        sizes = (_or_unknown(seconds, "s", ".1f"), _or_unknown(weights and weights / 1e6, "MB", ".0f"))  # fmt: skip
        shown = sizes if todo else ("", "")
        table.add_row(row.key, row.spec.name, *(f"{count or ''}" for count in counts), *shown)
        times += [seconds] if fresh else []
    name = artifact.name if artifact else "sweep"
    console.print(f"plan: {name} (nothing is run)", highlight=False)
    console.print(_summary(planned, times, results), highlight=False)
    tries = [cell for row in rows for cell in row.cells.values() if cell.record and not cell.done]
    if tries:
        console.print(f"{len(tries)} cells failed before and are tried again", highlight=False)
    console.print(table)
    for reason in sorted({c.missing for row in rows for c in row.cells.values() if c.missing}):
        console.print(f"not run: {reason}", highlight=False)
    for reason in sorted(errors):
        console.print(f"unknown: {reason}", highlight=False)
    for line in _per_token(artifact, rows) if artifact else ():
        console.print(line, highlight=False, soft_wrap=True)


def _seconds(
    history: History, run: RunSpec, evaluations: Sequence[EvalSpec], files: Files
) -> float | None:
    """Seconds of quantizing a row and of its cells; None where a part is unknown."""
    if not evaluations:
        return 0.0
    parts = [history.cell_seconds(run, evaluation, files) for evaluation in evaluations]
    known = [part for part in (*parts, history.quantize_seconds(run)) if part is not None]
    return sum(known) if len(known) > len(parts) else None


def _weight_bytes(run: RunSpec) -> int:
    """Bytes of the weights as they are loaded: of a product, of its matrices in float32."""
    if not isinstance(run, ModelRun):
        return sum(4 * rows * columns for rows, columns, _ in run.shapes)
    return shape_of(run.model).parameters * (4 if run.dtype == "float32" else 2)


def _or_unknown(value: float | None, unit: str, form: str) -> str:
    return "?" if value is None else f"{value:,{form}} {unit}"


def _summary(
    planned: set[tuple[RunSpec, EvalSpec]], times: Sequence[float | None], results: Path
) -> str:
    """Cells, seconds one by one, downloads, and the disk that is free."""
    known = [seconds for seconds in times if seconds is not None]
    unknown = len(times) - len(known)
    others = f" and {unknown} rows without a record here" if unknown else ""
    models = {run.model for run, _ in planned if isinstance(run, ModelRun)}
    try:
        lacking = [hub.download_bytes(m.id, m.revision) for m in models if m.source == "hub"]
        downloads = f"{sum(lacking) / 1e9:,.1f} GB"
    except LutlabError:  # the rows say why
        downloads = "an unknown amount"
    free = shutil.disk_usage(next(p for p in (results, *results.resolve().parents) if p.exists()))
    return (
        f"{len(planned)} cells to measure, about {sum(known):.0f} s one by one{others}; "
        f"models to download: {downloads}; disk free: {free.free / 1e9:,.0f} GB"
    )


def _per_token(artifact: Artifact, rows: Sequence[PlannedRow]) -> Iterator[str]:
    """A line for each row with predicted columns: milliseconds, memory, the least GPUs that hold the model."""
    predictions, heading = artifact.predictions(), ""
    for row in rows:
        settings = [prediction for (key, _), prediction in predictions.items() if key == row.key]
        if not settings:
            continue
        latencies, (_, note) = [latency(**each) for each in settings], predicted(settings[0])
        if note != heading:
            yield f"\npredicted, of the paper's models, {note}:"
        heading = note
        times = ", ".join(f"{each.ms_per_token:.1f}" if each.fits else OOM for each in latencies)
        sizes = ", ".join(f"{each.memory.each / 1e9:.1f}" for each in latencies)
        gpus = ", ".join(str(prediction["gpus"]) for prediction in settings)
        enough = least(settings[0])
        holds = f"{enough} GPU(s) hold it" if enough else "no number of GPUs holds it"
        yield f"  {row.key}: {times} ms/token on {gpus} GPU(s); {sizes} GB each; {holds}"
