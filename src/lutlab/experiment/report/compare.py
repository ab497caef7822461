"""Join an artifact's published numbers with the measured cells: verdicts, claims, one ResultTable for the report.

A number measured on a stand-in (another model, or another text) is never compared with the paper's as if it were the
same: its verdict is `stand-in` and only the claims are judged.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from lutlab.base import registry
from lutlab.base.specs import ModelRun, ProductRun, TextSpec
from lutlab.data.protocols import PROTOCOLS
from lutlab.evaluators.contract import metric_of
from lutlab.experiment.artifact.artifact import Artifact, Curve
from lutlab.experiment.artifact.catalog import cite
from lutlab.experiment.artifact.claims import judge
from lutlab.experiment.artifact.columns import SIZE, ColumnSpec
from lutlab.experiment.artifact.outcome import (
    FRONT,
    Cell,
    ClaimResult,
    Column,
    PublishedRow,
    ResultTable,
)
from lutlab.experiment.artifact.pareto import Point, front
from lutlab.experiment.artifact.predicted import VERDICT, Prediction, because, predicted
from lutlab.experiment.artifact.rows import REAL, Scale
from lutlab.experiment.plan.plan import PlannedCell, PlannedRow
from lutlab.experiment.report import means, origins
from lutlab.experiment.row.spelling import table_command
from lutlab.experiment.store import noise
from lutlab.experiment.store.record import Record

NOT_YET = "not measured yet"


def tabulate(artifact: Artifact, rows: Sequence[PlannedRow], scale: Scale) -> ResultTable:
    """Published beside measured, by the artifact's plain command."""
    columns = tuple(column_here(key, spec, rows) for key, spec in rows[0].columns.items())
    table_rows = [row_of(artifact, row, scale) for row in rows]
    return assemble(artifact, columns, table_rows, scale, notes_of(rows), records_of(rows))


def records_of(rows: Sequence[PlannedRow]) -> list[Record]:
    """The records of the rows' cells, each once."""
    cells = (cell for row in rows for cell in row.cells.values())
    return list({cell.cell_id: cell.record for cell in cells if cell.record}.values())


def notes_of(rows: Sequence[PlannedRow]) -> dict[str, list[str]]:
    """Row key -> the options of its evaluators, and the examples that they left out."""
    return {
        row.key: [
            note
            for cell in row.cells.values()
            for note in cell_notes(cell.record, cell.evaluation.options_named)
        ]
        for row in rows
    }


def cell_notes(record: Record | None, options: str) -> list[str]:
    """Notes of one cell: its evaluator's options, examples without a value, other texts, a tuning that went wrong."""
    return [options, troubled(record), *other_texts(record), tuned_badly(record)]


def assemble(
    artifact: Artifact,
    columns: Sequence[Column],
    rows: Sequence[PublishedRow],
    scale: Scale,
    notes: Mapping[str, Sequence[str]],
    records: Sequence[Record],
) -> ResultTable:
    """An artifact's table of all or some of its rows: the Pareto fronts found, the claims judged, the notes written.

    Columns are in the artifact's order, notes by row key as `notes_of` has them, records each once.
    """
    curve, predictions = artifact.curve(scale), artifact.predictions()
    rows = [
        dataclasses.replace(
            row,
            cells={
                key: with_prediction(cell, predictions.get((row.key, key)), artifact.columns[key])
                for key, cell in row.cells.items()
            },
        )
        for row in rows
    ]
    rows = _beside_full_precision(artifact, means.with_means(artifact, columns, rows, scale), scale)
    if curve and curve.front:
        rows = _with_fronts(rows, curve)
    return ResultTable(
        artifact=artifact.name,
        title=artifact.title,
        citation=cite(artifact.citation),
        source=artifact.source,
        scale=scale,
        command=table_command(artifact.name, ()),
        columns=tuple(columns),
        rows=tuple(rows),
        claims=_claims(artifact, rows, curve),
        notes=(*_notes(artifact, scale), *options(notes)),
        origins=origins.lines(records),
        provenance=origins.facts(records),
        curve=curve,
        one_axis=tuple(artifact.one_axis),
    )


def _beside_full_precision(
    artifact: Artifact, rows: Sequence[PublishedRow], scale: Scale
) -> list[PublishedRow]:
    """The rows with their differences to the first measured one of their model in full precision."""
    unquantized = {row.key for row in artifact.rows(scale) if "method=none" in row.overrides}
    full: dict[str, PublishedRow] = {}
    for row in rows:
        if row.key in unquantized and any(cell.measured is not None for cell in row.cells.values()):
            full.setdefault(row.model, row)
    columns = _of_quality(artifact.columns)
    return [_beside(row, full.get(row.model), columns) for row in rows]


