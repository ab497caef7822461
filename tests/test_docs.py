"""The documentation builds strictly and offline, and a reader finds in it what lutlab has."""

import html
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from tests import pages, warm
from tests.conftest import ROOT

import lutlab
from lutlab.experiment.artifact.catalog import artifact_groups
from tools import figures

# What a browser would load: tags that bring something with them, and styles.
LOADS = re.compile(
    r"""<(?:link|script|img|iframe|source|use|object)\b[^>]*?(?:src|href|data)=["']?(?:https?:)?//[^\s"'>]*"""
    r"""|url\(["']?(?:https?:)?//[^)]*|@import[^;]*"""
)
# For which the theme would load a library from elsewhere.
NEEDS_A_LIBRARY = re.compile(r'class="[^"]*\b(mermaid|glightbox|pyodide)\b')
SNIPPET = re.compile(r'--8<-- "([^":]+)(?::([a-z]+))?"')
# A line of a page that shows something, however a formatter has spaced it.
SHOWS = re.compile(r"^\s*-\s*-\s*8\s*<.*$", re.MULTILINE)


def read(path):
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """`make docs`, by one process at a time; a link or a snippet that leads nowhere is an error."""
    with FileLock(tmp_path_factory.getbasetemp().parent / "site.lock"):
        for command in (["tools.gallery"], ["zensical", "build", "--strict"]):
            line = [sys.executable, "-m", *command]
            done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
        yield ROOT / "site"


def shown(page):
    """File and part of each snippet of a page; a line that is no well-formed one is an error."""
    snippets = {line: SNIPPET.fullmatch(line.strip()) for line in SHOWS.findall(page)}
    assert all(snippets.values()), f"not a snippet: {snippets}"
    return [match.groups() for match in snippets.values()]


def test_every_snippet_of_a_page_is_there():
    snippets = [snippet for page in (ROOT / "docs").rglob("*.md") for snippet in shown(read(page))]
    assert snippets
    for path, part in snippets:
        text = read(ROOT / path)
        if part:
            block = rf"--8<-- \[start:{part}\][^\n]*\n(.*?)--8<-- \[end:{part}\]"
            (shown_part,) = re.findall(block, text, re.DOTALL)
            assert shown_part.count("\n") > 2, f"{path}:{part}"
    with pytest.raises(AssertionError, match="not a snippet"):
        shown('--8 < --"results/README.md:layout"\n')


# A block of these trains, starts processes or reads all that is published.
LONG = {f"docs/{n}.md" for n in ("cookbook", "how-to/parallel", "how-to/records", "how-to/tune")}
RUN = [
    pytest.param(page, marks=pytest.mark.slow if page in LONG else ())
    for page in pages.PAGES
    if pages.blocks_of(page)
]


@pytest.mark.parametrize("page", RUN)
def test_every_block_runs_as_it_stands(page, tmp_path):
    done = warm.run(Path(pages.__file__), page, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("line", [
    "lutlab metho=rtn q=3  # a comment",
    "python run.py +exp=table4 evaluate=[ppl:wikitext2]",
    "lutlab +exp=table4 && lutlab plugins=no_such_module",
    "lutlab results sho 0123",
    "make tset",
    "pip install 'lutlab[gup]'",
])  # fmt: skip
def test_a_wrong_line_of_a_page_is_found(line):
    with pytest.raises((AssertionError, SystemExit)):
        any(map(pages.check, pages.commands(line)))


@pytest.mark.slow
def test_every_figure_is_shown_and_is_that_of_the_records():
    """Compared by its words and numbers: where a line ends in its sixth digit, instruction sets differ."""
    text = re.compile(r"<text[^>]*>([^<]*)<")
    names = re.findall(r"figures/(\w+)\.svg", "".join(read(ROOT / page) for page in pages.PAGES))
    assert {*names} == figures.DRAWN.keys()
    assert len({*names}) > 5
    for name, draw in figures.DRAWN.items():
        words = text.findall(figures.svg(draw).decode())
        assert len(words) > 5
        committed = read(ROOT / figures.FIGURES / f"{name}.svg")
        assert words == text.findall(committed), f"{name}: make report"


@pytest.mark.slow
def test_a_page_loads_nothing_from_elsewhere(site):
    paths = [*site.rglob("*.html"), *site.rglob("*.css")]
    assert len(paths) > 60
    for path in paths:
        text = read(path)
        assert LOADS.findall(text) == [], path
        assert NEEDS_A_LIBRARY.findall(text) == [], path
        assert "--8<--" not in text, path


@pytest.mark.slow
def test_links_lead_somewhere(site):
    """Strict mode looks at the pages' own links; not at those of what a page shows from a README."""
    texts = {page: read(page) for page in site.rglob("*.html")}
    anchors = {
        page: {*re.findall(r'\b(?:id|name)="?([^"\s>]+)', text), ""} for page, text in texts.items()
    }
    for page in texts.keys() - {site / "404.html"}:  # served at any depth
        for link in re.findall(r'<a [^>]*?href="([^"]*)"', texts[page]):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = html.unescape(link).partition("#")
            target = Path(os.path.normpath(page.parent / path)) if path else page
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{page}: {link}"
            assert target not in anchors or anchor in anchors[target], f"{page}: {link}"


@pytest.mark.slow
def test_what_is_public_is_in_the_reference(site):
    reference = "".join(map(read, site.glob("reference/*.html")))
    public = [f"{lutlab._HOME[name]}.{name}" for name in lutlab.__all__]
    assert [name for name in public if f'id="{name}"' not in reference] == []


@pytest.mark.slow
def test_the_gallery_has_every_artifact_and_every_published_page(site):
    index = read(site / "artifacts" / "index.html")
    for name in artifact_groups()["all"]:
        assert f"+exp={name.removeprefix('lut-gemm-v3/')}</code>" in index
    published = ROOT / "results" / "published"
    folders = [path.relative_to(published).parent for path in published.glob("*/*/*/table.md")]
    assert folders
    for folder in folders:
        assert f'href="{folder.as_posix()}.html"' in index
        assert (site / "artifacts" / f"{folder.as_posix()}.html").is_file()


def test_the_search_would_find_what_is_loaded():
    for text in (
        '<script async src="https://example.org/x.js">',
        "<link rel=stylesheet href=//fonts.example/css>",
        "@import 'a.css';",
        "background: url('https://example.org/a.png')",
    ):
        assert LOADS.search(text), text
    assert not LOADS.search('<a href="https://example.org">')
