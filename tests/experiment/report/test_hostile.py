"""Texts of a record or a file that would act on whoever reads the report: each format prints them as texts."""

from __future__ import annotations

import dataclasses
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console
from tests.experiment.report.example import example_table

from lutlab.experiment.artifact.outcome import ResultTable
from lutlab.experiment.report import csv, print_table, write_report
from lutlab.experiment.run import results_command

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)> \"onload='x' {{7*7}} $\\frac$ [red]no[/red]"
LINK = "[a](javascript:alert) [b]: javascript:alert [c][b]"
TERMINAL = "\x1b]0;title\x07 \x1b[2J \x9b31m \r over \u202etxet"
COMPUTED = ("=cmd|' /C calc'!A0", "+1+x", "-2+x", "@SUM(1)", "\t=1", "'=x", "''=x", "'quoted'")


def hostile(text: str) -> ResultTable:
    """The example with a text in the place of every text that a record or a file decides."""
    table = example_table()
    columns = tuple(dataclasses.replace(c, title=text, measured_on=text) for c in table.columns)
    rows = tuple(
        dataclasses.replace(
            row,
            labels={**row.labels, "Model": text},
            model=text,
            cells={k: dataclasses.replace(c, note=text) for k, c in row.cells.items()},
        )
        for row in table.rows
    )
    claims = tuple(
        dataclasses.replace(c, text=text, where=text, failing=(text,)) for c in table.claims
    )
    return dataclasses.replace(
        table, columns=columns, rows=rows, claims=claims, title=text, notes=(text,), source=text,
        command=text, provenance={"cpu": text},
    )  # fmt: skip


class Tags(HTMLParser):
    """Names of elements, and of their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("hostile")
    write_report(hostile(f"{MARKUP} {LINK} {TERMINAL} `` `<b>"), folder)
    return {p.name: p.read_text("utf-8") for p in folder.iterdir() if p.suffix != ".png"}


def test_pages_hold_no_element_of_a_text(written: dict[str, str]) -> None:
    for name in ("table.html", "figure.svg"):
        tags = Tags(written[name])
        assert not tags.names & {"script", "img", "a", "iframe", "b"}
        assert not {a for a in tags.attributes if a.startswith("on") or a in ("href", "src")} - {
            "on"
        }
        assert "&lt;script&gt;" in written[name]
    assert "{{7*7}}" in written["table.html"]


def test_markdown_has_no_tag_and_no_link_of_a_text(written: dict[str, str]) -> None:
    page = re.sub(r"\\.", "", written["table.md"])  # what is escaped is text
    outside_code = "".join(page.split("`")[::2])
    assert "javascript" in outside_code
    assert not re.search(r"<|\][(:\[]", outside_code)


def test_latex_has_no_command_of_a_text(written: dict[str, str]) -> None:
    body = written["table.tex"].partition("\\fi\n")[2]
    assert "\\frac" not in body
    assert "\\textbackslash{}frac" in body


def test_terminals_print_escapes_as_texts(written: dict[str, str]) -> None:
    console = Console(file=io.StringIO(), width=400, force_terminal=False)
    print_table(hostile(f"{TERMINAL} [red]"), console)
    shown = console.file.getvalue()
    for text in (shown, written["table.md"], written["table.html"], written["table.tex"]):
        assert not set(text) & set("\x1b\x07\x9b\r\u202e")
    assert "\\x1b]0;title\\x07" in shown
    assert "[red]" in shown


@pytest.mark.parametrize("text", COMPUTED)
def test_a_spreadsheet_computes_no_field(text: str) -> None:
    table = hostile(text)
    rendered = csv.render(table)
    assert csv.parse(rendered)[0]["title"] == text
    assert csv.parse(rendered)[0]["note"] == text
    fields = [field for line in io.StringIO(rendered) for field in line.split(",")]
    assert not [f for f in fields if f.lstrip('"')[:1] in tuple("=@\t")]
    assert ",-3.5," in csv.render(numbered(table, -3.5))


def numbered(table: ResultTable, number: float) -> ResultTable:
    row = table.rows[0]
    cells = {k: dataclasses.replace(c, measured=number) for k, c in row.cells.items()}
    return dataclasses.replace(table, rows=(dataclasses.replace(row, cells=cells), *table.rows[1:]))


def test_the_dashboard_is_a_page_whose_data_is_no_code(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    from lutlab.experiment.records import dashboard

    cell = dict.fromkeys(("row", "model", "note", "paper", "cell_id"), f"</script>{MARKUP}")
    page = dashboard.render([cell], [cell], f"<script>x</script>{MARKUP}")
    clean = dashboard.render([{"row": "a"}], [{"row": "a"}], "folder")
    assert page.count("<script") == clean.count("<script")
    assert page.count("</script") == clean.count("</script")
    assert "<img" not in page.partition("plotly.js")[0]
    data = page.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(data)["claims"][0]["row"] == cell["row"]
    scripts = Path(dashboard.__file__).parent / "page"
    for script in scripts.glob("*.js"):  # texts go into elements by textContent and append alone
        for door in (
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "href",
        ):
            assert door not in script.read_text("utf-8"), script.name


def test_a_record_with_a_lookup_is_not_measured_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(results_command, "_record", lambda *_: None)
    monkeypatch.setattr(results_command, "_command_of", lambda _: ["q=3", "device=${oc.env:HOME}"])
    assert results_command.main(["rerun", "1a2b"]) == 2
    assert "${oc.env:HOME} would be looked up" in capsys.readouterr().err