def _of_quality(columns: Mapping[str, ColumnSpec]) -> list[str]:
    """Columns that full precision has a number of; a size and a speed are no such, nor what is relative to it."""
    return [
        key
        for key, spec in columns.items()
        if spec.text and not registry.lookup("evaluator", spec.evaluator).relative
    ]


def _with_fronts(rows: Sequence[PublishedRow], curve: Curve) -> tuple[PublishedRow, ...]:
    """The rows, each saying whether its measured point is on the front of its group."""
    groups: dict[str, dict[str, Point]] = {}
    for row in rows:
        x, y = row.cells[curve.x].measured, row.cells[curve.y].measured
        if x is not None and y is not None and not fnmatchcase(row.key, curve.baseline):
            groups.setdefault(curve.front_of(row.key), {})[row.key] = (x, y)
    on_front = {
        list(points)[i]
        for points in groups.values()
        for i in front([*points.values()], curve.larger)
    }
    return tuple(
        dataclasses.replace(
            row,
            on_front=row.key in on_front,
            labels={**row.labels, FRONT: "yes"} if row.key in on_front else row.labels,
        )
        for row in rows
    )


def _notes(artifact: Artifact, scale: Scale) -> Iterator[str]:
    yield from artifact.notes
    if scale == "real":
        yield (
            f"{REAL}: whoever packed this model had rounded its weights to Q4_1, 4 bits in groups of 32. Codes of "
            "that form, with a float offset a group, gain by it."
        )
    if absent := artifact.absent(scale):
        yield f"not at scale {scale}, which has no model for it: {', '.join(absent)}"
    for column in artifact.columns.values():
        if column.cited:
            yield f"{column.title}: the paper cites these numbers from {cite(column.cited)}, it did not measure them"
        if column.note:
            yield f"{column.title}: {column.note}"


def options(notes: Mapping[str, Sequence[str]]) -> list[str]:
    """Options that evaluators were given, by row where rows differ."""
    rows: dict[str, list[str]] = {}
    for row, options in notes.items():
        for name in dict.fromkeys(options):
            rows.setdefault(name, []).append(row)
    return [
        f"measured with {name}" + ("" if len(keys) == len(notes) else f": {', '.join(keys)}")
        for name, keys in rows.items()
        if name
    ]


def troubled(record: Record | None) -> str:
    """Examples that were cut or left out (evaluators/harness), as a note says it; empty where there are none."""
    facts = record.facts if record else {}
    kinds = {"cut": "cut", "unfit": "unfit and left out", "not_finite": "not finite and left out"}
    troubles = [
        f"{len(places)} {how} ({', '.join(map(str, places[:5]))}{', …' if len(places) > 5 else ''})"
        for name, how in kinds.items()
        if (places := facts.get(name))
    ]
    if not troubles:
        return ""
    return f"examples of {facts['protocol']} that were not scored whole, by their place: {', '.join(troubles)}"


def other_texts(record: Record | None) -> list[str]:
    """Texts whose rows are not the known ones (data/splits.py), as a note says it."""
    facts = record.facts if record else {}
    kinds = {"text_differs": "text", "calibration_text_differs": "text for calibration"}
    return [
        f"another {what} than the published one: {facts[name]}"
        for name, what in kinds.items()
        if name in facts
    ]


def tuned_badly(record: Record | None) -> str:
    """A tuning that diverged or improved nothing, as a note says it; empty where it did neither."""
    tuning = (record.facts if record else {}).get("tuning", {})
    blocks = [curve for curve in tuning.get("blocks", ()) if curve]  # empty of one left unquantized
    steps = [curve["kept_step"] for curve in (tuning, *blocks) if "kept_step" in curve]
    if tuning.get("diverged"):
        return f"a tuning that diverged, of which step {steps[0]} of {tuning['steps']} is kept"
    if diverged := sum(curve["diverged"] for curve in blocks):
        return f"a tuning that diverged in {diverged} of {len(blocks)} blocks, whose best states are kept"
    in_vain = steps and not any(steps)
    return "a tuning that improved nothing, so that it is as without" if in_vain else ""


