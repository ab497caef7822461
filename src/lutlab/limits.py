"""Limits of one value, for fields of specs and configurations: `batch: Annotated[int, at_least_one]`.

A limit is called with the dotted name of the field and its value, and raises LutlabError where the value is out of
range. None, where the field's type allows it, is never out of range.
"""

from __future__ import annotations

from lutlab.devices import kind_and_index
from lutlab.errors import LutlabError
from lutlab.groups import check_group_size

DEVICES = ("auto", "cpu", "cuda", "spread")
_MOST = 2**31 - 1  # of what is counted
_MOST_THREADS = 4096
_PATH, _NAME = 4000, 255  # characters of a path, bytes of each part: Linux's and macOS's limits


def at_least_one(name: str, value: int) -> None:
    """A count, from 1."""
    if not 1 <= value <= _MOST:
        raise LutlabError(f"{name}={value}: give at {'least 1' if value < 1 else f'most {_MOST}'}")


def a_thread_count(name: str, value: int) -> None:
    """A number of threads that some machine has."""
    at_least_one(name, value)
    if value > _MOST_THREADS:
        raise LutlabError(
            f"{name}={value}: give at most {_MOST_THREADS}; null is torch's own choice"
        )


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


def a_group_size(name: str, value: int) -> None:
    """-1, or at least 8 weights."""
    check_group_size(value)


def a_budget(name: str, value: float) -> None:
    """Stored bits a weight."""
    if not value > 0:
        raise LutlabError(f"{name}={value}: give a positive number of stored bits a weight")


def a_device(name: str, value: str) -> None:
    """One of DEVICES, or a numbered one as `cuda:1`, whether this machine has it or not."""
    if value not in DEVICES:
        kind_and_index(value, name, DEVICES)
