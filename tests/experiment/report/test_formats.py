"""Files: each parsed back and compared with the table; the same table gives the same bytes. The terminal: fits."""

import csv
import io
import re
import shutil
import subprocess
from collections import Counter
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console
from tests.experiment.report.example import Page, comparable, entries, example_table

from lutlab.experiment.report import print_table, write_report
from lutlab.experiment.report.latex import escape
from lutlab.experiment.report.layout import break_lines, lay_out
from lutlab.experiment.report.markdown import render, render_variants

FILES = ["table.md", "table.csv", "table.tex", "table.html", "figure.svg", "figure.png"]
FETCHING = ("src", "href", "xlink:href", "srcset", "data", "action")
LAYOUT = lay_out(example_table())
LINES = [line for block in LAYOUT.main.blocks for line in block.lines]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    paths = write_report(example_table(), tmp_path_factory.mktemp("report") / "new" / "folder")
    assert [path.name for path in paths] == [*FILES, "SHA256SUMS"]
    assert {*paths[0].parent.iterdir()} == {*paths}, "no partial files"
    return {path.name: path.read_bytes() for path in paths}


def test_twice_the_same_bytes(written, tmp_path):
    again = {path.name: path.read_bytes() for path in write_report(example_table(), tmp_path)}
    assert again == written


def texts(grid):
    """(row, column) -> published and measured text, as they must appear."""
    printed = {head.key: bool(head.paper) for head in grid.heads}
    return {
        at: [entry.paper] * printed[at[1]] + [entry.ours_text]
        for at, entry in entries(grid).items()
    }


def row_texts(line):
    return [text for at, own in texts(LAYOUT.main).items() if at[0] == line.key for text in own]


def test_csv_holds_every_cell_unrounded(written):
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
            for field in ("published", "measured", "verdict", "note", "cell_id"):
                value = getattr(cell, field)
                assert rows[row.key, key][field] == ("" if value is None else str(value))
    stored = rows["opt-30b-q4-g32", "ptb"]
    assert stored["labels"] == "Model=OPT-30B; q=4; g=32; Method=Uniform (RTN)"
    assert stored["stand_in"] == "True"


def test_markdown_tables_hold_every_cell(written):
    text = written["table.md"].decode()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert max(map(len, lines)) <= 160
    rows = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert all(cell for row in rows for cell in row), "no blank cell"
    assert "Wiki2 (ppl) ours: pydocs/library" in rows[0]
    parts = [rows[i : i + 2 + len(LINES)] for i in range(0, len(rows), 2 + len(LINES))]
    mains = [part[2:] for part in parts if any("ours" in head for head in part[0])]
    for i, line in enumerate(LINES):
        labels = (*line.labels, line.model)
        assert mains[0][i][: len(labels)] == [*labels]
        shown = [cell for main in mains for cell in main[i]]
        assert not Counter([*labels, *row_texts(line)]) - Counter(shown)
    assert r"50% of rows \<_NaN_\> & {more}" in text
    assert "✗ ours 11 hold, 1 fails, 0 below noise — fails: OPT-66B q3: PTB" in text


def test_a_label_too_long_for_a_line_stands_in_a_list():
    table, long = example_table(), "layers=" + "x" * 180
    rows = [replace(row, labels={**row.labels, "Ours": long}) for row in table.rows]
    text = render(lay_out(replace(table, rows=tuple(rows))))
    lines = text.splitlines()
    assert max(len(line) for line in lines if line.startswith("|")) <= 160
    assert any(line.endswith(f": Ours {long}") for line in lines if line.startswith("- OPT"))


def test_a_page_says_where_a_real_model_and_a_stand_in_differ():
    table = example_table()
    first, second = table.claims
    kept = replace(first, measured=(12, 12), failing=())
    real = replace(table, scale="real", claims=(kept, second))
    page = render_variants({"embedded": LAYOUT, "real": lay_out(real)}, (), {})
    assert "- ✓ on real, ✗ on embedded: A smaller group has lower perplexity" in page
    assert page.count(" on embedded: ") == 1  # nobody decides the second claim
    same = render_variants({"embedded": LAYOUT, "real": LAYOUT}, (), {})
    assert "Believe" in page
    assert "Believe" not in same


@pytest.mark.parametrize(("text", "escaped"), [
    (r"a_b & 50% #1 $x$ {y}", r"a\_b \& 50\% \#1 \$x\$ \{y\}"),
    (r"~ ^ \z <p>", r"\textasciitilde{} \textasciicircum{} \textbackslash{}z \textless{}p\textgreater{}"),
    ("1.2 † ≈ ² 漢", r"1.2 \dag{} $\approx$ \textsuperscript{2} {[}U+6F22]"),
    ("[a] *b", "{[}a] {*}b"),
])  # fmt: skip
def test_latex_escapes_what_latex_reads(text, escaped):
    assert escape(text) == escaped


def test_latex_structure(written):
    text = written["table.tex"].decode()
    assert text.isascii(), "pdflatex prints every character"
    for part in (r"\begin{tabular}", r"\end{tabular}", r"\toprule", r"\bottomrule"):
        assert text.count(part) == 2
    assert r"\texttt" not in text
    assert r"RuntimeError: 50\% of rows \textless{}\_NaN\_\textgreater{} \& \{more\}" in text
    columns = len(re.search(r"\\begin\{tabular\}\{([lr]+)\}", text)[1])
    for line in LINES:
        row = " & ".join(map(escape, [*line.labels[1:], *row_texts(line)])) + r" \\"
        assert row in text
        assert row.count(" & ") == columns - 1


