"""Files: each parsed back and compared with the table; the same table gives the same bytes."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.experiment.report.example import example_table

from lutlab.experiment.artifact.outcome import ResultTable
from lutlab.experiment.report import write_report
from lutlab.experiment.report.latex import escape
from lutlab.experiment.report.layout import Grid, Line, lay_out
from lutlab.experiment.report.markdown import render_variants

FILES = (
    "table.md", "table.csv", "table.tex", "table.html", "figure.svg", "figure.png", "SHA256SUMS",
)  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    paths = write_report(example_table(), tmp_path_factory.mktemp("report") / "new" / "folder")
    assert [path.name for path in paths] == list(FILES)
    assert sorted(p.name for p in paths[0].parent.iterdir()) == sorted(FILES), "no partial files"
    return {path.name: path.read_bytes() for path in paths}


def test_twice_the_same_bytes(written: dict[str, bytes], tmp_path: Path) -> None:
    again = {path.name: path.read_bytes() for path in write_report(example_table(), tmp_path)}
    assert again == written


def cells(grid: Grid) -> dict[tuple[str, str], list[str]]:
    """(row, column) -> published and measured text, as they must appear."""
    return {
        (line.key, head.key): ([entry.paper] if head.paper else []) + [entry.ours_text]
        for block in grid.blocks
        for line in block.lines
        for head, entry in zip(grid.heads, line.entries, strict=True)
    }


def texts(grid: Grid, line: Line) -> list[str]:
    found = cells(grid)
    return [text for head in grid.heads for text in found[line.key, head.key]]


# ---- CSV ----


def test_csv_holds_every_cell_unrounded(written: dict[str, bytes]) -> None:
    table = example_table()
    reader = csv.DictReader(io.StringIO(written["table.csv"].decode()))
    rows = {(row["row"], row["column"]): row for row in reader}
    fields = (
        "artifact row labels column title metric lower_is_better unit protocol published cited_from measured "
        "predicted baseline difference_error error n measured_on model stand_in on_front"
    )
    assert reader.fieldnames == [*fields.split(), "verdict", "note", "cell_id"]
    assert len(rows) == len(table.rows) * len(table.columns)
    for row in table.rows:
        for key, cell in row.cells.items():
            stored = rows[row.key, key]
            assert stored["published"] == ("" if cell.published is None else str(cell.published))
            assert stored["measured"] == ("" if cell.measured is None else str(cell.measured))
            assert (stored["verdict"], stored["note"]) == (cell.verdict, cell.note)
            assert stored["cell_id"] == (cell.cell_id or "")
    assert (
        rows["opt-30b-q4-g32", "ptb"]["labels"] == "Model=OPT-30B; q=4; g=32; Method=Uniform (RTN)"
    )
    assert rows["opt-30b-q4-g32", "ptb"]["stand_in"] == "True"


# ---- Markdown ----


def test_markdown_tables_hold_every_cell(written: dict[str, bytes]) -> None:
    text = written["table.md"].decode()
    layout = lay_out(example_table())
    lines = [line for line in text.splitlines() if line.startswith("|")]
    rows = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    main = rows[2 : 2 + len(example_table().rows)]
    expected = [
        [
            *line.labels,
            line.model,
            *texts(layout.main, line),
        ]
        for block in layout.main.blocks
        for line in block.lines
    ]
    assert main == expected
    assert "Wiki2 (ppl) ours: pydocs/library" in rows[0]
    assert all(cell for row in rows for cell in row), "no blank cell"
    assert r"50% of rows \<_NaN_\> & {more}" in text
    assert "✗ ours 11 hold, 1 fails, 0 below noise — fails: OPT-66B q3: PTB" in text


# ---- LaTeX ----


def test_a_page_says_where_a_real_model_and_a_stand_in_differ() -> None:
    table = example_table()
    first, second = table.claims
    kept = dataclasses.replace(first, measured=(12, 12), failing=())
    real = dataclasses.replace(table, scale="real", claims=(kept, second))
    page = render_variants({"embedded": lay_out(table), "real": lay_out(real)}, (), {})
    assert "- ✓ on real, ✗ on embedded: A smaller group has lower perplexity" in page
    assert page.count(" on embedded: ") == 1  # nobody decides the second claim
    same = render_variants({"embedded": lay_out(table), "real": lay_out(table)}, (), {})
    assert "Believe" in page
    assert "Believe" not in same


def test_latex_escapes_what_latex_reads() -> None:
    assert escape(r"a_b & 50% #1 $x$ {y} ~ ^ \z <p>") == (
        r"a\_b \& 50\% \#1 \$x\$ \{y\} \textasciitilde{} \textasciicircum{} \textbackslash{}z "
        r"\textless{}p\textgreater{}"
    )
    assert escape("1.2 † ≈ ² 漢") == (r"1.2 \dag{} $\approx$ \textsuperscript{2} {[}U+6F22]")
    assert escape("[a] *b") == "{[}a] {*}b"


def test_latex_structure(written: dict[str, bytes]) -> None:
    text = written["table.tex"].decode()
    assert text.isascii(), "pdflatex prints every character"
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
    for rule in (r"\toprule", r"\bottomrule"):
        assert text.count(rule) == 2
    assert r"\texttt" not in text
    assert r"RuntimeError: 50\% of rows \textless{}\_NaN\_\textgreater{} \& \{more\}" in text
    tabular = text[text.index(r"\begin{tabular}{") :]
    columns = len(re.match(r"\\begin\{tabular\}\{([lr]+)\}", tabular).group(1))
    layout = lay_out(example_table())
    for block in layout.main.blocks:
        for line in block.lines:
            row = " & ".join(map(escape, [*line.labels[1:], *texts(layout.main, line)])) + r" \\"
            assert row in text
            assert row.count(" & ") == columns - 1


@pytest.mark.parametrize("how", ["alone", "input"])
def test_latex_compiles(written: dict[str, bytes], tmp_path: Path, how: str) -> None:
    compiler = shutil.which("pdflatex") or shutil.which("tectonic")
    if not compiler:
        pytest.skip("neither pdflatex nor tectonic is installed")
    (tmp_path / "table.tex").write_bytes(written["table.tex"])
    (tmp_path / "paper.tex").write_text(
        "\\documentclass{article}\\usepackage{booktabs,amssymb,graphicx}\n"
        "\\begin{document}\\input{table.tex} after\\end{document}\n"
    )
    source = "table.tex" if how == "alone" else "paper.tex"
    options = ["-interaction=nonstopmode", "-halt-on-error"] if "pdflatex" in compiler else []
    done = subprocess.run(
        [compiler, *options, source],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / source).with_suffix(".pdf").stat().st_size > 10_000


# ---- HTML ----


class Page(HTMLParser):
    """Cells by (row, column), all links, and whether tags are balanced."""

    VOID = ("meta", "br", "link", "img", "use", "path")

    def __init__(self) -> None:
        super().__init__()
        self.cells: dict[tuple[str, str], list[str]] = {}
        self.fetched: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self._cell: list[str] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        fetching = {"src", "href", "xlink:href", "srcset", "data", "action"}
        self.fetched += [v for k, v in values.items() if k in fetching and not v.startswith("#")]
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "td":
            self._cell = self.cells.setdefault((values["data-row"], values["data-column"]), [])
            self._cell.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag
        if tag == "td":
            self._cell = None

    def handle_data(self, data: str) -> None:
        self.text += data
        if self._cell is not None:
            self._cell[-1] += data


def parse(html: bytes) -> Page:
    page = Page()
    page.feed(html.decode())
    page.close()
    assert page.open == []
    return page


def test_html_holds_every_cell_and_fetches_nothing(written: dict[str, bytes]) -> None:
    page = parse(written["table.html"])
    layout = lay_out(example_table())
    expected = {
        key: [t.replace(" ", "") for t in texts] for key, texts in cells(layout.main).items()
    }
    expected |= {key: texts[:1] for key, texts in cells(layout.reference).items()}
    assert {
        key: [t.replace(" ", "") for t in texts] for key, texts in page.cells.items()
    } == expected
    assert page.fetched == []
    style = written["table.html"].decode()
    assert "@import" not in style
    assert "url(http" not in style
    assert "prefers-color-scheme: dark" in style
    for text in (*layout.legend, *layout.footnotes, *layout.reasons, *layout.notes):
        assert text in page.text
    assert "50% of rows &lt;_NaN_&gt; &amp; {more}" in style


def test_html_shows_the_difference_where_numbers_are_comparable(tmp_path: Path) -> None:
    write_report(comparable(example_table()), tmp_path)
    page = parse((tmp_path / "table.html").read_bytes())
    assert page.cells["opt-30b-q16-g–", "wiki2"][1].startswith("+329.6 %")


def comparable(table: ResultTable) -> ResultTable:
    """The same numbers as if measured on the paper's own models."""
    rows = []
    for row in table.rows:
        changed = {
            key: dataclasses.replace(cell, verdict="deviates", note="")
            if cell.verdict == "stand-in"
            else cell
            for key, cell in row.cells.items()
        }
        rows.append(
            dataclasses.replace(row, model=row.labels["Model"], stand_in=False, cells=changed)
        )
    return dataclasses.replace(table, rows=tuple(rows))
