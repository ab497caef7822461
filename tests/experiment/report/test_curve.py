"""Figures of papers: axes, series, level and Pareto front of the points; long tables show the front only."""

from __future__ import annotations

import dataclasses

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console

from lutlab.base.specs import EvalSpec, ModelRun, ModelSpec, ProductRun, TextSpec
from lutlab.experiment.artifact.artifact import load_artifact
from lutlab.experiment.artifact.outcome import FRONT, ResultTable
from lutlab.experiment.artifact.rows import OURS
from lutlab.experiment.plan.plan import PlannedCell, PlannedRow
from lutlab.experiment.report import csv, markdown, print_table
from lutlab.experiment.report.compare import tabulate
from lutlab.experiment.report.figure import STYLE, draw
from lutlab.experiment.report.layout import lay_out
from lutlab.experiment.store.record import Record
from lutlab.measure.products import parse_shapes

GROUPS = {"row": 512.0, "-1": 512.0}


def values_of(overrides: list[str], evaluator: str) -> dict[str, float]:
    """Numbers with the shape of quantization's: error falls with q and grows with g, bits the other way round."""
    named = dict(o.split("=") for o in overrides)
    if named["method"] == "none":
        return {"ppl": 30.0, "lambada_accuracy": 0.7, "lambada_perplexity": 5.0} | dict.fromkeys(
            ("ratio_eq7", "ratio"), 1.0
        )
    kinds = ["attention", "feed_forward"] if "sublayers.attention.q" in named else [""]
    pairs = []
    if "budget" in named:  # as row-wise codes that fill it
        kinds, pairs = [], [(float(named["budget"]) / (1 + 16 / 512), 512.0, 1.0)]
    for kind in kinds:
        at = f"sublayers.{kind}." if kind else ""
        q, g = float(named[f"{at}q"]), named[f"{at}g"]
        pairs.append((q, GROUPS.get(g) or float(g), 2.0 if kind == "feed_forward" else 1.0))
    error = sum(w * 4**-q * g**0.3 for q, g, w in pairs) / sum(w for *_, w in pairs)
    bits = sum(w * q * (1 + 16 / g) for q, g, w in pairs) / sum(w for *_, w in pairs)
    ratio = 16 / bits
    measured = {"ppl": 30 * (1 + 8 * error), "lambada_accuracy": 0.7 - error}
    return measured | {"lambada_perplexity": 5 + error, "ratio_eq7": ratio, "ratio": ratio}


def measured(name: str, models: dict[str, str]) -> ResultTable:
    """An artifact at scale=embedded, every cell measured."""
    artifact = load_artifact(name)
    rows = []
    for row in artifact.rows("embedded"):
        cells = {}
        for key, column in artifact.columns.items():
            values = values_of(row.overrides, column.evaluator)
            record = Record("id", "done", {}, {}, values, 1, (), {}, {}, 0.0)
            text = TextSpec("topics", "embedded") if column.text else None
            cells[key] = PlannedCell(EvalSpec(column.evaluator, text), "id", record)
        spec = ModelRun(ModelSpec(models[row.first], "embedded", "x"), "bcq", 4, 32)
        rows.append(PlannedRow(row.key, row.labels, spec, artifact.columns, cells))
    return tabulate(artifact, rows, "embedded")


@pytest.fixture(scope="module")
def mixed() -> ResultTable:
    return measured("fig14", {"gpt-neo-1.3b": "opt-embedded-s"})


@pytest.fixture(scope="module")
def panels() -> ResultTable:
    return measured("fig12", {"opt-6.7b": "opt-embedded-s", "opt-13b": "opt-embedded-m"})


def drawn(table: ResultTable) -> Figure:
    with mpl.rc_context(STYLE):
        figure = draw(table)
        figure.canvas.draw()
    return figure


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def scattered(axes: Axes) -> set[tuple[float, float]]:
    return {tuple(np.round(xy, 9)) for points in axes.collections for xy in points.get_offsets()}


def test_every_row_is_a_point_and_the_level_is_subtracted(mixed: ResultTable) -> None:
    (axes,) = drawn(mixed).axes
    points = {
        (round(r.cells["ratio"].measured, 9), round(r.cells["ppl"].measured - 30.0, 9))
        for r in mixed.rows
        if not r.key.endswith("fp16")
    }
    assert scattered(axes) == points
    assert axes.get_xlabel() == "Compression ratio (×)"
    assert axes.get_ylabel().replace("\n", " ") == "perplexity degradation on topics"
    assert axes.get_title(loc="left") == "ours on opt-embedded-s (stand-in)"


def test_the_front_is_that_of_the_points(mixed: ResultTable) -> None:
    """Straight from the definition: no other row has both the higher ratio and the lower perplexity."""
    rows = {r.key: (r.cells["ratio"].measured, r.cells["ppl"].measured) for r in mixed.rows}
    points = {key: point for key, point in rows.items() if not key.endswith("fp16")}
    best = {
        key
        for key, (x, y) in points.items()
        if not any(a >= x and b <= y and (a, b) != (x, y) for a, b in points.values())
    }
    assert {r.key for r in mixed.rows if r.on_front} == best
    assert {r.key for r in mixed.rows if r.labels.get(FRONT) == "yes"} == best
    figure = drawn(mixed)
    (line,) = [x for x in figure.axes[0].lines if x.get_label() == "Pareto front"]
    assert len(line.get_xdata()) == len(best)
    assert legend(figure) == [
        *("Precision uniform", "Precision mixed", "Precision searched"),
        "Pareto front",
    ]