@pytest.mark.parametrize("source", ["table", "paper"])
def test_latex_compiles(written, tmp_path, source):
    """Alone, and as the input of a paper."""
    compiler = shutil.which("pdflatex") or shutil.which("tectonic")
    if not compiler:
        pytest.skip("neither pdflatex nor tectonic is installed")
    (tmp_path / "table.tex").write_bytes(written["table.tex"])
    (tmp_path / "paper.tex").write_text(
        "\\documentclass{article}\\usepackage{booktabs,amssymb,graphicx}\n"
        "\\begin{document}\\input{table.tex} after\\end{document}\n"
    )
    options = ["-interaction=nonstopmode", "-halt-on-error"] if "pdflatex" in compiler else []
    line = [compiler, *options, f"{source}.tex"]
    streams = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True}
    done = subprocess.run(line, cwd=tmp_path, timeout=120, **streams)
    assert done.returncode == 0, done.stdout[-2000:]
    assert (tmp_path / f"{source}.pdf").stat().st_size > 10_000


def test_html_holds_every_cell_and_fetches_nothing(written):
    text = written["table.html"].decode()
    page = Page(text)
    expected = texts(LAYOUT.main)
    expected |= {at: own[:1] for at, own in texts(LAYOUT.reference).items()}
    assert {at: [text.replace(" ", "") for text in own] for at, own in page.cells.items()} == {
        at: [text.replace(" ", "") for text in own] for at, own in expected.items()
    }
    links = [link for _, values in page.tags for link in map(values.get, FETCHING) if link]
    assert [link for link in links if not link.startswith("#")] == []
    assert "@import" not in text
    assert "url(http" not in text
    assert "prefers-color-scheme: dark" in text
    for words in (*LAYOUT.legend, *LAYOUT.footnotes, *LAYOUT.reasons, *LAYOUT.notes):
        assert words in page.text
    assert "50% of rows &lt;_NaN_&gt; &amp; {more}" in text


def test_html_shows_the_difference_where_numbers_are_comparable(tmp_path):
    write_report(comparable(example_table()), tmp_path)
    page = Page((tmp_path / "table.html").read_text(encoding="utf-8"))
    assert page.cells["opt-30b-q16-g–", "wiki2"][1].startswith("+329.6 %")


def printed(table, width):
    """What a terminal shows, which is never wider."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    print_table(table, console)
    text = console.file.getvalue()
    assert max(map(cell_len, text.splitlines())) <= width
    return text


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_fits_and_is_complete(width):
    text = printed(example_table(), width)
    main, reference = entries(LAYOUT.main).values(), entries(LAYOUT.reference).values()
    words = [entry.paper for entry in (*main, *reference)] + [entry.ours_text for entry in main]
    words += ["ours: opt-embedded-s (stand-in)", "† stand-in", "¹ failed: RuntimeError", "pydocs"]
    assert [word for word in words if word not in text] == []
    assert text.count("needs an NVIDIA GPU") == 1
    assert "✓ paper 12/12 · ✗ ours 11 hold, 1 fails, 0 below noise" in " ".join(text.split())


@pytest.mark.parametrize("width", [80, 100])
def test_four_measured_columns_stand_in_one_table(width):
    text = printed(example_table(), width)
    assert text.count("OPT-66B · ours") == 1
    row = next(line for line in text.splitlines() if "41.93 †" in line)
    assert all(number in row for number in ("9.71", "89.77 †", "16.16", "56.10 †", "4.625"))


def test_numbers_of_a_column_are_aligned():
    lines = printed(example_table(), 100).splitlines()
    starts = {line.index(n) for line in lines for n in ("41.07 †", "57.25 †") if n in line}
    assert len(starts) == 1


def test_a_sweep_without_a_paper_prints():
    table = example_table()
    columns = tuple(c for c in table.columns if not c.published)
    text = printed(replace(table, columns=columns, claims=(), citation="", notes=()), 80)
    assert "4.625" in text
    assert not any(word in text for word in ("Claims", "Published", "paper"))


@pytest.mark.parametrize(("head", "width", "lines"), [
    ("ours: lambada-joined [inferred]", 12, ("ours:", "lambada-", "joined", "[inferred]")),
    ("last word (accuracy)", 4, ("last word", "(accuracy)")),
    ("a" * 20, 4, ("a" * 14, "a" * 6)),
])  # fmt: skip
def test_heads_break_after_separators_and_long_words_are_cut(head, width, lines):
    assert break_lines(head, width) == lines


@pytest.mark.parametrize(
    ("width", "proportion", "shown"),
    [(160, False, True), (60, False, False), (60, True, True)],
)
def test_errors_stand_where_they_fit_and_always_beside_accuracies(width, proportion, shown):
    table = example_table()
    columns = [replace(c, proportion=proportion and c.key == "lambada") for c in table.columns]
    rows = []
    for row in table.rows:
        cell = replace(row.cells["lambada"], n=176, shares={"text": (0.031,)})
        rows.append(replace(row, cells={**row.cells, "lambada": cell}))
    text = printed(replace(table, rows=tuple(rows), columns=tuple(columns)), width)
    assert ("57.02 ± 0.03 †" in text) == shown
    assert ("n=176" in text) == proportion
