"""One key of a configuration: its default, its values, and the check of one value, all that needs no other key."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any

from lutlab.data import check_limit
from lutlab.devices import kind_and_index
from lutlab.errors import LutlabError, nearest
from lutlab.groups import check_group_size

DEVICES = ("auto", "cpu", "cuda", "spread")
_MOST = 2**31 - 1  # of what is counted
_THREADS = 4096
_PATH, _NAME = 4000, 255  # characters of a path, bytes of each part: Linux's and macOS's limits
DTYPES = ("auto", "float32", "float16", "bfloat16")


def at_least_one(name: str, value: int | None) -> None:
    """Raises LutlabError unless it is None or at least 1."""
    if value is not None and value < 1:
        raise LutlabError(f"{name}={value}: give at least 1")
    if value is not None and value > _MOST:
        raise LutlabError(f"{name}={value}: give at most {_MOST}")


def threads(name: str, value: int | None) -> None:
    """Raises LutlabError unless it is None or a number of threads that some machine has."""
    at_least_one(name, value)
    if value is not None and value > _THREADS:
        raise LutlabError(f"{name}={value}: give at most {_THREADS}; null is torch's own choice")


def a_seed(name: str, value: int) -> None:
    """Raises LutlabError unless torch and Python draw from it."""
    if not -(2**63) <= value < 2**63:
        raise LutlabError(f"{name}={value}: give a whole number of at most 63 bits")


def a_path(name: str, value: str | None) -> None:
    """Raises LutlabError unless it is None or no longer than file systems take."""
    if value is not None and (
        len(value) > _PATH or max(map(len, value.encode().split(b"/"))) > _NAME
    ):
        raise LutlabError(
            f"{name}={value}: give a path of at most {_PATH} characters, each part of at most {_NAME}"
        )


def a_group_size(name: str, value: int | None) -> None:
    """Raises LutlabError unless it is None, -1 or at least 8."""
    if value is not None:
        check_group_size(value)


def a_budget(name: str, value: float | None) -> None:
    """Raises LutlabError unless it is None or positive."""
    if value is not None and not value > 0:
        raise LutlabError(f"{name}={value}: give a positive number of stored bits a weight")


def a_device(name: str, value: str) -> None:
    """Raises LutlabError unless it is one of DEVICES, or numbered as `cuda:1` is; whether it is here, runs.py says."""
    if value not in DEVICES:
        kind_and_index(value, name, DEVICES)


def a_limit(name: str, value: int | None) -> None:
    """Raises LutlabError unless it is None or at least 1."""
    check_limit(value)


def _one_of(values: Sequence[str], name: str, value: str) -> None:
    if value not in values:
        raise LutlabError(f"unknown {name} '{value}': {nearest(value, values)}")


def setting(
    default: Any,
    *,
    values: Sequence[str] = (),
    check: Callable[[str, Any], None] | None = None,
) -> Any:
    """A field of a configuration: its default, its values where they are few, and the check of one value.

    Args:
        default: no list or mapping, which all configurations would share.
        values: every value there is, which `--help` prints.
        check: (dotted name, value) -> None, or LutlabError; without one a value is one of `values`.
    """
    refuse = check or (functools.partial(_one_of, values) if values else None)
    metadata = {"values": tuple(values), "check": refuse}
    return field(default=default, metadata=metadata)
