"""What stands where: main and reference grid, words for what is missing, marks, footnotes, digits."""

from dataclasses import replace

import pytest
from tests.experiment.report.example import NO_GPU, OURS, PAPER, entries, example_table

from lutlab.experiment.artifact.outcome import Cell, ClaimResult
from lutlab.experiment.report.digits import measured_decimals, number, printed_decimals
from lutlab.experiment.report.layout import ERROR_MEANING, MARKS, ROUND_MEANING, lay_out

FIRST = "opt-30b-q16-g–"
MODELS = ["opt-embedded-s (stand-in)", "opt-embedded-m (stand-in)"]


def with_cells(column, *cells):
    """The example with other cells in the first rows of a column."""
    table = example_table()
    changed = [
        replace(row, cells={**row.cells, column: cell})
        for row, cell in zip(table.rows, cells, strict=False)
    ]
    return replace(table, rows=(*changed, *table.rows[len(cells) :]))


def test_columns_without_a_measurement_are_the_reference():
    layout = lay_out(example_table())
    assert [head.key for head in layout.main.heads] == ["wiki2", "ptb", "lambada", "bits"]
    assert [head.key for head in layout.reference.heads] == ["gpu1", "gpu2", "gpu4"]
    assert layout.reasons == (f"not run: {NO_GPU}",), "one reason for all cells is said once"
    reference = entries(layout.reference)
    assert not any(entry.foot for entry in reference.values())
    assert reference["opt-66b-q16-g–", "gpu1"].paper == "OOM"


def test_a_column_of_ours_that_repeats_another_is_a_note():
    table = example_table()
    (bits,) = [column for column in table.columns if column.key == "bits"]
    again = replace(bits, key="again", title="Stored, best")
    rows = [
        replace(r, cells=r.cells | {"again": replace(r.cells["bits"], column="again")})
        for r in table.rows
    ]
    layout = lay_out(replace(table, columns=(*table.columns, again), rows=tuple(rows)))
    assert "again" not in {head.key for head in layout.main.heads}
    assert "Stored, best: as stored in every row" in layout.notes


@pytest.mark.parametrize(
    ("metric", "meaning"), [("ppl", ERROR_MEANING), ("latency_us", ROUND_MEANING)]
)
def test_an_error_is_explained_as_what_it_is(metric, meaning):
    table = with_cells("bits", Cell("bits", None, 16.0, "measured only", shares={"a": (0.3, 0.4)}))
    columns = [replace(c, metric=metric) if c.key == "bits" else c for c in table.columns]
    legend = lay_out(replace(table, columns=tuple(columns))).legend
    assert {ERROR_MEANING, ROUND_MEANING} & {*legend} == {meaning}


def test_a_model_that_nobody_runs_stands_in_for_none():
    blank = {c.key: Cell(c.key, 1.0, None, "not run", "why") for c in example_table().columns}
    table = example_table()
    left = [
        row if row.labels["Model"] == "OPT-30B" else replace(row, cells=blank) for row in table.rows
    ]
    layout = lay_out(replace(table, rows=tuple(left)))
    assert layout.stand_ins == ("OPT-30B → opt-embedded-s",)


def test_every_cell_is_said_and_none_is_taken_from_the_paper():
    table = example_table()
    layout = lay_out(table)
    shown = entries(layout.main) | entries(layout.reference)
    assert len(shown) == len(table.rows) * len(table.columns)
    for row in table.rows:
        for key, cell in row.cells.items():
            entry = shown[row.key, key]
            assert entry.paper
            assert entry.ours
            if cell.measured is None:
                assert not any(char.isdigit() for char in entry.ours)
            else:
                assert float(entry.ours) == pytest.approx(cell.measured, rel=5e-3)
            if isinstance(cell.published, float):
                assert float(entry.paper) == cell.published


def test_several_reasons_are_numbered():
    layout = lay_out(with_cells("gpu1", Cell("gpu1", 40.5, None, "not run", "budget is spent")))
    assert layout.reasons == ("¹ not run: budget is spent", f"² not run: {NO_GPU}")
    assert entries(layout.reference)[FIRST, "gpu1"].foot == "¹"


def test_one_measured_cell_moves_a_column_to_the_main_grid():
    layout = lay_out(with_cells("gpu1", Cell("gpu1", 40.5, 41.0, "within tolerance")))
    shown = entries(layout.main)
    assert shown[FIRST, "gpu1"].ours_text == "41.0 ≈"
    assert shown[FIRST, "gpu1"].delta == "+1.2 %"
    assert shown["opt-30b-q4-g32", "gpu1"].ours_text == "not run¹"
    assert f"¹ not run: {NO_GPU}" in layout.footnotes