def column_of(
    key: str, spec: ColumnSpec, measured_on: str, records: Sequence[Record | None]
) -> Column:
    """A column of a table; `measured_on` labels the text really evaluated, `records` are those of its cells."""
    metric = metric_of(registry.lookup("evaluator", spec.evaluator), spec.metric)
    return Column(
        key=key,
        title=spec.title,
        unit=spec.unit,
        protocol=_protocol_label(TextSpec(spec.text, "") if spec.text else None),
        measured_on=measured_on,
        published=spec.published,
        lower_is_better=spec.lower_is_better,
        proportion=metric is not None and metric.unit == "accuracy",
        cited=cite(spec.cited) if spec.cited else "",
        metric=spec.metric,
        machine=origins.machine(spec, records),
    )


def column_here(key: str, spec: ColumnSpec, rows: Sequence[PlannedRow]) -> Column:
    """A column of planned rows, whose first says which text it reads."""
    text = rows[0].cells[key].evaluation.text
    measured_on = _protocol_label(text)
    return column_of(key, spec, measured_on, [row.cells[key].record for row in rows])


def _protocol_label(text: TextSpec | None) -> str:
    """The protocol's name, that we inferred it where no paper or code states it, and how much of it is read."""
    if text is None:
        return ""
    rule = PROTOCOLS.get(text.protocol)  # None: a task of lm-eval
    name = f"{text.protocol} [inferred]" if rule and not rule.attested else text.protocol
    window = f", windows of {text.window}" if text.window else ""
    unit = "windows" if rule and rule.kind == "stream" else "examples"
    return f"{name}{window}{f', first {text.limit} {unit}' if text.limit else ''}"


def row_of(artifact: Artifact | None, row: PlannedRow, scale: Scale) -> PublishedRow:
    """A planned row as measured; of a sweep, `artifact` None, there is nothing to compare it with."""
    published, own_model = {}, True
    if artifact:
        published = artifact.numbers().get(row.key, {})
        # The papers' products are of GPU kernels.
        on_cpu = isinstance(row.spec, ProductRun) and row.spec.device == "cpu"
        own_model = scale == "paper" and not on_cpu and row.key in _public(artifact)
    cells = {
        key: _cell(key, spec, row.cells[key], row, published.get(key), own_model)
        for key, spec in row.columns.items()
    }
    records = [cell.record for cell in row.cells.values()]
    labels, device = origins.labels(row.labels, records), origins.device(records)
    return PublishedRow(row.key, labels, row.spec.name, not own_model, cells, device=device)


def _public(artifact: Artifact) -> set[str]:
    return {row.key for row in artifact.rows("paper") if row.public}


def with_prediction(cell: Cell, settings: Prediction | None, spec: ColumnSpec) -> Cell:
    """The cell with what is predicted for it, which is its verdict where it cannot be measured here."""
    if settings is None:
        return cell
    value, note = predicted(settings, spec.factor)
    if cell.verdict != "not run" or cell.note == NOT_YET:
        return dataclasses.replace(cell, predicted=value)
    return dataclasses.replace(
        cell, predicted=value, verdict=VERDICT, note=because(note, cell.note)
    )


def _cell(
    key: str,
    spec: ColumnSpec,
    cell: PlannedCell,
    row: PlannedRow,
    published: float | str | None,
    own_model: bool,
) -> Cell:
    if cell.missing:
        return Cell(key, published, None, "not run", cell.missing)
    if cell.record is None:
        return Cell(key, published, None, "not run", NOT_YET, cell.cell_id)
    if cell.record.status != "done":
        verdict = "OOM" if cell.record.status == "oom" else "failed"
        return Cell(key, published, None, verdict, cell.record.reason, cell.cell_id)
    if spec.metric not in cell.record.values:
        reason = cell.record.facts.get("not_measured", {}).get(spec.metric)
        reason = reason or f"its record has no {spec.metric}"
        return Cell(key, published, None, "not run", reason, cell.cell_id)
    value = cell.record.values[spec.metric] * spec.factor
    verdict, note = _verdict(spec, cell, row, value, published, own_model)
    fields = chance(cell.record, spec)
    return Cell(key, published, value, verdict, note, cell.cell_id, **fields)


def chance(record: Record, spec: ColumnSpec) -> dict[str, Any]:
    """The fields of a measured cell that say what its number rests on: n, sources, shares."""
    shares = {
        source: tuple(spec.factor * share for share in parts)
        for source, parts in noise.shares_of(record, spec.metric).items()
    }
    return {"n": record.n, "sources": (f"{record.cell_id} {spec.metric}",), "shares": shares}


