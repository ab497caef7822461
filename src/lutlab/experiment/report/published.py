"""A published artifact: all its variants of one machine in three files, the first two of which make everything else.

    <machine>/<paper>/<artifact>/records.jsonl    the numbers, a record a line (store/record.py)
                                 table.csv        which record stands in which cell of which variant, with its verdict
                                 table.md         the page

A variant is the artifact on other texts, models or options; its name begins with its scale (row/sweeping.variant).
<machine>/SHA256SUMS names them all, and benchmarks: `table.csv` and `records.jsonl` are compared with it when they
are read. A page or a picture needs neither the models nor the texts, nor that this code would give the cells the same
ids.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import check_file, has_sums, write_atomically, write_sums
from lutlab.base.specs import EvalSpec
from lutlab.experiment.artifact.artifact import Artifact, load_artifact
from lutlab.experiment.artifact.columns import ColumnSpec
from lutlab.experiment.artifact.outcome import Cell, PublishedRow, ResultTable
from lutlab.experiment.artifact.predicted import VERDICT, reason_of
from lutlab.experiment.artifact.rows import ArtifactRow, scale_of
from lutlab.experiment.report import compare, csv, markdown, means, origins
from lutlab.experiment.report.layout import lay_out
from lutlab.experiment.store.record import LINES, Record, read_lines, write_lines

TABLE, PAGE = "table.csv", "table.md"
CURE = "a published artifact is as git has it; restore it with git, or publish it again"


@dataclass(frozen=True)
class Published:
    """An artifact as it is published.

    Attributes:
        artifact: its long name.
        cells: variant -> the rows of table.csv by the names of its header, without the variant.
        records: cell id -> record, of all variants.
    """

    artifact: str
    cells: Mapping[str, Sequence[Mapping[str, str]]]
    records: Mapping[str, Record]

    def tables(self, commands: Mapping[str, str]) -> dict[str, ResultTable]:
        """Variant -> its table, numbers from the records.

        Args:
            commands: variant -> the command that measures it, where that is not the artifact's plain one.

        Raises:
            LutlabError: the cells are not of the artifact as it is today, or not those of the records.
        """
        artifact = load_artifact(self.artifact)
        tables = {}
        for variant, cells in self.cells.items():
            table = _table(artifact, variant, cells, self.records)
            command = commands.get(variant, table.command)
            tables[variant] = dataclasses.replace(table, command=command)
        return tables

    def records_of(self, variants: Iterable[str]) -> list[Record]:
        """The records that stand in a cell of these variants, in the order of their ids."""
        used = {cell["cell_id"] for variant in variants for cell in self.cells[variant]}
        return [record for cell, record in sorted(self.records.items()) if cell in used]


def read(folder: Path) -> Published:
    """The artifact published in `<paper>/<artifact>` of a machine's folder.

    Raises:
        LutlabError: one of its files is not there, is not that of the machine's SHA256SUMS, or a record is damaged.
    """
    machine = folder.parents[1]
    if has_sums(machine):
        for name in (TABLE, LINES):
            check_file(machine, (folder / name).relative_to(machine).as_posix(), CURE)
    try:
        table = (folder / TABLE).read_text(encoding="utf-8")
        records = read_lines(folder / LINES)
    except FileNotFoundError as error:
        raise LutlabError(
            f"{error.filename} is not there: a published artifact is {LINES} and {TABLE}; restore it with git"
        ) from error
    return parse("/".join(folder.parts[-2:]), table, records)


def parse(artifact: str, table: str, records: Mapping[str, Record]) -> Published:
    """A published artifact from the text of its table.csv."""
    cells: dict[str, list[dict[str, str]]] = collections.defaultdict(list)
    for cell in csv.parse(table):
        cells[cell["variant"]].append({k: v for k, v in cell.items() if k != "variant"})
    return Published(artifact, dict(cells), records)


def write(published: Published, folder: Path, commands: Mapping[str, str]) -> list[Path]:
    """Write the three files into `folder`, records last; raises LutlabError as `tables`, before anything is written."""
    tables = published.tables(commands)
    records = published.records_of(tables)
    layouts = {variant: lay_out(table) for variant, table in tables.items()}
    page = markdown.render_variants(layouts, origins.lines(records), origins.facts(records))
    return [
        write_atomically(folder / PAGE, page.encode()),
        write_atomically(folder / TABLE, csv.render_variants(tables).encode()),
        write_lines(folder / LINES, records),
    ]


def seal(machine: Path) -> Path:
    """Write SHA256SUMS over the files of all artifacts in a machine's folder, and its benchmarks."""
    names = (PAGE, TABLE, LINES)
    artifacts = [p for p in machine.glob("*/*/*") if p.name in names]
    return write_sums(machine, [*artifacts, *machine.glob("benchmarks/*.json")])


