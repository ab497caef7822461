"""Limits of one value, for fields of specs and configurations: `batch: Count`, `g: Annotated[int, a_group_size]`.

A type with bounds is pydantic's (fields.py says them in a message). A limit of ours is called with the dotted name of
the field and its value, and raises LutlabError where the value is out of range. None, where the field's type allows it,
is never out of range.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field

from lutlab.base.devices import kind_and_index
from lutlab.base.errors import LutlabError
from lutlab.base.groups import check_group_size

DEVICES = ("auto", "cpu", "cuda", "spread")
MOST = 2**31 - 1  # of what is counted
Count = Annotated[int, Field(ge=1, le=MOST)]
CountFrom0 = Annotated[int, Field(ge=0, le=MOST)]
Threads = Annotated[int, Field(ge=1, le=4096)]  # that some machine has
Budget = Annotated[float, Field(gt=0)]  # stored bits a weight
_FOLDER = re.compile(r"\w[\w.+=-]{0,99}")  # a folder's name has 255 bytes
_PROJECT, _NOT_IN_A_PROJECT = 128, "/\\#?%:"  # wandb's own rule (Settings.validate_project)
_PATH, _NAME = 4000, 255  # characters of a path, bytes of each part: Linux's and macOS's limits


def a_seed(name: str, value: int) -> None:
    """A number that torch and Python both draw from."""
    if not -(2**63) <= value < 2**63:
        raise LutlabError(f"{name}={value}: give a whole number of at most 63 bits")


def a_path(name: str, value: object) -> None:
    """A path no longer than file systems take."""
    path = str(value)
    if len(path) > _PATH or max(map(len, path.encode().split(b"/"))) > _NAME:
        raise LutlabError(
            f"{name}={path}: give a path of at most {_PATH} characters, each part of at most {_NAME}"
        )


def a_project(name: str, value: str) -> None:
    """A name that Weights & Biases takes for a project, told before anything is measured."""
    wrong = sorted(set(_NOT_IN_A_PROJECT) & set(value))
    if wrong or not 0 < len(value) <= _PROJECT:
        cause = f"it has {' '.join(wrong)}" if wrong else f"it has {len(value)} characters"
        raise LutlabError(
            f"{name}={value}: no name of a W&B project, {cause}: give at most {_PROJECT} characters, none "
            f"of {' '.join(_NOT_IN_A_PROJECT)}; the account is wandb's own setting (WANDB_ENTITY)"
        )


def a_folder_name(name: str, value: str) -> None:
    """A name that every file system takes for a folder."""
    if not _FOLDER.fullmatch(value):
        raise LutlabError(
            f"{name}={value}: give letters, digits, '.', '_', '-', '+' or '=', at most 100, as it names a folder"
        )


def a_group_size(name: str, value: int) -> None:
    """-1, or at least 8 weights."""
    check_group_size(value)


def a_device(name: str, value: str) -> None:
    """One of DEVICES, or a numbered one as `cuda:1`, whether this machine has it or not."""
    if value not in DEVICES:
        kind_and_index(value, name, DEVICES)
