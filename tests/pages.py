"""Code blocks of README and docs: Python is executed, files are written, command lines are read and not run.

    warm.run(Path(pages.__file__), "docs/how-to/method.md", cwd=folder)

The Python blocks of a page share a namespace, from its first to its last. A block with a title is that file, for every
page.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[1]
# README and what is written below docs/; docs/artifacts is made by tools/gallery.py.
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    if "artifacts" not in path.parts
)
_BLOCK = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
# Languages of blocks that are no program, of which a titled one is a file.
_DATA = ("yaml", "bibtex", "text")
# Programs of others, whose arguments are theirs to read.
_OTHERS = {"docker", "rm", "sha256sum", "wandb"}


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; its title is a path, or empty."""

    language: str
    title: str
    code: str


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text.count("\n```") == 2 * len(_BLOCK.findall(text)), f"{page}: a fence is not read"
    return [Block(*parts) for parts in _BLOCK.findall(text)]


def write_files(folder: Path) -> None:
    """Write the titled blocks of all pages below a folder."""
    for block in (block for page in PAGES for block in blocks_of(page) if block.title):
        path = folder / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.code, encoding="utf-8")


def commands(code: str) -> Iterator[list[str]]:
    """The words of each command of a shell block."""
    for line in code.replace("\\\n", " ").splitlines():
        command: list[str] = []
        for word in shlex.split(line, comments=True):
            if word in ("&&", "|", ";"):
                yield command
                command = []
            else:
                command.append(word)
        if command:
            yield command


class _ReadError(Exception):
    """The command line was read whole, and would do something now."""


def _refused(arguments: list[str]) -> bool:
    """Whether lutlab refuses a command line, which it reads up to where it would measure or show something."""
    import lutlab
    from lutlab.experiment.run import (
        fetch_command,
        main,
        prepared,
        results_command,
        workspaces_command,
    )

    # chat, generate and quantize plan a model, export loads one
    stops = [(main, "measure_row"), (prepared, "job_of_model"), (lutlab, "load")]
    stops += [(module, "ended") for module in (fetch_command, results_command, workspaces_command)]
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(sys, "argv", ["lutlab", *arguments]))
        for module, name in stops:
            stop = mock.Mock(side_effect=_ReadError)
            patches.enter_context(mock.patch.object(module, name, stop))
        try:
            return main.main() != 0
        except _ReadError:
            return False


def _write_stub(folder: Path) -> None:
    """A folder that looks quantized to the commands that follow."""
    folder.mkdir(parents=True)
    config = {"quantization_config": {"quant_method": "lutlab"}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def check(command: list[str]) -> None:
    """Read one command; a Python file of the page is run."""
    program = command[0].removeprefix(".venv/bin/")
    if program == "eval":
        check(shlex.split(command[1].removeprefix("$(").removesuffix(")")))
    elif program == "lutlab" or command[1:2] == ["run.py"]:
        arguments = command[1 if program == "lutlab" else 2 :]
        assert not _refused(arguments), shlex.join(command)
        if arguments[:1] == ["quantize"]:
            _write_stub(Path(next(word[4:] for word in arguments if word.startswith("out="))))
    elif program in ("python", "python3") and command[1] == "-m":
        assert command[2] in ("venv", "pytest") or importlib.util.find_spec(command[2]), command[2]
    elif program == "python":
        runpy.run_path(str(Path(command[1]).resolve()), run_name="__main__")
    elif program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert {word for word in command[1:] if "=" not in word} <= set(targets), command
    elif program == "pip":
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        extras = re.findall(r"(?<=lutlab\[)[\w,]+|(?<=\.\[)[\w,]+", " ".join(command))
        known = project["optional-dependencies"].keys()
        assert {name for extra in extras for name in extra.split(",")} <= known, command
    else:
        assert program in _OTHERS or program == ".", f"what is {program}?"


def run(page: str) -> None:
    """Run the blocks of a page in the current directory, which is empty."""
    folder = Path.cwd()
    write_files(folder)
    (folder / "results").mkdir()
    (folder / "results" / "published").symlink_to(ROOT / "results" / "published")
    sys.path.insert(0, str(folder))
    namespace = {"__name__": "__main__"}
    for at, block in enumerate(blocks_of(page)):
        if block.language == "python" and not block.title:
            exec(compile(block.code, f"{page}, block {at + 1}", "exec"), namespace)
        elif block.language == "python":
            compile(block.code, block.title, "exec")
        elif block.language == "sh":
            for command in commands(block.code):
                check(command)
        else:
            assert block.language in _DATA, f"{page}: a block of '{block.language}'"
        os.chdir(folder)


if __name__ == "__main__":
    run(sys.argv[1])
