"""Python's own documentation as English text: present with every interpreter, so nothing is downloaded or shipped.

Two sources: `pydoc_data.topics` (the language reference, one document a topic) and the docstrings of the standard
library (one document a top-level module, read with `ast`, never imported). A hash of the topic's or module's *name*
puts a document in one of three buckets, the same on every Python version:

    0..11   held out: the slices `topics` and `docstrings`
    12..39  held out: the slice `passages` (prose whose last word must be predicted, as in LAMBADA)
    40..99  training text of the embedded models

Topics quote one another (`compound` contains `for`), so a training paragraph that shares 13 consecutive words with
any held-out document is dropped: nothing evaluated was trained on.
"""

from __future__ import annotations

import ast
import functools
import gc
import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from lutlab.base.errors import LutlabError
from lutlab.base.kept.findings import recall

SLICES = ("topics", "docstrings", "passages")
OVERLAP_WORDS = 13  # the overlap window of the GPT-3 paper's contamination study, appendix C
_SKIPPED_FOLDERS = {
    "test", "tests", "site-packages", "dist-packages", "__pycache__", "_vendor", "idle_test",
}  # fmt: skip
_BUCKETS = ((12, "heldout"), (40, "passages"), (100, "train"))  # upper percent of each, exclusive
_PASSAGE_WORDS = range(16, 121)
# Where a definition can stand.
_STATEMENT_LISTS = ("body", "cases", "handlers", "orelse", "finalbody")


def bucket(name: str) -> str:
    """Return 'heldout', 'passages' or 'train' for a topic or module name; `_pydatetime` counts as `datetime`."""
    stem = re.sub(r"^_(py)?", "", name.lower())
    percent = int(hashlib.sha256(stem.encode()).hexdigest()[:8], 16) % 100
    return next(label for upper, label in _BUCKETS if percent < upper)


@functools.cache
def topics() -> dict[str, str]:
    """Topic name -> text, in sorted order."""
    try:
        from pydoc_data.topics import topics as texts
    except ImportError as error:
        raise LutlabError(
            "this Python lacks pydoc_data.topics, the text evaluated at scale=embedded; install the full standard "
            "library (Debian: libpython3-stdlib) or evaluate on files with data.root=<folder>"
        ) from error
    return dict(sorted(texts.items()))


@functools.cache
def docstrings() -> dict[str, tuple[str, ...]]:
    """Top-level standard-library module -> its docstrings in source order; a text met before is not repeated.

    Parsing takes seconds, so they are kept by a hash of the sources, of this file and of the Python that parses.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    sources = {path.relative_to(root).as_posix(): path.read_bytes() for path in _sources(root)}
    deciding = [sys.version.encode(), Path(__file__).read_bytes()]
    for name, source in sources.items():
        deciding += [name.encode(), source]
    by_module = recall("pydocs", deciding, lambda: _docstrings(sources))
    if not by_module:
        raise LutlabError(
            f"no standard-library sources under {root}; the embedded text needs them: use a Python whose library is "
            "a folder of .py files, or evaluate on files with data.root=<folder>"
        )
    return {name: tuple(texts) for name, texts in by_module.items()}


def _docstrings(sources: Mapping[str, bytes]) -> dict[str, list[str]]:
    """Top-level module -> docstrings; sources: relative path -> content, in order."""
    by_module: dict[str, list[str]] = {}
    seen: set[str] = set()
    collecting = gc.isenabled()
    gc.disable()  # a syntax tree is freed by reference counts; collecting meanwhile doubles the time
    try:
        for path, source in sources.items():
            for text in _docstrings_in(source):
                if text not in seen:
                    seen.add(text)
                    by_module.setdefault(path.partition("/")[0].removesuffix(".py"), []).append(
                        text
                    )
    finally:
        if collecting:
            gc.enable()
    return by_module


def _sources(root: Path) -> list[Path]:
    """The library's .py files in sorted order; skipped folders are not even listed."""
    paths: list[Path] = []
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [
            name
            for name in subfolders
            if name not in _SKIPPED_FOLDERS
            and not (folder == str(root) and name.startswith("config-"))
        ]
        paths += [Path(folder, name) for name in files if name.endswith(".py")]
    return sorted(paths)


