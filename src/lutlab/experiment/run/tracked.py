"""Tables and their records -> runs of Weights & Biases: one a row, one a table. Pure data; tracking.py writes them.

    summary   topics/ppl                     every number of a record, under the text that was really read; a part of a
              topics-first64/ppl             text bears another name, and what reads no text stands under its evaluator:
              model_size/bits_per_weight     the same keys in papers' tables and in sweeps
              topics/ppl/wiki2/published     a column's numbers in its own unit: measured, published, delta, verdict, …
    config    method.offset, data.limit, …   every axis of the row by its name on the command line; machine, commit

    charts    layer/weight_relative_mse, layer/bits_per_weight     by linear layer, in forward order, from 0
              window/<text>/ppl                                    perplexity of the first so many windows
              round/<evaluator>_s                                  seconds of each round of a timing, from 1
              tuning_step/held_out_loss, tuning_step/loss          of a tuning's end-to-end steps; a mean of some
              tuning_block_step/<index>/held_out_error             where its blocks were tuned

A chart is numbers of one record over a step of their own, the part of its name before the first stroke.

A row's id is the hash of what it is (table, row, axes, machine), not of what was measured: measured again, it is the
same run. Rows of which nothing is measured are in the table only.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lutlab.base import registry
from lutlab.base.specs import EvalSpec, ProductRun
from lutlab.evaluators import exp_of_mean
from lutlab.experiment.artifact.artifact import CLAIM_KINDS
from lutlab.experiment.artifact.catalog import artifacts
from lutlab.experiment.artifact.outcome import ClaimResult, ResultTable
from lutlab.experiment.records.frame import Shelf, rows_of
from lutlab.experiment.report import csv
from lutlab.experiment.row.spelling import axes, evaluation_from, run_from
from lutlab.experiment.store.provenance import machine_name
from lutlab.experiment.store.record import Record, content_id

Points = Sequence[tuple[float, float]]  # (step, value)
LONGEST = 128  # points of a chart of windows: a log call is 0.7 ms, and a text may have thousands
# Axes that differ from column to column; the metrics' keys name them.
OF_A_CELL = {"evaluator", "text"}
OF_A_COLUMN = (
    "measured", "published", "delta", "baseline", "difference", "difference_error", "error", "n", "unit", "verdict",
    "cell_id", "reason", "command",
)  # fmt: skip


@dataclass(frozen=True)
class TrackedRun:
    """One run as Weights & Biases shows it.

    Attributes:
        id: id in letters, digits, `.`, `_` and `-`: a name and a hash.
        kind: `row` or `table`.
        config: flat mapping of settings.
        summary: flat mapping of measured values.
        charts: name -> points.
        tables: name -> rows, all with the same keys.
        figure: a PNG; empty: none.
        records: records of its numbers.
    """

    id: str
    name: str
    group: str
    kind: str
    tags: tuple[str, ...]
    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    charts: Mapping[str, Points] = field(default_factory=dict)
    tables: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    figure: bytes = b""
    records: tuple[Record, ...] = ()


def runs_reported(
    table: ResultTable, folder: Path, records: Mapping[str, Record], project: str
) -> Iterator[TrackedRun]:
    """The runs of a table that was just reported into `folder`: rows measured now and before; records: by cell id."""
    cells = tuple({"variant": folder.name} | cell for cell in csv.parse(csv.render(table)))
    figure = (folder / "figure.png").read_bytes()
    yield from runs_of(Shelf(folder, "", cells, records), project, table, figure)


def runs_of(
    shelf: Shelf, project: str, table: ResultTable | None, figure: bytes
) -> Iterator[TrackedRun]:
    """The runs of one table: its rows of which something is measured, then the table.

    Args:
        shelf: the cells of one variant of one artifact, and their records.
        project: project of Weights & Biases; a row is another run in another project.
        table: the same with its claims; None: a sweep read from its files, which has none.
        figure: PNG; empty: none.
    """
    cells = [dict(row) for row in rows_of(shelf)]
    records = [shelf.records[c["cell_id"]] for c in cells if c["cell_id"] in shelf.records]
    if not records:
        return
    by_row: dict[str, list[dict[str, Any]]] = {}
    for cell in cells:
        if cell["cell_id"] in shelf.records:
            by_row.setdefault(cell["row"], []).append(cell)
    yield from (_row(some, shelf.records, project) for some in by_row.values())
    yield _table(shelf, cells, records, project, table, figure)


# ---- a row ----


def _row(
    cells: Sequence[Mapping[str, Any]], records: Mapping[str, Record], project: str
) -> TrackedRun:
    measured = {cell["cell_id"]: records[cell["cell_id"]] for cell in cells}
    config = _of_table(cells[0]) | {"row": cells[0]["row"], "labels": cells[0]["labels"]}
    config |= axes_of(measured.values()) | _origin(measured.values())
    run = run_from(next(iter(measured.values())).run)
    config["of"] = "product" if isinstance(run, ProductRun) else "model"
    place = (config[key] for key in ("artifact", "variant", "row", "machine"))
    threads = _threads(measured.values()) if _timed(measured.values()) else None
    digest = content_id([project, *place, axes(run), threads])[:8]
    summary: dict[str, Any] = {"seconds": sum(record.seconds for record in measured.values())}
    charts: dict[str, Points] = {}
    for record in measured.values():
        text = _place(evaluation_from(record.evaluation))
        summary |= {f"{text}/{metric}": value for metric, value in record.values.items()}
        charts |= histories(record, text)
    for cell in cells:
        text = _place(evaluation_from(measured[cell["cell_id"]].evaluation))
        key = f"{text}/{cell['metric']}/{cell['column']}"
        column = {name: cell.get(name) for name in OF_A_COLUMN}
        summary |= {f"{key}/{name}": v for name, v in column.items() if v not in (None, "")}
    artifact, variant, row = (config[key] for key in ("artifact", "variant", "row"))
    return TrackedRun(
        id=f"{_word(f'{_leaf(artifact)}-{row}')}-{digest}",
        name=f"{artifact}/{row}{_other(artifact, variant)} #{digest}",
        group=f"{artifact}{_other(artifact, variant)}",
        kind="row",
        tags=_tags(config, [key.partition("/")[0] for key in summary if key.count("/") == 1]),
        config={"kind": "row"} | config,
        summary=summary,
        charts=charts,
    )


def axes_of(records: Iterable[Record]) -> dict[str, Any]:
    """The axes that the cells of a row share, by their names on the command line."""
    shared: dict[str, Any] = {}
    for record in records:
        shared |= axes(run_from(record.run), evaluation_from(record.evaluation))
    return {name: value for name, value in shared.items() if name not in OF_A_CELL}


def _place(evaluation: EvalSpec) -> str:
    text = evaluation.text
    if text is None:
        return evaluation.evaluator
    window = f"-window{text.window}" if text.window else ""
    return f"{text.protocol}{window}{f'-first{text.limit}' if text.limit else ''}"


# ---- the charts of a record ----


def histories(record: Record, key: str) -> dict[str, Points]:
    """The charts that a record's samples and facts hold.

    Args:
        record: a measured cell.
        key: text or evaluator that its metrics stand under.
    """
    return dict(_charts(record, key))


def _charts(record: Record, key: str) -> Iterator[tuple[str, Points]]:
    evaluator = registry.classes("evaluator").get(record.evaluation["evaluator"])
    samples, facts = record.samples, record.facts
    if evaluator and len(samples) == len(facts.get("layers", ())) > 0:
        yield f"layer/{evaluator.metrics[0].name}", list(enumerate(samples))
    elif evaluator and evaluator.of_this_machine and samples:
        yield f"round/{record.evaluation['evaluator']}_s", list(enumerate(samples, 1))
    elif "ppl" in record.values and len(samples) == facts.get("windows"):
        yield f"window/{key}/ppl", _thin(running_perplexity(samples, facts["seqlen"]))
    if bits := facts.get("bits_by_layer"):
        yield "layer/bits_per_weight", list(enumerate(bits))
    tuning = facts.get("tuning", {})
    for name, chart in (("held_out", "held_out_loss"), ("losses", "loss")):
        if points := tuning.get(name):
            yield f"tuning_step/{chart}", [(step, loss) for step, loss in points]
    for index, curve in enumerate(tuning.get("blocks", ())):
        if curve:
            points = [(step, loss) for step, loss in curve["held_out"]]
            yield f"tuning_block_step/{index}/held_out_error", points


def running_perplexity(nll: Sequence[float], seqlen: int) -> list[tuple[int, float]]:
    """(n, perplexity of the first n windows) of losses in nats, windows of `seqlen` tokens; the last is the text's."""
    sums = itertools.accumulate(nll)
    return [(n, exp_of_mean(total / (n * seqlen))) for n, total in enumerate(sums, 1)]


