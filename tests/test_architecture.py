"""Imports go one way: a folder imports only from folders to its left, and the library never from the experiment."""

from __future__ import annotations

import ast
import functools
import graphlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from tests.command_line import CommandLine
from tests.models.architectures import make

from lutlab.api import quantize

SOURCE = Path(__file__).resolve().parents[1] / "src" / "lutlab"
# Of this repository: they import the package, and it never them.
TOOLS = SOURCE.parents[1] / "tools"
# The order of the folders; `experiment` has an order of its own. A string is a floor: its rooms do not know each other.
FLOORS = [
    "base",
    "data gguf quantizers formats",
    "models kernels",
    "modules measure",
    "embeddings",
    "checkpoint peers",
    "compress",
    "tuning",
    "recipe",
    "generate predict",
    "parallel",
    "api evaluators",
]
EXPERIMENT = ["store", "artifact", "row", "plan", "report", "records", "run"]
RANK = {room: rank for rank, floor in enumerate(FLOORS) for room in floor.split()}
RANK |= {f"experiment.{room}": len(FLOORS) + rank for rank, room in enumerate(EXPERIMENT)}
RANK["__main__"] = len(RANK)  # `python -m lutlab`: the roof of both storeys
FRAMEWORKS = {"hydra", "omegaconf", "wandb"}


def room_of(module: str) -> str:
    """lutlab.kernels.cpu.rows.linear -> kernels; lutlab.experiment.plan.plan -> experiment.plan."""
    parts = module.split(".")[1:]
    return ".".join(parts[:2] if parts[:1] == ["experiment"] else parts[:1])


