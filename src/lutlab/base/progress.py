"""How far long work is, told to whoever listens: loops tell it, and commands and workers listen.

with heard(print):
for block in steps(blocks, "quantizing layer"):   # quantizing layer 3 of 30, about 70 s left
…
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
Listener = Callable[[object], None]
_LISTENER: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextmanager
def heard(listener: Listener) -> Iterator[None]:
    """A context in which a function is called with every stage; str() of a stage is a line for a reader."""
    token = _LISTENER.set(listener)
    try:
        yield
    finally:
        _LISTENER.reset(token)


def tell(stage: object) -> None:
    """Call the listener, where there is one."""
    if listener := _LISTENER.get():
        listener(stage)


def steps(items: Sequence[Item], name: str) -> Iterator[Item]:
    """Items one after the other; before each its number and, by the pace of those before it, the time left is told."""
    began = time.monotonic()
    for done, item in enumerate(items):
        left = (len(items) - done) * (time.monotonic() - began) / done if done else 0
        tell(f"{name} {done + 1} of {len(items)}{f', about {duration(left)} left' if done else ''}")
        yield item


def duration(seconds: float) -> str:
    """`70 s`, from 100 seconds on `2 min`."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
