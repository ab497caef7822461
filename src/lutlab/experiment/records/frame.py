"""`lutlab.results`: all that was measured under some folders, one row a cell, as a pandas DataFrame.

    results/<paper>/<artifact>/<variant>/table.csv                      which cell stands where, with its verdict
    results/sweeps/<name>/table.csv                                     the same of a sweep of one's own
    results/records/<cell>.json                                         its number, and all that is known of it
    results/published/<machine>/<paper>/<artifact>/{table.csv, records.jsonl}     the same, published

A cell that stands in several tables has a row for each. A record that stands in no table has a row for each of its
metrics. Pages and copies (results/rendered, results/publishing, results/wandb) are not read twice.

Each table is compared with the SHA256SUMS that were written with it. A published table that differs is refused; a
report of a run of one's own is named and left out, since any run of its command writes it again.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lutlab.base import arguments, registry
from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import SUMS, check_file, check_sums, has_sums
from lutlab.base.lazy import pandas
from lutlab.base.specs import RunSpec
from lutlab.evaluators.contract import metric_of
from lutlab.experiment.artifact.artifact import Artifact, load_artifact
from lutlab.experiment.artifact.catalog import artifacts, cite, program
from lutlab.experiment.artifact.rows import Scale, scale_of
from lutlab.experiment.report import csv
from lutlab.experiment.report.layout import COMPARABLE
from lutlab.experiment.report.published import CURE, TABLE, Published
from lutlab.experiment.row.spelling import (
    axes,
    evaluation_from,
    overrides_of,
    run_from,
    shell,
    to_json,
)
from lutlab.experiment.store.noise import error_of
from lutlab.experiment.store.record import LINES, Record, canonical, read_lines
from lutlab.experiment.store.store import Store

log = logging.getLogger(__name__)

# Columns that every frame has, in this order; the axes follow, sorted.
COLUMNS = (
    "paper", "artifact", "variant", "row", "labels", "column", "title", "metric", "unit", "lower_is_better",
    "text", "paper_text", "measured_on", "published", "measured", "predicted", "delta", "baseline", "difference",
    "difference_error", "error", "n", "stored_bits", "verdict", "note", "stand_in", "on_front", "cell_id",
    "status", "reason", "command", "citation", "source", "machine", "cpu", "isa", "cores", "threads", "gpu", "commit",
    "dirty", "measured_at", "seconds", "versions", "folder",
)  # fmt: skip
_NUMBERS = ("published", "measured", "baseline", "error", "difference_error", "predicted")
# Folders of a results folder that repeat what stands elsewhere.
COPIES = ("rendered", "publishing", "wandb")
PUBLISHED = "published"  # folder below results of what the authors measured
# Fields of every table.
_FIELDS = {"artifact", "row", "column", "metric", "verdict", "protocol", "cell_id"}
_FLAGS = ("stand_in", "on_front", "lower_is_better")


@dataclass(frozen=True)
class Shelf:
    """The cells and the records of one results folder, or of one machine's published artifacts.

    Attributes:
        folder: its path.
        machine: the name of a published machine's folder; empty of a working store.
        cells: rows of its tables, by the names of their headers, with their variant.
        records: cell id -> record; of a cell that several published artifacts hold, that of one of them.
        published: artifact -> cell id -> record, as it was published with that artifact: two may have measured the
            same cell at different commits.
    """

    folder: Path
    machine: str
    cells: tuple[Mapping[str, str], ...]
    records: Mapping[str, Record]
    published: Mapping[str, Mapping[str, Record]] = field(default_factory=dict)

    def records_of(self, artifact: str) -> Mapping[str, Record]:
        """Cell id -> record of one artifact's tables."""
        return self.published.get(artifact, self.records)