def module_of(path: Path) -> str:
    """The dotted name of a source file."""
    return ".".join(("lutlab", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
        ".__init__"
    )


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imports(path: Path, typing: bool = False) -> frozenset[str]:
    """Modules that a file imports at run time, those inside functions included; typing: and for type checkers."""
    tree = parsed(path)
    typing_only = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING" and not typing
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
    return frozenset(found)


def _is_module(name: str) -> bool:
    path = SOURCE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


@functools.cache
def files(typing: bool = False) -> dict[str, frozenset[str]]:
    """Module -> what it imports; made by the first test that asks, since pytest reads this file in each worker."""
    return {module_of(path): imports(path, typing) for path in SOURCE.rglob("*.py")}


def test_every_room_is_in_the_house() -> None:
    assert {room_of(module) for module in files()} - {"", "experiment"} == set(RANK)


def test_folders_import_from_folders_to_their_left() -> None:
    wrong = [
        f"{module} imports {target}"
        for module, targets in sorted(files().items())
        for target in sorted(targets)
        if room_of(module) and target.startswith("lutlab.") and room_of(target) != room_of(module)
        if RANK[room_of(target)] >= RANK[room_of(module)]
    ]
    assert wrong == []


def test_the_library_knows_neither_the_experiment_nor_its_frameworks() -> None:
    wrong = [
        f"{module} imports {target}"
        for module, targets in sorted(files().items())
        for target in sorted(targets)
        if not module.startswith("lutlab.experiment") and module != "lutlab.__main__"
        if target.startswith("lutlab.experiment") or target.partition(".")[0] in FRAMEWORKS
    ]
    wrong += [
        m for m, targets in files().items() if "tools" in {t.partition(".")[0] for t in targets}
    ]
    assert wrong == []


def test_no_file_needs_itself_on_the_way() -> None:
    """Siblings may import each other, in one direction: there is an order in which all files can be read.

    The package's own file names what others hold, for type checkers, and is left out.
    """
    known = files(typing=True)
    graph = {m: targets & known.keys() - {m, "lutlab"} for m, targets in known.items()}
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the files


def test_the_drawing_has_every_room() -> None:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawing = page.partition("src/lutlab/\n")[2].partition("```")[0]
    drawn, above = set(), ""
    for line in drawing.splitlines():
        indent, names = len(line) - len(line.lstrip()), re.split(r" {3,}", line.strip())[0].split()
        above = names[0].rstrip("/") if indent == 2 else above
        drawn |= {f"{above}.{n.rstrip('/')}" if indent == 4 else n.rstrip("/") for n in names}
    assert drawn == set(RANK) - {"__main__"} | {"experiment"}


# Title of a tour -> its call.
TOURS: dict[str, Callable[[CommandLine], object]] = {
    "A command line": lambda command: command("method=rtn", "q=3", "evaluate=[ppl:topics]", "logger=none"),
    "A weight": lambda command: quantize(make("opt"), method="rtn", q=3, g=16),
    "A prompt": lambda command: command(
        "generate", "model=llama-embedded-m", "method=rtn", "q=4", "g=32", "prompt=Once upon a time", "tokens=8"
    ),
}  # fmt: skip


@pytest.mark.parametrize("title", TOURS)
def test_a_call_takes_the_stops_of_its_tour(title: str, command: CommandLine) -> None:
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
    text = page.partition(f"### {title}\n")[2].partition("\n##")[0]
    stops = re.findall(r"^\d+\. `([\w/]+\.py)` `(\w+)`: ", text, re.MULTILINE)
    entered: dict[tuple[str, str], int] = {}
    root = f"{SOURCE}/"

    def note(frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(root):
            name = path.removeprefix(root), frame.f_code.co_name
            entered.setdefault(name, len(entered))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        TOURS[title](command)
    finally:
        sys.setprofile(before)
    assert 5 < len(stops) <= 10
    assert [stop for stop in stops if stop not in entered] == []
    assert stops == sorted(stops, key=entered.get)


# Calls by which code that a file brings could run, and the files that have them, with what makes them safe.
DOORS = {
    "from_pretrained", "import_module", "instantiate", "eval", "exec", "__import__", "os.system", "pickle.load",
    "pickle.loads", "torch.load", "np.load", "joblib.load", "yaml.load", "yaml.unsafe_load", "yaml.full_load",
    "apply_chat_template",
}  # fmt: skip
OPENED = {
    "__init__.py": {"import_module"},  # lutlab's own, by name
    "checkpoint/__init__.py": {"import_module"},
    "data/tasks.py": {"yaml.load"},  # by a safe loader of its own
    "evaluators/peak_memory.py": {"import_module"},  # of a loaded model's class
    "experiment/run/additions.py": {"import_module"},  # plugins=
    "experiment/run/main.py": {"import_module"},  # commands that it names itself
    "generate/text.py": {"apply_chat_template"},  # chat=true alone, in Jinja's sandbox
    "base/lazy.py": {"import_module"},  # libraries that it names itself
    "parallel/ranks.py": {
        "pickle.loads"
    },  # of our own child, in a folder that is this user's alone
    "models/pretrained.py": {"from_pretrained"},  # always with trust_remote_code=False
    "base/registry.py": {"import_module"},
    "tools/embedded/export.py": {"np.load", "torch.load"},  # made by train.py, weights_only=True
    "tools/embedded/train.py": {"np.load", "torch.load"},
}


def test_nothing_that_is_read_runs() -> None:
    found: dict[str, set[str]] = {}
    read = [(path, SOURCE) for path in SOURCE.rglob("*.py")]
    read += [(path, TOOLS.parent) for path in TOOLS.rglob("*.py")]
    for path, top in read:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                last = called.rpartition(".")[2] if "." in called else ""
                if opened := {called, last} & DOORS - ({last} & {"eval"}):  # model.eval() is none
                    found.setdefault(path.relative_to(top).as_posix(), set()).update(opened)
    assert found == OPENED


def test_house_rules() -> None:
    assert not [p for p in SOURCE.rglob("*.py") if p.stem in ("utils", "common", "helpers")]


@pytest.mark.parametrize("entry", [SOURCE.parents[1] / "run.py", SOURCE / "__main__.py"])
def test_the_entries_are_short_and_have_no_logic(entry: Path) -> None:
    assert len(entry.read_text().splitlines()) <= 40
    assert {name for name in imports(entry) if name.startswith("lutlab")} == {
        "lutlab.experiment.run.main"
    }
