"""Imports go one way: a folder imports only from folders to its left, and the library never from the experiment."""

from __future__ import annotations

import ast
import graphlib
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "lutlab"
# The order of the folders; `experiment` has an order of its own. A string is a floor: its rooms do not know each other.
FLOORS = [
    "errors",
    "atomic caches groups registry sources specs tensors",
    "data models quantizers formats",
    "kernels",
    "modules measure",
    "checkpoint",
    "compress",
    "api evaluators",
    "embedded",
]
EXPERIMENT = ["store", "artifact", "plan", "report", "run"]
RANK = {room: rank for rank, floor in enumerate(FLOORS) for room in floor.split()}
RANK |= {f"experiment.{room}": len(FLOORS) + rank for rank, room in enumerate(EXPERIMENT)}
RANK["__main__"] = len(RANK)  # `python -m lutlab`: the roof of both storeys
FRAMEWORKS = {"hydra", "omegaconf", "wandb"}


def room_of(module: str) -> str:
    """lutlab.kernels.cpu.linear -> kernels; lutlab.experiment.plan.plan -> experiment.plan."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2] if parts[:1] == ["experiment"] else parts[:1])


def module_of(path: Path) -> str:
    """The dotted name of a source file."""
    return ".".join(("lutlab", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
        ".__init__"
    )


def imports(path: Path) -> set[str]:
    """Modules that a file imports at run time, those inside functions included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for child in ast.walk(statement)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found.update(name if _is_module(name) else node.module for name in names)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found


def _is_module(name: str) -> bool:
    path = SOURCE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


FILES = {module_of(path): imports(path) for path in SOURCE.rglob("*.py")}


def test_every_room_is_in_the_house() -> None:
    assert {room_of(module) for module in FILES} - {"", "experiment"} == set(RANK)


def test_folders_import_from_folders_to_their_left() -> None:
    wrong = [
        f"{module} imports {target}"
        for module, targets in sorted(FILES.items())
        for target in sorted(targets)
        if room_of(module) and target.startswith("lutlab.") and room_of(target) != room_of(module)
        if RANK[room_of(target)] >= RANK[room_of(module)]
    ]
    assert wrong == []


def test_the_library_knows_neither_the_experiment_nor_its_frameworks() -> None:
    wrong = [
        f"{module} imports {target}"
        for module, targets in sorted(FILES.items())
        for target in sorted(targets)
        if not module.startswith("lutlab.experiment") and module != "lutlab.__main__"
        if target.startswith("lutlab.experiment") or target.partition(".")[0] in FRAMEWORKS
    ]
    assert wrong == []


def test_no_file_needs_itself_on_the_way() -> None:
    """Siblings may import each other, in one direction: there is an order in which all files can be read."""
    graph = {module: targets & FILES.keys() - {module} for module, targets in FILES.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the files


def test_house_rules() -> None:
    files = list(SOURCE.rglob("*.py"))
    assert not [p for p in files if p.stem in ("utils", "common", "helpers")]
    too_long = {p.name: n for p in files if (n := len(p.read_text().splitlines())) > 340}
    assert too_long == {}


@pytest.mark.parametrize("entry", [SOURCE.parents[1] / "run.py", SOURCE / "__main__.py"])
def test_the_entries_are_short_and_have_no_logic(entry: Path) -> None:
    assert len(entry.read_text().splitlines()) <= 40
    assert {name for name in imports(entry) if name.startswith("lutlab")} == {
        "lutlab.experiment.run.main"
    }