def _docstrings_in(source: bytes) -> Iterator[str]:
    """Docstrings in the order of `ast.walk`, whose nine tenths, the expressions, define nothing."""
    try:
        nodes: list[ast.AST] = [ast.parse(source)]
    except SyntaxError:  # the library ships a few files that are templates or deliberately wrong
        return
    for node in nodes:  # grows while it is walked: breadth first
        if isinstance(
            node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        ) and (text := ast.get_docstring(node)):
            yield text
        for field in _STATEMENT_LISTS:
            nodes.extend(getattr(node, field, ()))


def heldout(slice_name: str) -> list[str]:
    """The held-out items of a slice: whole topics, single docstrings, or passages.

    Raises:
        LutlabError: this Python ships no documentation.
    """
    if slice_name == "topics":
        return documents("topics", "heldout")
    if slice_name == "docstrings":
        return [
            text
            for name, texts in docstrings().items()
            if bucket(name) == "heldout"
            for text in texts
        ]
    return list(_passages(_bucket_texts("passages")))


def train_documents(genre: str | None = None) -> list[str]:
    """Training documents of a genre, None: of both: the train bucket, less every paragraph that overlaps a held-out
    document.
    """
    evaluated = shingles([*_bucket_texts("heldout"), *_bucket_texts("passages")])
    texts = _bucket_texts("train") if genre is None else documents(genre, "train")
    return [rest for text in texts if (rest := without_overlap(text, evaluated))]


def documents(genre: str, label: str) -> list[str]:
    """The documents of a bucket, of a genre: `topics`, or `docstrings`, those of a module as one document."""
    if genre == "topics":
        return [text for name, text in topics().items() if bucket(name) == label]
    return ["\n\n".join(texts) for name, texts in docstrings().items() if bucket(name) == label]


def _bucket_texts(label: str) -> list[str]:
    return [*documents("topics", label), *documents("docstrings", label)]


def _passages(texts: Iterable[str]) -> Iterator[str]:
    """The longest run of whole sentences of each paragraph that makes a passage, without its final full stop."""
    seen: set[str] = set()
    for paragraph in (p for text in texts for p in re.split(r"\n\s*\n", text)):
        prose = " ".join(paragraph.split())
        ends = [match.start() for match in re.finditer(r"\.(?= |$)", prose)]
        passage = next((prose[:end] for end in reversed(ends) if _is_passage(prose[:end])), None)
        if passage and passage not in seen:
            seen.add(passage)
            yield passage


def _is_passage(prose: str) -> bool:
    """16-120 words in two or more sentences whose last word stands earlier too, as LAMBADA's mostly do."""
    words = prose.split(" ")
    return (
        len(words) in _PASSAGE_WORDS
        and prose[0].isupper()
        and ". " in prose
        and re.fullmatch(r"[a-z]{3,}", words[-1]) is not None
        and words[-1] in re.findall(r"[a-z]+", " ".join(words[:-1]).lower())
    )


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def shingles(texts: Iterable[str]) -> set[int]:
    """Hashes of every run of 13 lower-case words in `texts`."""
    hashes: set[int] = set()
    for text in texts:
        words = _words(text)
        hashes.update(
            hash(tuple(words[i : i + OVERLAP_WORDS])) for i in range(len(words) - OVERLAP_WORDS + 1)
        )
    return hashes


def without_overlap(text: str, evaluated: set[int]) -> str:
    """Drop the paragraphs of `text` that share 13 consecutive words with the held-out shingles `evaluated`."""
    paragraphs = re.split(r"\n(?:[ \t]*\n)+", text)
    return "\n\n".join(p for p in paragraphs if evaluated.isdisjoint(shingles([p])))