def _table(
    artifact: Artifact,
    variant: str,
    cells: Sequence[Mapping[str, str]],
    records: Mapping[str, Record],
) -> ResultTable:
    scale = scale_of(variant)
    known = {row.key: row for row in artifact.rows(scale)}
    by_row = {key: list(row) for key, row in itertools.groupby(cells, lambda cell: cell["row"])}
    gone = [cell for cell in cells if cell["row"] not in known]
    gone += [cell for cell in cells if cell["column"] not in artifact.columns]
    if gone:
        raise LutlabError(
            f"published {artifact.name} ({variant}) has {gone[0]['row']}.{gone[0]['column']}, which the artifact no "
            "longer has: publish it again (make publish)"
        )
    measured_on = {cell["column"]: cell["measured_on"] for cell in cells}
    columns = []
    for key, spec in artifact.columns.items():
        of_column = [records.get(cell["cell_id"]) for cell in cells if cell["column"] == key]
        columns.append(compare.column_of(key, spec, measured_on.get(key, ""), of_column))
    rows = [_row(artifact, known[key], row, records) for key, row in by_row.items()]
    notes = {
        key: [
            note
            for record in (records.get(cell["cell_id"]) for cell in row)
            for note in compare.cell_notes(record, _options(record))
        ]
        for key, row in by_row.items()
    }
    used = [record for record in map(records.get, {c["cell_id"]: None for c in cells}) if record]
    return compare.assemble(artifact, columns, rows, scale, notes, used)


def _row(
    artifact: Artifact,
    row: ArtifactRow,
    cells: Sequence[Mapping[str, str]],
    records: Mapping[str, Record],
) -> PublishedRow:
    published = artifact.numbers().get(row.key, {})
    fields = {cell["column"]: cell for cell in cells}
    filled = {}
    for key, spec in artifact.columns_of(row).items():
        reason = compare.NOT_YET
        if means.is_mean(row, spec):  # compare.assemble takes it again
            reason = row.not_run or spec.reason
        elif spec.not_run and not fields.get(key, {}).get("cell_id"):
            reason = spec.not_run
        elif key in fields:
            filled[key] = _cell(artifact.name, spec, fields[key], published.get(key), records)
            continue
        filled[key] = Cell(key, published.get(key), None, "not run", reason)
    measured = [records.get(cell["cell_id"]) for cell in cells]
    return PublishedRow(
        row.key,
        origins.labels(row.labels, measured),
        cells[0]["model"],
        cells[0]["stand_in"] == "True",
        filled,
        device=origins.device(measured),
    )


def _cell(
    artifact: str,
    spec: ColumnSpec,
    cell: Mapping[str, str],
    published: float | str | None,
    records: Mapping[str, Record],
) -> Cell:
    """A cell with the number of its record, which is the one that table.csv prints."""
    column = cell["column"]
    record = records.get(cell["cell_id"])
    measured, chance = None, {}
    if cell["measured"]:
        value = record.values.get(spec.metric) if record else None
        measured = math.nan if value is None else value * spec.factor
        if not record or not math.isclose(measured, float(cell["measured"]), rel_tol=1e-12):
            raise LutlabError(
                f"published {artifact}: {TABLE} has {cell['measured']} for {cell['row']}.{column}, and its record "
                f"'{cell['cell_id']}' in {LINES} does not; restore both with git, or publish the artifact again"
            )
        chance = compare.chance(record, spec)
    cell_id = cell["cell_id"] or None
    if cell["verdict"] == VERDICT:  # made again, by the constants of today
        return Cell(column, published, None, "not run", reason_of(cell["note"]))
    return Cell(column, published, measured, cell["verdict"], cell["note"], cell_id, **chance)


def _options(record: Record | None) -> str:
    if record is None:
        return ""
    options: Mapping[str, Any] = record.evaluation.get("options", {})
    evaluator = record.evaluation["evaluator"]
    return EvalSpec(evaluator, options=tuple(sorted(options.items()))).options_named
