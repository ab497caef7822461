"""Imports go one way: a file imports only from layers to its left; siblings never import each other."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "lutlab"
LAYERS = [
    {"errors", "registration"},
    {"atomic"},
    {"registry", "records", "groups", "pareto", "outcome"},
    {"config", "widths"},
    {"tables", "data", "models", "allocate"},
    {"sweeping", "claims"},
    {"errata"},
    {"quantizers"},
    {"formats"},
    {"codegen"},
    {"timing", "energy"},
    {"kernels"},
    {"modules"},
    {"hf"},
    {"saving"},
    {"export"},
    {"calibrate", "rescale", "checkpoints"},
    {"apply"},
    {"sensitivity"},
    {"api"},
    {"evaluators"},
    {"provenance"},
    {"results", "machine"},
    {"plan"},
    {"cost", "compare"},
    {"report", "progress"},
    {"tracking"},
    {"planview"},
    {"prepare"},
    {"cli"},
    {"pipeline"},
    {"train_embedded"},
    {"export_embedded"},
]
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}


def _layer(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def _imports(path: Path) -> set[str]:
    """Top-level lutlab modules that a file imports at run time, inside functions included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lutlab"):
            below = node.module.split(".")[1:2]
            found.update(below or [alias.name for alias in node.names])
        elif isinstance(node, ast.Import):
            found.update(a.name.split(".")[1] for a in node.names if a.name.startswith("lutlab."))
    return found


def test_every_file_has_a_layer() -> None:
    assert {_layer(p) for p in SOURCE.rglob("*.py")} - {"__init__"} == set(RANK)


def test_imports_go_one_way() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)} imports {target}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.parent != SOURCE or path.name != "__init__.py"
        for target in sorted(_imports(path) - {_layer(path)})
        if RANK[target] >= RANK[_layer(path)]
    ]
    assert wrong == []


def test_house_rules() -> None:
    files = list(SOURCE.rglob("*.py"))
    assert not [p for p in files if p.stem in ("utils", "common", "helpers")]
    too_long = {p.name: n for p in files if (n := len(p.read_text().splitlines())) > 340}
    assert too_long == {}


def test_run_py_is_short_and_has_no_logic() -> None:
    lines = (SOURCE.parents[1] / "run.py").read_text().splitlines()
    assert len(lines) <= 40
