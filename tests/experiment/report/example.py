"""A result table like LUT-GEMM's Table 4: two models x five configurations, measured on stand-ins, no GPU."""

import dataclasses
from html.parser import HTMLParser

import matplotlib as mpl

from lutlab.base.specs import EvalSpec, ModelRun, ModelSpec, TextSpec
from lutlab.experiment.artifact.outcome import Cell, ClaimResult, Column, PublishedRow, ResultTable
from lutlab.experiment.plan.plan import PlannedCell, PlannedRow
from lutlab.experiment.report.compare import tabulate
from lutlab.experiment.report.figure import STYLE, draw
from lutlab.experiment.store.record import Record

CONFIGURATIONS = (("16", "–"), ("4", "32"), ("4", "64"), ("3", "32"), ("3", "64"))
PAPER = {  # column -> model -> values in the order of CONFIGURATIONS
    "wiki2": {"OPT-30B": (9.56, 9.71, 9.88, 10.78, 14.61), "OPT-66B": (9.34, 9.54, 9.54, 18.82, 51.15)},
    "ptb": {"OPT-30B": (11.84, 12.02, 12.05, 13.89, 24.63), "OPT-66B": (11.36, 11.55, 11.63, 35.76, 130.54)},
    "lambada": {"OPT-30B": (15.84, 16.16, 16.17, 19.21, 31.13), "OPT-66B": (15.47, 15.83, 15.91, 42.16, 130.19)},
    "gpu1": {"OPT-30B": (40.5, 18.5, 17.8, 16.7, 15.7), "OPT-66B": ("OOM", 33.5, 31.9, 30.5, 27.5)},
    "gpu2": {"OPT-30B": (23.5, 14.3, 13.9, 13.3, 12.6), "OPT-66B": (48.4, 23.5, 23.2, 21.5, 20.9)},
    "gpu4": {"OPT-30B": (14.7, 11.9, 11.8, 11.6, 11.2), "OPT-66B": (28.3, 18.5, 17.8, 16.9, 16.0)},
}  # fmt: skip
OURS = {
    "wiki2": {"OPT-30B": (41.07, 41.93, 42.3, 48.8, 57.25), "OPT-66B": (28.4, 28.86, 29.1, 33.5, 13021.4)},
    "ptb": {"OPT-30B": (88.1, 89.77, 90.43, 101.6, 118.0), "OPT-66B": (63.0, 64.2, 64.9, 71.33, None)},
    "lambada": {"OPT-30B": (55.5, 56.1, 57.02, 66.6, 79.1), "OPT-66B": (40.4, 41.0, 41.4, 47.7, 55.81)},
    "bits": {"OPT-30B": (16.0, 4.625, 4.3125, 3.625, 3.3125), "OPT-66B": (16.0, 4.625, 4.3125, 3.625, 3.3125)},
}  # fmt: skip
STAND_INS = {"OPT-30B": "opt-embedded-s", "OPT-66B": "opt-embedded-m"}
COLUMNS = (
    Column("wiki2", "Wiki2", "ppl", "wikitext2", "pydocs/library", True),
    Column("ptb", "PTB", "ppl", "ptb", "pydocs/howto", True),
    Column("lambada", "LAMBADA", "ppl", "lambada-joined[inferred]", "pydocs/tutorial [inferred]", True),
    Column("bits", "stored", "bits/weight", "", "", False),
    *(Column(f"gpu{n}", f"{n}-GPU", "ms", "latency-per-token", "", True) for n in (1, 2, 4)),
)  # fmt: skip
NO_GPU = "needs an NVIDIA GPU; this machine has none"


def cell(column, model, i, key):
    published = PAPER[column][model][i] if column in PAPER else None
    if column not in OURS:
        return Cell(column, published, None, "not run", NO_GPU)
    ours = OURS[column][model][i]
    verdict, note = ("measured only", "") if published is None else ("stand-in", STAND_INS[model])
    if ours is None:
        verdict, note = "failed", "RuntimeError: 50% of rows <_NaN_> & {more}"
    return Cell(column, published, ours, verdict, note, f"{key}-{column}")


