"""Figures of papers: axes, series, level and Pareto front of the points; long tables show the front only."""

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from tests.experiment.report.example import drawn, measured, record

from lutlab.base.specs import EvalSpec, ModelRun, ModelSpec, ProductRun, TextSpec
from lutlab.experiment.artifact.artifact import load_artifact
from lutlab.experiment.artifact.outcome import FRONT
from lutlab.experiment.artifact.rows import OURS
from lutlab.experiment.report import csv, markdown, print_table
from lutlab.experiment.report.layout import lay_out
from lutlab.measure.products import parse_shapes

S_AND_M = ("opt-embedded-s", "opt-embedded-m")


def values_of(named):
    """Numbers with the shape of quantization's: error falls with q and grows with g, bits the other way round."""
    weights = {} if named["method"] == "none" else {"": 1.0}
    if "sublayers.attention.q" in named:
        weights = {"sublayers.attention.": 1.0, "sublayers.feed_forward.": 2.0}
    if "budget" in named:  # as row-wise codes that fill it
        named = {"q": float(named["budget"]) / (1 + 16 / 512), "g": "row"}
    error, bits = 0.0, 0.0 if weights else 16.0
    for kind, weight in weights.items():
        q, g = float(named[f"{kind}q"]), named[f"{kind}g"]
        g = 512.0 if g in ("row", "-1") else float(g)
        error += weight * 4**-q * g**0.3 / sum(weights.values())
        bits += weight * q * (1 + 16 / g) / sum(weights.values())
    quality = {"ppl": 30 * (1 + 8 * error), "lambada_accuracy": 0.7 - error}
    return quality | {"lambada_perplexity": 5 + error} | dict.fromkeys(("ratio_eq7", "ratio"), 16 / bits)  # fmt: skip


def overrides_of(row):
    return dict(override.split("=") for override in row.overrides)


def whole(name, *models):
    """An artifact at scale=embedded, every cell measured; models of its first axis in order."""
    artifact = load_artifact(name)
    rows = artifact.rows("embedded")
    names = dict(zip(dict.fromkeys(row.first for row in rows), models, strict=True))
    return measured(
        artifact,
        {row.key: record(values_of(overrides_of(row))) for row in rows},
        "embedded",
        lambda row: ModelRun(ModelSpec(names[row.first], "embedded", "x"), "bcq", 4, 32),
        lambda column: EvalSpec(column.evaluator, column.text and TextSpec("topics", "embedded")),
    )


@pytest.fixture(scope="module")
def mixed():
    return whole("fig14", "opt-embedded-s")


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def points_of(table):
    """Row key -> its ratio and perplexity; without full precision."""
    cells = {row.key: row.cells for row in table.rows if not row.key.endswith("fp16")}
    return {key: (own["ratio"].measured, own["ppl"].measured) for key, own in cells.items()}


def shown(layout):
    return {line.key for block in layout.main.blocks for line in block.lines}


def test_every_row_is_a_point_and_the_level_is_subtracted(mixed):
    (axes,) = drawn(mixed).axes
    points = [[x, y - 30.0] for x, y in points_of(mixed).values()]
    scattered = np.concatenate([cloud.get_offsets() for cloud in axes.collections])
    assert {*map(tuple, scattered.round(9))} == {*map(tuple, np.round(points, 9))}
    assert axes.get_xlabel() == "Compression ratio (×)"
    assert axes.get_ylabel().replace("\n", " ") == "perplexity degradation on topics"
    assert axes.get_title(loc="left") == "ours on opt-embedded-s (stand-in)"


def test_the_front_is_that_of_the_points(mixed):
    """Straight from the definition: no other row has both the higher ratio and the lower perplexity."""
    points = points_of(mixed)
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
    series = [f"Precision {name}" for name in ("uniform", "mixed", "searched")]
    assert legend(figure) == [*series, "Pareto front"]


def test_models_have_panels_series_lines_and_a_level():
    figure = drawn(whole("fig12", *S_AND_M))
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


def test_series_without_panels_name_the_model_measured():
    figure = drawn(whole("fig10", *S_AND_M))
    series = [f"Model {m} (stand-in), q = {q}" for m, q in zip(S_AND_M, (4, 3), strict=True)]
    assert legend(figure)[:2] == series
    drawn_here = "perplexity of the last word"  # and not the paper's y
    assert figure.axes[0].get_ylabel().replace("\n", " ") == f"{drawn_here} on topics"
    title = figure.get_suptitle().replace("\n", " ")
    assert f"Drawn: {drawn_here}, since LAMBADA accuracy is " in title


def test_nothing_measured_is_said(mixed):
    waiting = {"measured": None, "verdict": "not run"}
    cells = {key: replace(cell, **waiting) for key, cell in mixed.rows[0].cells.items()}
    empty = {"cells": cells, "on_front": False, "labels": {"Model": "x"}}
    figure = drawn(replace(mixed, rows=tuple(replace(row, **empty) for row in mixed.rows)))
    assert [text.get_text() for text in figure.axes[0].texts] == ["not measured yet"]


def test_a_long_table_shows_its_front_and_the_csv_all(mixed):
    layout = lay_out(mixed)
    front = {row.key for row in mixed.rows if row.on_front}
    assert shown(layout) == front | {"gpt-neo-1.3b/fp16"}
    assert layout.left_out.startswith(f"{len(front) + 1} of 162 rows shown")
    assert layout.left_out in markdown.render(layout)
    assert len(csv.render(mixed).splitlines()) == 1 + 162 * len(mixed.columns)


def test_a_long_table_shows_what_papers_print(mixed):
    hidden = next(row for row in mixed.rows if row.key not in shown(lay_out(mixed)))
    cells = {key: replace(cell, published=6.0) for key, cell in hidden.cells.items()}
    cited = replace(hidden, cells=cells)
    layout = lay_out(replace(mixed, rows=(cited, *(row for row in mixed.rows if row != hidden))))
    assert cited.key in shown(layout)
    assert "and what failed or stands in a paper; " in layout.left_out


def test_what_a_row_really_ran_stays_in_a_narrow_terminal(mixed):
    console = Console(width=80)
    with console.capture() as capture:
        print_table(mixed, console)
    text = capture.get()
    assert all(words in text for words in (OURS, "att:g=", "rows shown"))
    assert max(map(len, text.splitlines())) <= 80


def test_where_nothing_is_traded_off_series_are_lines_without_a_front():
    """LUT-GEMM Figure 8 with a latency that falls with g."""
    artifact, records = load_artifact("fig8"), {}
    for row in artifact.rows("embedded"):
        g = float(overrides_of(row)["g"].replace("-1", "1024"))
        values = {"group_size": g, "over_rowwise": 1 + 8 / g, "latency_us": 9.0}
        records[row.key] = record(values | {"speedup_fp16": 2.0})

    def spec(row):
        return ProductRun(parse_shapes(overrides_of(row)["model.id"]), "bcq", 3, 32)

    table = measured(artifact, records, "embedded", spec)
    assert not any(row.on_front or FRONT in row.labels for row in table.rows)
    (axis,) = drawn(table).axes
    assert len(axis.lines) == 3
    for line in axis.lines:
        assert line.get_xdata().tolist() == [32, 64, 128, 256, 512, 1024]
    assert axis.get_xscale() == "log"
    assert axis.get_title(loc="left") == "ours on 3 stand-ins"
    assert "Pareto front" not in legend(axis.figure)
