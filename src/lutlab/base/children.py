"""Python processes that import the same modules as the one that starts them, whichever folder they start in.

A plain `python -c` or `python -m` looks into the current folder first, and knows of a checkout that this process runs
from, as run.py does, only if it is installed: another lutlab would be measured.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

_SOURCE = str(Path(__file__).resolve().parents[2])
# `os` and `sys` are imported before a folder is searched for them.
_START = "import os, sys; sys.path[:] = sys.argv.pop(1).split(os.pathsep); exec(sys.argv.pop(1))"
LUTLAB = "import runpy; runpy.run_module('lutlab', run_name='__main__', alter_sys=True)"


def python(code: str, *arguments: str) -> list[str]:
    """The command of a process that runs some code, by the interpreter and the search path of this one.

    Args:
        code: Python source of the process; LUTLAB is the command line.
        arguments: values of sys.argv[1:] in the process.
    """
    return [sys.executable, "-c", _START, os.pathsep.join(_path(sys.path)), code, *arguments]


def _path(entries: Sequence[str]) -> list[str]:
    """Entries as whole paths, lutlab's own folder among them; '', the current folder, whichever it is, goes last."""
    named = [os.path.abspath(entry) for entry in entries if entry]
    ours = [] if _SOURCE in named else [_SOURCE]
    current = [os.getcwd()] if "" in entries else []
    return [*ours, *named, *current]