def row(model, i):
    q, g = CONFIGURATIONS[i]
    key = f"{model.lower()}-q{q}-g{g}"
    labels = {"Model": model, "q": q, "g": g, "Method": "FP16" if q == "16" else "Uniform (RTN)"}
    cells = {column.key: cell(column.key, model, i, key) for column in COLUMNS}
    return PublishedRow(key, labels, STAND_INS[model], True, cells)


def example_table():
    claims = (
        ClaimResult("A smaller group has lower perplexity", "Section 4.3", (12, 12), (11, 12), ("OPT-66B q3: PTB",)),
        ClaimResult("LUT-GEMM q3 g32 is at least 2.25x faster than cuBLAS", "Section 4.3", (2, 2), (0, 0)),
    )  # fmt: skip
    return ResultTable(
        artifact="lut-gemm-v3/table4", title="LUT-GEMM Table 4: perplexity & latency per token of OPT, RTN",
        citation="Park et al., LUT-GEMM, arXiv:2206.09557v3", source="papers/lut-gemm-v3.txt, lines 274-287",
        scale="embedded", command="python run.py +exp=table4", columns=COLUMNS,
        rows=tuple(row(model, i) for model in STAND_INS for i in range(5)), claims=claims,
        notes=("LAMBADA's protocol is inferred: the paper names none_",),
        origins=("52 cells: commit 9fa87fa, 2 threads", "8 cells: commit d4e5f6a, 1 thread"),
        provenance={"git_commit": "9fa87fa (52), d4e5f6a (8)", "threads": "2 (52), 1 (8)"},
    )  # fmt: skip


def comparable(table):
    """The same numbers as if measured on the paper's own models."""
    rows, own = [], {"verdict": "deviates", "note": ""}
    for line in table.rows:
        cells = {
            key: dataclasses.replace(cell, **own if cell.verdict == "stand-in" else {})
            for key, cell in line.cells.items()
        }
        about = {"model": line.labels["Model"], "stand_in": False}
        rows.append(dataclasses.replace(line, cells=cells, **about))
    return dataclasses.replace(table, rows=tuple(rows))


def drawn(table):
    """The figure of a table, laid out."""
    with mpl.rc_context(STYLE):
        figure = draw(table)
        figure.canvas.draw()
    return figure


def entries(grid):
    """(row, column) -> what stands there."""
    return {
        (line.key, head.key): entry
        for block in grid.blocks
        for line in block.lines
        for head, entry in zip(grid.heads, line.entries, strict=True)
    }


class Page(HTMLParser):
    """Elements with their attributes, cells by (row, column), and texts; tags are balanced."""

    VOID = ("meta", "br", "link", "img", "use", "path")

    def __init__(self, html):
        super().__init__()
        self.tags, self.cells, self.text = [], {}, ""
        self._cell, self._open = [], []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append((tag, values))
        if tag not in self.VOID:
            self._open.append(tag)
        if tag == "td":
            self._cell = self.cells.setdefault((values["data-row"], values["data-column"]), [])
            self._cell.append("")

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self._open.pop() == tag
        if tag == "td":
            self._cell = []

    def handle_data(self, data):
        self.text += data
        if self._cell:
            self._cell[-1] += data


SPEC = ModelRun(ModelSpec("a-model", "hub", "x"), "rtn", 4, 32)
UNKNOWN = {
    "status": "done", "run": {}, "evaluation": {}, "n": 1, "samples": (), "facts": {}, "provenance": {}, "seconds": 0.0,
}  # fmt: skip


def record(values, cell_id="id", **fields):
    """A measured cell of which little but its values is known."""
    return Record(cell_id, values=values, **UNKNOWN | fields)


def evaluation_of(column):
    return EvalSpec(column.evaluator, column.text and TextSpec(column.text, "hub"))


def measured(artifact, records, scale="paper", spec=lambda _: SPEC, evaluation=evaluation_of):
    """The table of some rows of an artifact, each of whose cells that are run has the row's record (by its key)."""
    lines, rows = {line.key: line for line in artifact.rows(scale)}, []
    for key, known in records.items():
        columns = artifact.columns_of(lines[key])
        cells = {
            name: PlannedCell(evaluation(column), None, missing=column.reason)
            if column.reason
            else PlannedCell(evaluation(column), known.cell_id, known)
            for name, column in columns.items()
        }
        rows.append(PlannedRow(key, lines[key].labels, spec(lines[key]), columns, cells))
    return tabulate(artifact, rows, scale)
