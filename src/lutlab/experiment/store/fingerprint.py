"""Fingerprints of sources that only a change of what is computed moves: names of files, comments and the like do not.

    Python        the syntax tree without docstrings, comments, imports, logged messages and the texts of errors
    C and CUDA    the text without comments (jinja's, too), runs of blanks as one

The tree is written down by this file, not by ast.dump, whose output differs between versions of Python: a fingerprint
is part of the ids of speeds, and is kept in a file that every developer's Python reads.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from collections.abc import Collection, Iterable
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2]
# Fields that say nothing of what is computed, or that only some versions of Python have.
_SILENT = {"ctx", "kind", "type_comment", "type_ignores"}
_TEXTS_AND_COMMENTS = re.compile(
    r"""(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|//[^\n]*|/\*.*?\*/|\{\#.*?\#\}""",
    re.DOTALL,
)


def fingerprint(files: Iterable[Path], data: str = "") -> str:
    """16 hex digits of some sources, in any order and under any names; data: what else counts."""
    digests = sorted(hashlib.sha256(_plain(path).encode()).hexdigest() for path in set(files))
    return hashlib.sha256("\n".join([*digests, data]).encode()).hexdigest()[:16]


@functools.cache
def _plain(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    return plain_python(text) if path.suffix == ".py" else plain_c(text)


def plain_python(text: str) -> str:
    """The normal form of a module's source."""
    return _written(ast.parse(text))


def plain_c(text: str) -> str:
    """The normal form of C, CUDA, or a template of them; lines stay, as the preprocessor reads them."""
    text = _TEXTS_AND_COMMENTS.sub(lambda match: match["text"] or " ", text)
    return re.sub(r"\s*\n\s*", "\n", re.sub(r"[ \t]+", " ", text)).strip()


def _written(node: object) -> str:
    if isinstance(node, list):
        return f"[{' '.join(_written(item) for item in node if not _says_nothing(item))}]"
    if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
        node = ast.Raise(exc=node.exc.func)  # the message goes, the condition stays where it is
    if isinstance(node, ast.Constant):
        return f"({type(node.value).__name__} {node.value!r})"
    if isinstance(node, ast.AST):
        fields = (
            f"{name}={_written(value)}"
            for name, value in ast.iter_fields(node)
            if name not in _SILENT and value is not None and value != []
        )
        return f"{type(node).__name__}({' '.join(fields)})"
    return repr(node)


def _says_nothing(node: object) -> bool:
    """Whether a statement is an import, a docstring, a log's line, or what only type checkers read."""
    if isinstance(node, ast.If):
        return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        caller = node.value.func
        return (
            isinstance(caller, ast.Attribute)
            and isinstance(caller.value, ast.Name)
            and caller.value.id == "log"
        )
    docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return docstring or isinstance(node, ast.Import | ast.ImportFrom)


def with_imports(
    roots: Iterable[Path], rooms: Collection[str], package: Path = PACKAGE
) -> set[Path]:
    """Sources, and all below some rooms that they import, directly or not, inside functions included.

    Rooms are folders and modules of the package, as `quantizers` or `base.groups`.
    """
    files, waiting = set(), set(roots)
    while waiting:
        path = waiting.pop()
        files.add(path)
        waiting |= _imports(path, frozenset(rooms), package) - files
    return files


@functools.cache
def _imports(path: Path, rooms: frozenset[str], package: Path) -> frozenset[Path]:
    names = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    files = set()
    for head, *inside in (name.split(".") for name in names):
        if head == package.name and {".".join(inside[:1]), ".".join(inside[:2])} & rooms:
            target = package.joinpath(*inside)
            files.add(target / "__init__.py" if target.is_dir() else target.with_suffix(".py"))
    return frozenset(filter(Path.exists, files))
