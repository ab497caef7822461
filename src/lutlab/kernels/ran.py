"""Names of the kernels that have multiplied in this process, for records.

Noted where an operation runs, not where it is called: a compiled graph that runs it is seen as well, and a layer's
forward has nothing to write down. The replay of a CUDA graph runs no Python; its capture was noted.
"""

from __future__ import annotations

_NAMES: set[str] = set()


def note(name: str) -> None:
    """Remember that a kernel has multiplied: variant, instruction set and threads, or torch and why."""
    _NAMES.add(name)


def take() -> list[str]:
    """Names of the operations since the last call, sorted, each once; and forget them."""
    names = sorted(_NAMES)
    _NAMES.clear()
    return names
