"""Heavy libraries are imported on first use, by one mechanism."""

from __future__ import annotations

import ast
import pickle
import subprocess
import sys
import typing
from pathlib import Path

import torch
from transformers import PreTrainedModel

from lutlab.base import lazy

SOURCE = Path(lazy.__file__).parent
LIBRARIES = {"numpy", "pandas", "torch", "torch.distributed", "torch.nn", "transformers"}


def test_a_stand_in_is_no_import_until_it_is_used():
    program = (
        "import sys\n"
        "from lutlab.base.lazy import nn, np, torch\n"
        "assert not {'torch', 'numpy'} & set(sys.modules)\n"
        "stand_in = nn\n"
        "assert torch.zeros(1).shape == (1,) and issubclass(nn.Linear, torch.nn.Module)\n"
        "assert torch is sys.modules['torch'] and stand_in is nn is sys.modules['torch.nn']"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_stand_in_is_pickled_as_the_library():
    assert pickle.loads(pickle.dumps(lazy.torch)) is torch


def test_hints_can_be_evaluated():
    def function(model: lazy.PreTrainedModel, x: lazy.torch.Tensor) -> lazy.nn.Linear: ...

    hints = {"model": PreTrainedModel, "x": torch.Tensor, "return": torch.nn.Linear}
    assert typing.get_type_hints(function) == hints


def inside_functions(path):
    """Imports of the libraries in functions, and for type checkers only, of a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        checking = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not (checking or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            continue
        for inner in ast.walk(node):
            if isinstance(inner, ast.Import | ast.ImportFrom):
                module = inner.module if isinstance(inner, ast.ImportFrom) else ""
                names = {f"{module}.{alias.name}".strip(".") for alias in inner.names}
                if {module, *names} & LIBRARIES:
                    yield f"{path.relative_to(SOURCE)}:{inner.lineno}"


def test_no_function_imports_them():
    files = [p for p in SOURCE.rglob("*.py") if p.name != "lazy.py"]
    assert [line for path in files for line in inside_functions(path)] == []