def test_a_stand_in_is_marked_and_named_but_not_compared():
    layout = lay_out(example_table())
    entry = entries(layout.main)[FIRST, "wiki2"]
    assert (entry.ours_text, entry.delta) == ("41.07 †", "")
    assert layout.stand_ins == ("OPT-30B → opt-embedded-s", "OPT-66B → opt-embedded-m")
    assert [block.measured_on for block in layout.main.blocks] == MODELS
    assert layout.legend == (f"† {MARKS['stand-in'][1]}",)
    assert layout.main.heads[0].ours == "ours: pydocs/library"


@pytest.mark.parametrize(("cell", "text"), [
    (Cell("ptb", 11.84, 11.84, "match", "+0.0%"), "11.84 ="),
    (Cell("ptb", 11.84, 13.0, "deviates"), "13.00 ≠"),
    (Cell("ptb", 11.84, 11.9, "synthetic weights"), "11.90 ‡"),
    (Cell("ptb", None, 11.9, "measured only"), "11.90"),
    (Cell("ptb", 11.84, 11.9, "odd"), "11.90 (odd)"),
    (Cell("ptb", 11.84, None, "OOM"), "OOM"),
    (Cell("ptb", 11.84, None, "published only"), "–"),
    (Cell("ptb", 11.84, None, "cited by the paper"), "cited"),
    (Cell("ptb", 11.84, float("inf"), "stand-in"), "inf †"),
])  # fmt: skip
def test_each_verdict_shows(cell, text):
    assert entries(lay_out(with_cells("ptb", cell)).main)[FIRST, "ptb"].ours_text == text


def test_a_blank_cell_is_an_error():
    table = example_table()
    row = replace(table.rows[0], cells={})
    with pytest.raises(ValueError, match=r"row 'opt-30b-q16-g–' has no cell .* column 'wiki2'"):
        lay_out(replace(table, rows=(row,)))


def test_rows_of_distinct_models_have_no_headings_but_name_the_model():
    table = example_table()
    layout = lay_out(replace(table, rows=table.rows[::5]))
    assert not layout.headed
    assert layout.show_model
    assert [line.model for line in layout.main.blocks[0].lines] == MODELS


def test_a_note_is_said_once():
    table = example_table()
    assert lay_out(replace(table, notes=(*table.notes, NO_GPU))).notes == table.notes


def test_claims_show_both_counts():
    claim = ClaimResult("c", "w", (2, 2), (1, 3), ("a", "b"), ("d",), repeated=4)
    ours = "✗ ours 1 holds, 2 fail, 1 below noise (4 of the same records not counted)"
    assert (claim.paper, claim.ours) == ("✓ paper 2/2", ours)
    assert claim.instances(1) == "— fails: a; and 1 more. below noise: d"
    hidden = ClaimResult("c", "w", (2, 2), (0, 0), below_noise=("a",))
    assert (hidden.sign, hidden.ours) == ("–", "– ours 0 hold, 0 fail, 1 below noise")
    assert ClaimResult("c", "w", (2, 2), (0, 0)).ours == "– ours not decidable here"


def test_an_accuracy_has_the_digits_that_its_error_leaves():
    cells = [
        Cell("bits", None, value, "measured only", n=176, shares={f"{value}": (error,)})
        for value, error in ((0.0, 0.004), (1 / 44, 0.0112))
    ]
    table = with_cells("bits", *cells)
    columns = tuple(replace(c, unit="accuracy", proportion=c.key == "bits") for c in table.columns)
    layout = lay_out(replace(table, rows=table.rows[:2], columns=columns))
    shown = [line.entries[-1].ours_text for block in layout.main.blocks for line in block.lines]
    assert shown == ["0.000 ± 0.004", "0.023 ± 0.011"]
    assert layout.main.heads[-1].ours == "ours, n=176"


def test_digits():
    assert printed_decimals([16.0, 27.5, "OOM", None]) == 1
    assert printed_decimals(PAPER["wiki2"]["OPT-66B"]) == 2
    assert measured_decimals("bits/weight", None, OURS["bits"]["OPT-30B"]) == 3
    assert measured_decimals("relative MSE", None, [0.0, 0.0119]) == 5
    shown = {1e-7: "1.00e-7", 0.0: "0.00", -3.456: "-3.46", 13021.4: "1.30e4"}
    assert [number(value, 2) for value in shown] == [*shown.values()]
