"""The figure: stand-ins on axes of their own, the paper hollow and ours filled, what is missing said in words."""

from __future__ import annotations

import dataclasses

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tests.experiment.report.example import OURS, PAPER, example_table
from tests.experiment.report.test_formats import comparable

from lutlab.experiment.artifact.outcome import ResultTable
from lutlab.experiment.report.figure import STYLE, draw, inline, render


def drawn(table: ResultTable) -> Figure:
    with mpl.rc_context(STYLE):
        figure = draw(table)
        figure.canvas.draw()
    return figure


def values(axes: Axes) -> list[list[float]]:
    return [[y for _, y in points.get_offsets()] for points in axes.collections]


def test_a_stand_in_never_shares_an_axis_with_the_paper() -> None:
    figure = drawn(example_table())
    paper, ours = figure.axes[:3], figure.axes[3:]
    for axes, column in zip(paper, ("wiki2", "ptb", "lambada"), strict=True):
        assert np.allclose(values(axes), list(PAPER[column].values()))
    expected = [[np.nan if v is None else v for v in series] for series in OURS["ptb"].values()]
    found = [np.ma.filled(points.get_offsets()[:, 1], np.nan) for points in ours[1].collections]
    assert np.allclose(found, expected, equal_nan=True)
    assert [text.get_text() for text in ours[1].texts] == ["failed"]
    assert [label.get_text() for label in ours[0].get_xticklabels()] == [
        "q16",
        "q4 g32",
        "q4 g64",
        "q3 g32",
        "q3 g64",
    ]
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {
        "paper: OPT-30B",
        "paper: OPT-66B",
        "measured: opt-embedded-s (stand-in)",
        "measured: opt-embedded-m (stand-in)",
    }
    assert ours[0].get_title(loc="left") == "on pydocs/library (ppl)"
    assert all(axes.get_yscale() == "log" for axes in figure.axes)


def test_the_papers_own_models_share_panels() -> None:
    figure = drawn(comparable(example_table()))
    assert len(figure.axes) == 3
    assert np.allclose(values(figure.axes[0]), [*PAPER["wiki2"].values(), *OURS["wiki2"].values()])
    hollow = [
        tuple(points.get_facecolor()[0][:3]) == (1.0, 1.0, 1.0)
        for points in figure.axes[0].collections
    ]
    assert hollow == [True, True, False, False]


@pytest.mark.parametrize("published", [True, False])
def test_one_side_alone_is_drawn(published: bool) -> None:
    table = example_table()
    columns = [
        c for c in table.columns if (c.key.startswith("gpu") if published else not c.published)
    ]
    figure = drawn(dataclasses.replace(table, columns=tuple(columns)))
    assert sum(axes.get_visible() for axes in figure.axes) == len(columns)


def test_svg_is_inlined_with_the_pages_colours() -> None:
    svg, png = render(example_table())
    assert png.startswith(b"\x89PNG")
    text = inline(svg)
    assert text.startswith("<svg")
    assert "var(--ink, #1f2328)" in text
    assert "<metadata" not in text