def results(
    *folders: str | Path, samples: bool = False, published: bool = False
) -> pandas.DataFrame:
    """Measured values: a row for each cell of a table, and for each metric of a record that stands in no table.

    Args:
        folders: results folders (`results=` of a run), published ones, or folders that hold some of them. None:
            `results`.
        samples: add the column `samples`, a tuple for each cell: the loss of each window, the rounds of a timing.
        published: add what others published: the artifacts in `published` below a results folder.

    Returns:
        COLUMNS, then every axis of the rows by its name on the command line (`q`, `method.offset`,
        `calibration.samples`, …), empty where a row does not have it. `delta` is measured / published - 1, only
        where the two can be compared; `predicted` is of the paper's model on the paper's GPUs, never measured, and
        empty of one that does not fit, as its note says; `difference` is measured - baseline, the full-precision row
        of the same model, `difference_error` its standard error over the same samples;
        `command` measures the one cell again; `source` is the place in the paper. `text` is the one that was read,
        `paper_text` the one that the published number is of; `stored_bits`, of a weight, are those of the cell's run,
        whichever of its records has them.

    Raises:
        LutlabError: no such folder, nothing measured in it, or a damaged record.
    """
    arguments.instance("samples", samples, bool, "true or false")
    arguments.instance("published", published, bool, "true or false")
    rows = [
        row for shelf in shelves(*folders, published=published) for row in rows_of(shelf, samples)
    ]
    if not rows:
        raise nothing_in(folders)
    axes = sorted({name for row in rows for name in row} - {*COLUMNS, "samples"})
    return pandas.DataFrame(rows, columns=[*COLUMNS, *(["samples"] if samples else []), *axes])


def nothing_in(folders: Sequence[str | Path]) -> LutlabError:
    """Error of folders without a number; it names those that are published, where there are some."""
    paths = [Path(folder) for folder in folders or ("results",)]
    others = next((path / PUBLISHED for path in paths if (path / PUBLISHED).is_dir()), None)
    cure = (
        f"; {others} has the authors' numbers (published=True, `lutlab results list --published`)"
    )
    return LutlabError(
        f"nothing measured in {', '.join(map(str, paths))}: run a table or a sweep first, as "
        f"`{program()} +exp=table4`, or name the results= folder of one{cure if others else ''}"
    )


def shelves(*folders: str | Path, published: bool = False) -> list[Shelf]:
    """The results folders and the published machines below some folders, sorted; none: below `results`.

    What lies in `published` below a folder is left out, unless told: it is others' work. A folder of published
    artifacts that is named itself is read.

    Raises:
        LutlabError: no such folder, or a damaged record.
    """
    by_root: dict[Path, Shelf] = {}
    for folder in [arguments.path("a results folder", name) for name in folders or ("results",)]:
        if not folder.is_dir():
            raise LutlabError(
                f"no folder {folder}: name a results= folder, or one of published artifacts"
            )
        below = [
            path
            for path in sorted(folder.rglob("*"))
            if is_original(path.relative_to(folder))
            and (published or path.relative_to(folder).parts[0] != PUBLISHED)
        ]
        machines = {path.parents[2] for path in below if path.name == LINES}
        working = {path.parent for path in below if path.is_dir() and path.name == "records"}
        by_root |= {root: _shelf(root, root.name) for root in sorted(machines)}
        by_root |= {root: _shelf(root, "") for root in sorted(working)}
    return [by_root[root] for root in sorted(by_root)]


def _shelf(root: Path, machine: str) -> Shelf:
    store = Store(root)
    cells = tuple(cells_of(root, bool(machine)))
    published = {
        path.parent.relative_to(root).as_posix(): read_lines(path) for path in store.published
    }
    return Shelf(root, machine, cells, store.all(), published)


def is_original(path: Path) -> bool:
    """Whether a path from a results folder leads to no copy."""
    return not set(path.parts) & set(COPIES)


