"""Texts of a record or a file that would act on whoever reads the report: each format prints them as texts."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from tests.experiment.report.example import Page, example_table

from lutlab.experiment.report import csv, print_table, write_report
from lutlab.experiment.run import results_command

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)> \"onload='x' {{7*7}} $\\frac$ [red]no[/red]"
LINK = "[a](javascript:alert) [b]: javascript:alert [c][b]"
TERMINAL = "\x1b]0;title\x07 \x1b[2J \x9b31m \r over \u202etxet"
COMPUTED = ("=cmd|' /C calc'!A0", "+1+x", "-2+x", "@SUM(1)", "\t=1", "'=x", "''=x", "'quoted'")
# Ways by which a script makes elements or code of a text; the page's use textContent and append alone.
DOORS = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "href")


def with_cells(row, **changes):
    return replace(row, cells={key: replace(c, **changes) for key, c in row.cells.items()})


def hostile(text):
    """The example with a text in the place of every text that a record or a file decides."""
    table = example_table()
    columns = tuple(replace(c, title=text, measured_on=text) for c in table.columns)
    rows = [replace(r, labels={**r.labels, "Model": text}, model=text) for r in table.rows]
    rows = tuple(with_cells(row, note=text) for row in rows)
    claims = tuple(
        replace(c, text=text, where=f"ours, {text}", failing=(text,)) for c in table.claims
    )
    texts = {"title": text, "notes": (text,), "source": text, "provenance": {"cpu": text}}
    return replace(table, columns=columns, rows=rows, claims=claims, command=text, **texts)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    write_report(hostile(f"{MARKUP} {LINK} {TERMINAL} `` `<b>"), folder)
    return {p.name: p.read_text("utf-8") for p in folder.iterdir() if p.suffix != ".png"}


@pytest.mark.parametrize("name", ["table.html", "figure.svg"])
def test_pages_hold_no_element_of_a_text(written, name):
    tags = Page(written[name]).tags
    assert not {tag for tag, _ in tags} & {"script", "img", "a", "iframe", "b"}
    attributes = {attribute for _, values in tags for attribute in values} - {"on"}
    assert [a for a in attributes if a.startswith("on") or a in ("href", "src")] == []
    assert "&lt;script&gt;" in written[name]
    assert "{{7*7}}" in written["table.html"]


def test_markdown_has_no_tag_and_no_link_of_a_text(written):
    page = re.sub(r"\\.", "", written["table.md"])  # what is escaped is text
    outside_code = "".join(page.split("`")[::2])
    assert "javascript" in outside_code
    assert not re.search(r"<|\][(:\[]", outside_code)


def test_latex_has_no_command_of_a_text(written):
    body = written["table.tex"].partition("\\fi\n")[2]
    assert "\\frac" not in body
    assert "\\textbackslash{}frac" in body


def test_terminals_print_escapes_as_texts(written):
    console = Console(file=io.StringIO(), width=400, force_terminal=False)
    print_table(hostile(f"{TERMINAL} [red]"), console)
    shown = console.file.getvalue()
    for text in (shown, written["table.md"], written["table.html"], written["table.tex"]):
        assert not set(text) & set("\x1b\x07\x9b\r\u202e")
    assert "\\x1b]0;title\\x07" in shown
    assert "[red]" in shown


@pytest.mark.parametrize("text", COMPUTED)
def test_a_spreadsheet_computes_no_field(text):
    table = hostile(text)
    rendered = csv.render(table)
    first = csv.parse(rendered)[0]
    assert (first["title"], first["note"]) == (text, text)
    fields = [field for line in io.StringIO(rendered) for field in line.split(",")]
    assert not [f for f in fields if f.lstrip('"')[:1] in tuple("=@\t")]
    numbered = (with_cells(table.rows[0], measured=-3.5), *table.rows[1:])
    assert ",-3.5," in csv.render(replace(table, rows=numbered))


def test_the_dashboard_is_a_page_whose_data_is_no_code():
    pytest.importorskip("plotly")
    from lutlab.experiment.records import dashboard

    cell = dict.fromkeys(("row", "model", "note", "paper", "cell_id"), f"</script>{MARKUP}")
    page = dashboard.render([cell], [cell], f"<script>x</script>{MARKUP}")
    clean = dashboard.render([{"row": "a"}], [{"row": "a"}], "folder")
    for tag in ("<script", "</script"):
        assert page.count(tag) == clean.count(tag)
    assert "<img" not in page.partition("plotly.js")[0]
    data = page.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(data)["claims"][0]["row"] == cell["row"]
    for script in (Path(dashboard.__file__).parent / "page").glob("*.js"):
        assert [door for door in DOORS if door in script.read_text("utf-8")] == [], script.name


def test_a_record_with_a_lookup_is_not_measured_again(monkeypatch, capsys):
    monkeypatch.setattr(results_command, "_record", lambda *_: None)
    monkeypatch.setattr(results_command, "_command_of", lambda _: ["q=3", "device=${oc.env:HOME}"])
    assert results_command.main(["rerun", "1a2b"]) == 2
    assert "${oc.env:HOME} would be looked up" in capsys.readouterr().err
