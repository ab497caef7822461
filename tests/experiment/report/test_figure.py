"""The figure: stand-ins on axes of their own, the paper hollow and ours filled, what is missing said in words."""

import dataclasses

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.text import Text
from tests.conftest import ROOT
from tests.experiment.report.example import OURS, PAPER, comparable, drawn, example_table

from lutlab.experiment.report import published
from lutlab.experiment.report.bars import ordered
from lutlab.experiment.report.figure import STYLE, draw, inline, render


def values(axes):
    """Heights of the bars, series by series."""
    return [[bar.get_height() for bar in bars] for bars in axes.containers]


def words(texts):
    return [text.get_text() for text in texts]


def test_a_stand_in_never_shares_an_axis_with_the_paper():
    figure = drawn(example_table())
    paper, ours = figure.axes[:3], figure.axes[3:]
    for axes, column in zip(paper, ("wiki2", "ptb", "lambada"), strict=True):
        assert np.allclose(values(axes), list(PAPER[column].values()))
    first, second = ([v for v in series if v is not None] for series in OURS["ptb"].values())
    assert values(ours[1]) == [pytest.approx(first), pytest.approx(second)]
    assert words(ours[1].texts) == ["failed"]
    assert words(ours[0].get_xticklabels()) == ["q16", "q4 g32", "q4 g64", "q3 g32", "q3 g64"]
    assert {*words(figure.legends[0].get_texts())} == {
        *("paper: Model OPT-30B", "paper: Model OPT-66B"),
        *("ours: opt-embedded-s (stand-in)", "ours: opt-embedded-m (stand-in)"),
    }
    assert ours[0].get_title(loc="left").split() == ["on", "pydocs/library", "(ppl)"]
    assert figure.get_suptitle().replace("\n", " ") == example_table().title
    assert [axes.get_ylim()[0] for axes in paper] == [0, 0, 0]
    assert ours[0].get_yscale() == "log", "41 beside 13,021"


def test_the_papers_own_models_share_panels():
    first, *others = drawn(comparable(example_table())).axes
    assert len(others) == 2
    assert np.allclose(values(first), [*PAPER["wiki2"].values(), *OURS["wiki2"].values()])
    hollow = [tuple(bars[0].get_facecolor()[:3]) == (1.0, 1.0, 1.0) for bars in first.containers]
    assert hollow == [True, True, False, False]


@pytest.mark.parametrize("keys", [("gpu1", "gpu2", "gpu4"), ("bits",)])
def test_one_side_alone_is_drawn(keys):
    table = example_table()
    columns = tuple(c for c in table.columns if c.key in keys)
    figure = drawn(dataclasses.replace(table, columns=columns))
    assert sum(axes.get_visible() for axes in figure.axes) == len(keys)


def test_svg_is_inlined_with_the_pages_colours():
    svg, png = render(example_table())
    assert png.startswith(b"\x89PNG")
    text = inline(svg)
    assert text.startswith("<svg")
    assert "var(--ink, #1f2328)" in text
    assert "<metadata" not in text


@pytest.mark.parametrize(("names", "rising"), [
    (("full columns", "128", "64", "16"), True),
    (("q2", "q3", "q4"), True),
    (("128", "16", "64"), False),
    (("RTN", "GPTQ", "AWQ"), False),
    (("q4 g32", "q4 g64", "q3 g32"), False),
    (("q16", "q3"), False),
])  # fmt: skip
def test_one_number_is_a_line_and_names_are_bars(names, rising):
    assert ordered(names) is rising


# Of each kind the ones that need most room: a narrow one, many columns, long names, many series, clouds, contestants.
CROWDED = (
    *("qigen/table3", "lut-gemm-iclr2024/table7", "lut-gemm-iclr2024/table1", "nuqmm/table5"),
    *("mixed-2-4-16/table4", "mixed-2-4-16/fig1", "lutlab/group_widths"),
    *("lut-gemm-v3/fig11", "nuqmm/fig6", "nuqmm/fig8", "qigen/fig3", "qigen/fig4"),
)


@pytest.mark.parametrize("name", CROWDED)
def test_nothing_of_a_published_figure_is_cut_or_covered(name, monkeypatch):
    folder = min(ROOT.glob(f"results/published/*/{name}"))  # of one machine
    *_, table = published.read(folder).tables({}).values()
    texts, draw_text = [], Text.draw

    def noted(text, *args, **options):
        texts.append(text)
        draw_text(text, *args, **options)

    with mpl.rc_context(STYLE):
        figure = draw(table)
        monkeypatch.setattr(Text, "draw", noted)  # labels of ticks out of view are never drawn
        figure.draw_without_rendering()
        inside = figure.bbox.padded(0.5)
        shown = [text for text in texts if text.get_visible() and text.get_text().strip()]
        assert len(shown) >= 5
        for text in shown:
            corners = text.get_window_extent().corners()
            assert all(inside.contains(*corner) for corner in corners), text
        panels = [axes.get_tightbbox() for axes in figure.axes if axes.get_visible()]
        for legend in figure.legends:
            assert not any(legend.get_window_extent().overlaps(panel) for panel in panels)
    assert figure.get_suptitle().replace("\n", " ").startswith(table.title)