def _verdict(
    spec: ColumnSpec,
    cell: PlannedCell,
    row: PlannedRow,
    value: float,
    published: float | str | None,
    own_model: bool,
) -> tuple[str, str]:
    if isinstance(row.spec, ModelRun) and row.spec.model.source == "synthetic":
        return "synthetic weights", row.spec.name
    if not isinstance(published, float | int):
        return "measured only", ""
    text = cell.evaluation.text
    if not own_model or (text and text.name != spec.text):
        return "stand-in", row.spec.name + (f" on {text.name}" if text else "")
    if spec.absolute:
        return "measured only", "the paper's is of another machine, so the two are not compared"
    return means.compared(spec, value, published), ""


def _claims(
    artifact: Artifact, rows: Sequence[PublishedRow], curve: Curve | None
) -> tuple[ClaimResult, ...]:
    """Judge every claim; one of rows that this run or its scale leaves out is undecidable, not unknown.

    A claim on a GPU is judged on rows that were measured on one, or not at all.
    """
    blank = {row.key: dict.fromkeys(artifact.columns) for row in artifact.rows("paper")}
    published = {
        row.key: {key: _number(cell.published) for key, cell in row.cells.items()} for row in rows
    }
    judged = []
    for claim in artifact.claims:
        fit = [row for row in rows if not (claim.device == "gpu" and row.device == "cpu")]
        measured = {row.key: {key: c.number for key, c in row.cells.items()} for row in fit}
        result = judge(claim, blank | published, blank | measured, curve)
        on_cpu_alone = len(fit) < len(rows) and not any(row.device for row in fit)
        reason = "GPU claim on a CPU" if on_cpu_alone else ""
        judged.append(dataclasses.replace(result, not_judged=reason))
    return tuple(judged)


def _number(value: float | str | None) -> float | None:
    return float(value) if isinstance(value, float | int) else None


# ---- a sweep of one's own: beside full precision, quality over stored size with its front ----


def tabulate_sweep(
    name: str, rows: Sequence[PlannedRow], scale: Scale, command: str
) -> ResultTable:
    """The table of a sweep, whose rows in full precision are among the others; `command` is the one that was typed."""
    columns = tuple(column_here(key, spec, rows) for key, spec in rows[0].columns.items())
    by_key = {row.key: row_of(None, row, scale) for row in rows}
    columns_beside = _of_quality(rows[0].columns)
    table_rows = tuple(
        _beside(by_key[row.key], by_key.get(row.baseline), columns_beside) for row in rows
    )
    curve, records = _size_against_quality(rows), records_of(rows)
    if curve:
        table_rows = _with_fronts(table_rows, curve)
    return ResultTable(
        artifact=f"sweep/{name}",
        title=f"Sweep {name}",
        citation="",
        source="no paper: a sweep of your own",
        scale=scale,
        command=command,
        columns=columns,
        rows=table_rows,
        claims=(),
        notes=tuple(options(notes_of(rows))),
        origins=origins.lines(records),
        provenance=origins.facts(records),
        curve=curve,
    )


def _beside(
    row: PublishedRow, baseline: PublishedRow | None, columns: Sequence[str]
) -> PublishedRow:
    """The row with the full-precision numbers of its model in some columns."""
    if baseline is None or baseline.key == row.key:
        return row
    differences = {key: _difference(row.cells[key], baseline.cells[key]) for key in columns}
    return dataclasses.replace(row, cells={**row.cells, **differences})


def _difference(cell: Cell, baseline: Cell) -> Cell:
    same = cell.cell_id is not None and cell.cell_id == baseline.cell_id
    if cell.number is None or baseline.number is None or same:
        return cell
    difference = cell.number - baseline.number
    return dataclasses.replace(cell, baseline=baseline.measured, difference=difference)


def _size_against_quality(rows: Sequence[PlannedRow]) -> Curve | None:
    """The first quality over the stored size, a front a model; None where the sweep has not both."""
    columns = rows[0].columns
    quality = next((key for key, spec in columns.items() if spec.text), None)
    if quality is None or SIZE not in columns:
        return None
    larger = (not columns[SIZE].lower_is_better, not columns[quality].lower_is_better)
    several = len({row.spec.name for row in rows}) > 1
    # What differs beside the widths.
    axes = [axis for axis in rows[0].labels if axis not in ("Model", "q", "g")]
    series = ("Model", *axes) if several else tuple(axes)
    return Curve(x=SIZE, y=quality, series=series, larger=larger, per=1, baseline="*/none/*")