def cells_of(root: Path, published: bool) -> Iterator[dict[str, str]]:
    """The rows of every table.csv of a results folder, or a published machine's, by its header, with their variant.

    Raises:
        LutlabError: files of a machine are not those of its SHA256SUMS, or a published table cannot be read.
    """
    if published and has_sums(root):
        check_sums(root, CURE)
    unsealed = []
    for table in sorted(root.rglob(TABLE)):
        has_records = (table.parent / LINES).exists()
        if not is_original(table.relative_to(root)) or has_records != published:
            continue
        if not has_sums(root if published else table.parent):
            unsealed.append(table)
        try:
            yield from _parsed(table, CURE) if published else _own_cells(table)
        except LutlabError as error:
            if published:
                raise
            log.warning("%s", error)
    if unsealed:
        log.warning(
            "%d tables under %s have no %s and are taken as they are, %s first: reports of earlier versions",
            len(unsealed),
            root,
            SUMS,
            unsealed[0],
        )


def _own_cells(table: Path) -> list[dict[str, str]]:
    cure = "it is left out; the run with mode=report writes it again"
    if has_sums(table.parent):
        check_file(table.parent, table.name, cure)
    return _parsed(table, cure)


def _parsed(table: Path, cure: str) -> list[dict[str, str]]:
    try:
        cells = csv.parse(table.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise LutlabError(f"{table} cannot be read ({error}): {cure}") from error
    if any(not cell.keys() >= _FIELDS or None in cell.values() for cell in cells):
        raise LutlabError(f"{table} is not a table of lutlab's, or damaged: {cure}")
    return [{"variant": table.parent.name} | cell for cell in cells]  # a published one says it


def rows_of(shelf: Shelf, samples: bool = False) -> Iterator[dict[str, Any]]:
    """The rows of `results`, of one shelf: cells of its tables first, then what stands in no table."""
    placed = set()
    bits = _stored_bits(shelf)
    for cell in shelf.cells:
        record = shelf.records_of(cell["artifact"]).get(cell["cell_id"])
        placed.add(cell["cell_id"])
        yield _of_cell(cell) | _of_record(record, samples, bits) | _of_shelf(shelf)
    for record in shelf.records.values():
        if record.cell_id in placed:
            continue
        evaluator = record.evaluation["evaluator"]
        known = _of_record(record, samples, bits) | _of_shelf(shelf)
        for metric in record.values or ("",):
            row: dict[str, Any] = {
                "column": evaluator,
                "metric": metric,
                "measured": record.values.get(metric),
                "error": error_of(record, metric),
                "verdict": "in no table",
            }
            yield row | _declared(evaluator, metric) | known


def _stored_bits(shelf: Shelf) -> dict[str, float]:
    """Run, spelled -> stored bits a weight, of whichever of its records counts them."""
    return {
        _spelled(run_from(record.run)): record.values["bits_per_weight"]
        for record in shelf.records.values()
        if "bits_per_weight" in record.values
    }


def _spelled(run: RunSpec) -> str:
    """A run in today's spelling, which an older record may not have."""
    return canonical(to_json(run))


def _of_shelf(shelf: Shelf) -> dict[str, Any]:
    return {"folder": str(shelf.folder), "machine": shelf.machine}


def _of_cell(cell: Mapping[str, str]) -> dict[str, Any]:
    """A row of table.csv with its types, and what its artifact says of it."""
    row: dict[str, Any] = {key: value for key, value in cell.items() if key in COLUMNS}
    row |= {key: _number(cell.get(key, "")) for key in _NUMBERS}
    row |= {key: cell[key] == "True" for key in _FLAGS if key in cell}
    published, measured, baseline = (row[key] for key in _NUMBERS[:3])
    if cell["verdict"] in COMPARABLE and published:
        row["delta"] = measured / published - 1
    if measured is not None and baseline is not None:
        row["difference"] = measured - baseline
    row["text"] = row["paper_text"] = cell["protocol"]
    row["paper"], _, row["artifact"] = cell["artifact"].partition("/")
    if artifact := _artifact(cell["artifact"]):
        row |= {"citation": cite(artifact.citation), "source": artifact.source}
        row |= _of_column(artifact, cell["variant"], cell["row"], cell["column"])
    return row


def _of_column(artifact: Artifact, variant: str, row: str, column: str) -> dict[str, Any]:
    """A column of an artifact, whose metric may be another in one row."""
    spec = artifact.columns.get(column)
    if spec is None:
        return {}
    metric = _metrics(artifact.name, scale_of(variant)).get(row, {}).get(column, spec.metric)
    return {"title": spec.title, "metric": metric, "lower_is_better": spec.lower_is_better}


@functools.cache
def _metrics(name: str, scale: Scale) -> dict[str, Mapping[str, str]]:
    artifact = _artifact(name)
    return {row.key: row.metrics for row in artifact.rows(scale)} if artifact else {}


def _number(text: str) -> float | None:
    """A field of table.csv: a published word (OOM) is no number."""
    try:
        return float(text)
    except ValueError:
        return None


@functools.cache
def _artifact(name: str) -> Artifact | None:
    """The artifact, where this lutlab has it: a user's own may lie in another folder of experiments."""
    return load_artifact(name) if name in artifacts() else None


def _declared(evaluator: str, metric: str) -> dict[str, Any]:
    if evaluator not in registry.classes("evaluator"):
        return {}
    declared = metric_of(registry.lookup("evaluator", evaluator), metric)
    return {"unit": declared.unit, "lower_is_better": declared.lower_is_better} if declared else {}


def _of_record(record: Record | None, samples: bool, bits: Mapping[str, float]) -> dict[str, Any]:
    if record is None:
        return {}
    known = record.provenance
    run, evaluation = run_from(record.run), evaluation_from(record.evaluation)
    versions = ", ".join(f"{name} {version}" for name, version in known["versions"].items())
    row = {
        "command": shell(overrides_of(run, evaluation, known["threads"])),
        "cell_id": record.cell_id,
        "status": record.status,
        "reason": record.reason,
        "n": record.n,
        "stored_bits": bits.get(_spelled(run)),
        "seconds": record.seconds,
        "commit": known["git_commit"],
        "dirty": known["git_dirty"],
        "versions": versions,
        **{key: known.get(key) for key in ("cpu", "isa", "cores", "threads", "gpu", "measured_at")},
    }
    return axes(run, evaluation) | row | ({"samples": record.samples} if samples else {})


def claims(*folders: str | Path) -> pandas.DataFrame:
    """The papers' claims, one row a claim of a table, judged on the paper's numbers and on those measured.

    Args:
        folders: results folders or published ones, as lutlab.results takes them.

    Returns:
        paper, artifact, variant, machine, text, where (its place in the paper), kind (sentence of the paper, reading of
        its table, ours: never counted together), and counts of instances: published_hold of published_decidable in the
        paper's own numbers, hold of decidable in those measured; failing names the instances that do not hold,
        below_noise counts those that the measured numbers do not decide. Tables of artifacts that this lutlab does not
        have are left out.

    Raises:
        LutlabError: no such folder, nothing measured in it, or a damaged record; a table is not of the artifact as it
            is today.
    """
    return pandas.DataFrame([row for shelf in shelves(*folders) for row in _claims(shelf)])


def _claims(shelf: Shelf) -> Iterator[dict[str, Any]]:
    by_artifact: dict[str, dict[str, list[Mapping[str, str]]]] = {}
    for cell in shelf.cells:
        by_artifact.setdefault(cell["artifact"], {}).setdefault(cell["variant"], []).append(cell)
    for name, variants in by_artifact.items():
        if _artifact(name) is None:
            continue
        for variant, table in Published(name, variants, shelf.records_of(name)).tables({}).items():
            paper, _, artifact = name.partition("/")
            for claim in table.claims:
                yield {
                    "paper": paper,
                    "artifact": artifact,
                    "variant": variant,
                    "machine": shelf.machine,
                    "text": claim.text,
                    "where": claim.where,
                    "kind": claim.kind,
                    "published_hold": claim.published[0],
                    "published_decidable": claim.published[1],
                    "hold": claim.measured[0],
                    "decidable": claim.measured[1],
                    "below_noise": len(claim.below_noise),
                    "failing": ", ".join(claim.failing),
                }
