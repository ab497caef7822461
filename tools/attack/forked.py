"""Call a function in a forked child: its value, its error, what it said; a crash and a hang are outcomes too.

A child costs some 20 ms where an import of torch costs seconds, has none of its parent's caches filled by what it
reads, and takes nothing with it when it dies.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lutlab.errors import LutlabError

VALUE, REFUSED, TRACEBACK, CRASH, HANG = "value", "refused", "traceback", "crash", "hang"
_TRACE = "Traceback (most recent call last)"


@dataclass(frozen=True)
class Seen:
    """Outcome of a call; `value` is JSON, `said` is all that was printed, logged or raised."""

    outcome: str
    value: Any = None
    said: str = ""


def observed(call: Callable[[], Any], seconds: float = 60) -> Seen:
    """What a call gives in a child of this process, which is killed after so many seconds."""
    with tempfile.TemporaryFile() as said:
        reading, writing = os.pipe()
        with warnings.catch_warnings():  # of other threads, none of which holds what a child needs
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            _answer(call, said.fileno(), writing)
        os.close(writing)
        with os.fdopen(reading, "rb") as answers:
            answer = _read(answers.fileno(), time.monotonic() + seconds)
        if answer is None:
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        said.seek(0)
        printed = said.read().decode(errors="replace")
    if answer is None:
        return Seen(HANG, said=f"no answer in {seconds} s\n{printed}")
    if not answer:
        return Seen(CRASH, said=f"ended by {_cause(status)}\n{printed}")
    outcome, value, message = json.loads(answer)
    return Seen(TRACEBACK if _TRACE in printed else outcome, value, f"{message}\n{printed}")


def _cause(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit {os.WEXITSTATUS(status)}"


def _read(source: int, end: float) -> bytes | None:
    """All that a pipe gives until it is closed; None where that takes too long."""
    parts = []
    while select.select([source], [], [], max(0.0, end - time.monotonic()))[0]:
        part = os.read(source, 1 << 20)
        if not part:
            return b"".join(parts)
        parts.append(part)
    return None


def _answer(call: Callable[[], Any], said: int, writing: int) -> None:
    """In the child: never returns."""
    faulthandler.disable()  # pytest's would print a page for each crash
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)  # a pool of threads does not survive a fork
        with _speaking_to(said):
            try:
                answer = [VALUE, call(), ""]
            except LutlabError as error:
                answer = [REFUSED, None, str(error)]
            except BaseException:
                answer = [TRACEBACK, None, traceback.format_exc()]
        with os.fdopen(writing, "wb") as answers:
            answers.write(json.dumps(answer).encode())
    finally:
        os._exit(0)


@contextlib.contextmanager
def _speaking_to(said: int) -> Iterator[None]:
    """All output into one file, log lines of warnings and worse among it."""
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.stdout, sys.stderr = (os.fdopen(fd, "w", buffering=1, closefd=False) for fd in (1, 2))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(logging.WARNING)
    logging.getLogger().handlers = [handler]  # those of before may write to what is closed
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