def test_models_have_panels_series_lines_and_a_level(panels: ResultTable) -> None:
    figure = drawn(panels)
    assert [axes.get_title(loc="left").replace("\n", " ") for axes in figure.axes] == [
        "OPT-6.7B: ours on opt-embedded-s (stand-in)",
        "OPT-13B: ours on opt-embedded-m (stand-in)",
    ]
    names = ["q = 5", "q = 4", "q = 3", "Pareto front", "full precision", "row-wise: hollow"]
    assert legend(figure) == names
    for axes in figure.axes:
        level = [x for x in axes.lines if x.get_label() == "full precision"]
        assert [list(x.get_ydata()) for x in level] == [[30.0, 30.0]]
        white = [p for p in axes.collections if tuple(p.get_facecolor()[0][:3]) == (1, 1, 1)]
        assert [len(p.get_offsets()) for p in white] == [1, 1, 1]


def test_series_without_panels_name_the_model_measured() -> None:
    table = measured("fig10", {"opt-6.7b": "opt-embedded-s", "opt-13b": "opt-embedded-m"})
    figure = drawn(table)
    assert legend(figure)[:2] == [
        "Model opt-embedded-s (stand-in), q = 4",
        "Model opt-embedded-m (stand-in), q = 3",
    ]
    drawn_here = "perplexity of the last word"
    assert figure.axes[0].get_ylabel().replace("\n", " ") == f"{drawn_here} on topics"
    said = figure.get_suptitle().replace("\n", " ")
    assert f"Drawn: {drawn_here}, since LAMBADA accuracy is " in said, "and not the paper's y"
    rows = {row.key: row.cells["accuracy"].measured for row in table.rows}
    assert rows["opt-6.7b/fp16"] == pytest.approx(70.0), "a fraction is shown in per cent"


def test_nothing_measured_is_said(mixed: ResultTable) -> None:
    cells = {
        key: dataclasses.replace(cell, measured=None, verdict="not run")
        for key, cell in mixed.rows[0].cells.items()
    }
    rows = tuple(
        dataclasses.replace(r, cells=cells, on_front=False, labels={"Model": "x"})
        for r in mixed.rows
    )
    figure = drawn(dataclasses.replace(mixed, rows=rows))
    assert [text.get_text() for text in figure.axes[0].texts] == ["not measured yet"]


def test_a_long_table_shows_its_front_and_the_csv_all(mixed: ResultTable) -> None:
    layout = lay_out(mixed)
    shown = {line.key for block in layout.main.blocks for line in block.lines}
    front = {row.key for row in mixed.rows if row.on_front}
    assert shown == front | {"gpt-neo-1.3b/fp16"}
    assert layout.left_out.startswith(f"{len(shown)} of 162 rows shown")
    assert layout.left_out in markdown.render(layout)
    assert len(csv.render(mixed).splitlines()) == 1 + 162 * len(mixed.columns)


def test_a_long_table_shows_what_papers_print(mixed: ResultTable) -> None:
    hidden = next(row for row in mixed.rows if not row.on_front and row.key != "gpt-neo-1.3b/fp16")
    cells = {k: dataclasses.replace(cell, published=6.0) for k, cell in hidden.cells.items()}
    cited = dataclasses.replace(hidden, cells=cells)
    rows = tuple(cited if row is hidden else row for row in mixed.rows)
    layout = lay_out(dataclasses.replace(mixed, rows=rows))
    assert cited.key in {line.key for block in layout.main.blocks for line in block.lines}
    assert "and what failed or stands in a paper; " in layout.left_out


def test_what_a_row_really_ran_stays_in_a_narrow_terminal(mixed: ResultTable) -> None:
    console = Console(width=80, record=True, file=None, quiet=False)
    with console.capture() as capture:
        print_table(mixed, console)
    text = capture.get()
    assert OURS in text
    assert "att:g=" in text
    assert "rows shown" in text
    assert max(map(len, text.splitlines())) <= 80


def by_group_size() -> ResultTable:
    """LUT-GEMM Figure 8 with a latency that falls with g."""
    artifact = load_artifact("fig8")
    rows = []
    for row in artifact.rows("embedded"):
        named = dict(override.split("=") for override in row.overrides)
        g = 1024.0 if named["g"] == "-1" else float(named["g"])
        values = {
            "group_size": g,
            "over_rowwise": 1 + 8 / g,
            "latency_us": 9.0,
            "speedup_fp16": 2.0,
        }
        record = Record("id", "done", {}, {}, values, 1, (), {}, {}, 0.0)
        cell = PlannedCell(EvalSpec("kernel_latency"), "id", record)
        spec = ProductRun(parse_shapes(named["model.id"]), "bcq", 3, 32)
        cells = dict.fromkeys(artifact.columns, cell)
        rows.append(PlannedRow(row.key, row.labels, spec, artifact.columns, cells))
    return tabulate(artifact, rows, "embedded")


def test_where_nothing_is_traded_off_series_are_lines_without_a_front() -> None:
    table = by_group_size()
    assert not any(row.on_front or FRONT in row.labels for row in table.rows)
    (axis,) = drawn(table).axes
    assert len(axis.lines) == 3
    for line in axis.lines:
        assert line.get_xdata().tolist() == [32, 64, 128, 256, 512, 1024]
    assert axis.get_xscale() == "log"
    assert axis.get_title(loc="left") == "ours on 3 stand-ins"
    (legend,) = axis.figure.legends
    assert "Pareto front" not in [text.get_text() for text in legend.get_texts()]
