"""lutlab: reproduce, extend and trust the results on low-bit weight-only quantization of language models.

The public functions are imported on first use, so that `import lutlab` costs nothing: __init__.pyi lists them, and the
examples of lutlab.api call them.
"""

from __future__ import annotations

import ast
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from lutlab.base.errors import explained
from lutlab.checkpoint import register_with_transformers

__version__ = "0.1.0"

# Name -> its module.
_HOME = {
    alias.name: statement.module
    for statement in ast.parse(Path(__file__).with_suffix(".pyi").read_bytes()).body
    if isinstance(statement, ast.ImportFrom)
    for alias in statement.names
}

__all__ = sorted(_HOME)

# A thread of GNU's OpenMP that waits for another one spins 3 ms and more, and so keeps a core from the thread that it
# waits for where others are busy. 5000 rounds, some 0.1 ms, bridge the gaps between our products. OpenMP reads this
# when torch loads it, and never again. What the user says in either variable stands.
if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'lutlab' has no attribute '{name}'")
    found = explained(getattr(importlib.import_module(_HOME[name]), name))
    globals()[name] = found  # so that every use is the same object
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


register_with_transformers()
