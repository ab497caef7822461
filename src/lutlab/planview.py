"""mode=plan: every cell, measured or not, with its predicted time and memory, disk and downloads. Runs nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lutlab import cost
from lutlab.plan import PlannedCell, PlannedRow
from lutlab.tables import Artifact


def print_plan(
    artifact: Artifact | None, rows: Sequence[PlannedRow], results: Path, console: Console
) -> None:
    """Print the plan of an artifact or a sweep."""
    table = Table(
        title=f"plan: {artifact.name if artifact else 'sweep'} (predictions; nothing is run)",
        box=None,
    )
    for title in ("row", "model", "evaluation", "state"):
        table.add_column(title)
    for title in ("time", "memory"):
        table.add_column(title, justify="right")
    seconds, peak, to_measure = 0.0, 0, {}
    for row in rows:
        seen: set[object] = set()
        for cell in row.cells.values():
            if cell.evaluation in seen:
                continue
            seen.add(cell.evaluation)
            state, wanted = _state(cell)
            predicted = cost.predict(row.spec, cell) if wanted else None
            text = f" on {cell.evaluation.text.protocol}" if cell.evaluation.text else ""
            table.add_row(
                row.key,
                row.spec.model.name,
                f"{cell.evaluation.evaluator}{text}",
                state,
                f"{predicted.seconds:.1f} s" if predicted else "",
                f"{predicted.peak_bytes / 1e6:,.0f} MB" if predicted else "",
            )
            if predicted and cell.cell_id not in to_measure:
                to_measure[cell.cell_id] = row
                seconds += predicted.seconds
                peak = max(peak, predicted.peak_bytes)
        if any(r is row for r in to_measure.values()):
            seconds += cost.quantize_seconds(row.spec)
    console.print(table)
    for reason in sorted({c.missing for row in rows for c in row.cells.values() if c.missing}):
        console.print(f"not run: {reason}", highlight=False)
    models = {row.spec.model for row in rows}
    downloads = sum(cost.download_bytes(model) for model in models)
    disk = len(to_measure) * cost.RECORD_BYTES
    console.print(
        f"{len(to_measure)} cells to measure, about {seconds:.0f} s one after another, at most {peak / 1e6:,.0f} MB; "
        f"disk {disk / 1e3:,.0f} kB of {cost.free_bytes(results) / 1e9:,.0f} GB free; "
        f"models to download {downloads / 1e9:,.1f} GB",
        highlight=False,
    )


def _state(cell: PlannedCell) -> tuple[str, bool]:
    """What the reader sees, and whether it is to be measured."""
    if cell.missing:
        return "not run: see below", False
    if cell.done:
        return f"measured ({cell.cell_id})", False
    if cell.record is not None:
        return f"{cell.record.status} before, to be tried again", True
    return "to be measured", True