def _thin(points: Points) -> Points:
    """Evenly spaced points, LONGEST at most; the last one stays."""
    if len(points) <= LONGEST:
        return points
    return [points[len(points) * i // LONGEST - 1] for i in range(1, LONGEST + 1)]


# ---- a table ----


def _table(
    shelf: Shelf,
    cells: Sequence[Mapping[str, Any]],
    records: Sequence[Record],
    project: str,
    table: ResultTable | None,
    figure: bytes,
) -> TrackedRun:
    config = {"kind": "table"} | _of_table(cells[0]) | _origin(records)
    artifact, variant = config["artifact"], config["variant"]
    if table and artifact in artifacts():
        config |= {name: getattr(table, name) for name in ("title", "source")}
    claims = table.claims if table else ()
    digest = content_id([project, artifact, variant, config["machine"]])[:8]
    # `published` may be a word, and a column of a W&B table has one type: it stays as the paper prints it
    numbers = [{name: cell.get(name) for name in ("measured", "delta", "error")} for cell in cells]
    summary = {
        "cells": len(cells),
        "cells/measured": sum(cell["measured"] is not None for cell in cells),
        "seconds": sum(record.seconds for record in {r.cell_id: r for r in records}.values()),
    }
    for kind in CLAIM_KINDS:
        alike = [claim for claim in claims if claim.kind == kind]
        summary[f"claims/{kind}/hold"] = sum(claim.measured[0] for claim in alike)
        summary[f"claims/{kind}/decidable"] = sum(claim.measured[1] for claim in alike)
        summary[f"claims/{kind}/below_noise"] = sum(len(claim.below_noise) for claim in alike)
    return TrackedRun(
        id=f"{_word(f'{_leaf(artifact)}{_other(artifact, variant)}')}-{digest}",
        name=f"{artifact}{_other(artifact, variant)} #{digest}",
        group=f"{artifact}{_other(artifact, variant)}",
        kind="table",
        tags=_tags(config, ()),
        config=config,
        summary=summary,
        tables={
            "table": [dict(a) | b for a, b in zip(shelf.cells, numbers, strict=True)],
            "claims": [_claim(claim) for claim in claims],
        },
        figure=figure,
        records=tuple({record.cell_id: record for record in records}.values()),
    )


def _claim(claim: ClaimResult) -> dict[str, Any]:
    return {
        "claim": claim.text,
        "where": claim.where,
        "kind": claim.kind,
        "published": "{} of {}".format(*claim.published),
        "measured": "{} of {}".format(*claim.measured),
        "below_noise": len(claim.below_noise),
        "failing": ", ".join(claim.failing),
    }


# ---- what both say of themselves ----


def _of_table(cell: Mapping[str, Any]) -> dict[str, Any]:
    """`artifact` is the long name; the scale of an artifact's variant begins its name."""
    name = f"{cell['paper']}/{cell['artifact']}".rstrip("/")
    scale = {"scale": cell["variant"].partition("-")[0]} if name in artifacts() else {}
    return {"paper": cell["paper"], "artifact": name, "variant": cell["variant"]} | scale


def _origin(records: Iterable[Record]) -> dict[str, Any]:
    """Machine and code of some records; several values of one fact are all named."""
    known = [record.provenance for record in records]
    origin = {"machine": _joined(machine_name(about) for about in known)}
    origin |= {
        key: _joined(about.get(key) for about in known) for key in ("cpu", "isa", "cores", "gpu")
    }
    origin["commit"] = _joined(about["git_commit"] for about in known)
    origin["dirty"] = _joined(about["git_dirty"] for about in known)
    origin["threads"] = _threads(records)
    origin["measured_at"] = max(about.get("measured_at", "") for about in known)
    return {key: value for key, value in origin.items() if value not in (None, "")}


def _joined(values: Iterable[Any]) -> Any:
    distinct = list(dict.fromkeys(values))
    return distinct[0] if len(distinct) == 1 else ", ".join(sorted(map(str, distinct)))


def _threads(records: Iterable[Record]) -> Any:
    """Number of threads of the speeds, where there are some; of other numbers it decides last bits at most."""
    records = list(records)
    return _joined(r.provenance["threads"] for r in [r for r in records if _timed([r])] or records)


def _timed(records: Iterable[Record]) -> bool:
    known = registry.classes("evaluator")
    names = {record.evaluation["evaluator"] for record in records} & known.keys()
    return any(known[name].of_this_machine for name in names)


def _other(artifact: str, variant: str) -> str:
    """The variant after a blank; empty for a sweep, whose variant is its name."""
    return "" if variant == _leaf(artifact) else f" {variant}"


def _leaf(artifact: str) -> str:
    return artifact.rpartition("/")[2]


def _word(text: str) -> str:
    """The beginning of an id: what a list of run folders shows of it."""
    return re.sub(r"[^\w.]+", "-", text, flags=re.ASCII).strip("-")[:64]


def _tags(config: Mapping[str, Any], texts: Iterable[str]) -> tuple[str, ...]:
    """Distinct, in order; W&B takes tags of 1 to 64 characters."""
    names = [config.get(key) for key in ("paper", "artifact", "scale", "machine")]
    return tuple(dict.fromkeys(str(tag)[:64] for tag in [*names, *texts] if tag))
