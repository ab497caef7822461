"""Ways in which a command ends: an exit code and at most one message, whatever ends it.

| code | when |
|---|---|
| 0 | all is done; of `results rerun` and `results diff`: equal |
| 1 | some rows failed (they are recorded, and tried again next time); of `results rerun` and `diff`: not equal |
| 2 | a mistake or a limit that the user can act on: a message says which, and what to do |
| 130 | interrupted (SIGINT, Ctrl-C); finished cells are kept |
| 141 | the reader of the output left, as after `| head` |
| 143 | terminated (SIGTERM); finished cells are kept |
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TextIO

from lutlab.base.errors import LutlabError
from lutlab.base.escapes import visible

_KEPT = "finished cells are kept: the same command goes on from here"
_LONGEST = 300  # characters of a word in a message: a value may be of any length
_MEMORY = (
    "cannot allocate memory",
    "failed to map segment",
    "can't allocate memory",
    "can't start new thread",
)


class RowsFailed(Exception):
    """Some rows failed; they are in the table and in the records."""


class Terminated(BaseException):
    """SIGTERM; no Exception, as KeyboardInterrupt is none."""


def ended(command: Callable[[], int | None]) -> int:
    """Run a command of this process to its end; returns the exit code, None of the command being 0."""
    try:
        with _terminable():
            _replace_what_a_terminal_lacks()
            code = command() or 0
            if sys.stdout is not None:
                sys.stdout.flush()  # a reader who left, or a full disk, is noticed here
            return code
    except LutlabError as error:
        return _say(str(error), 2)
    except RowsFailed as error:
        return _say(str(error), 1)
    except BrokenPipeError:
        return _reader_left()
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # rich's way to end
            return _reader_left()
        raise
    except KeyboardInterrupt:
        return _say(f"interrupted; {_KEPT}", 130)
    except Terminated:
        return _say(f"terminated; {_KEPT}", 143)
    except (MemoryError, ImportError, OSError, RuntimeError) as error:
        if reason := _limit(error):
            return _say(reason, 2)
        raise


def _limit(error: Exception) -> str:
    """The operating system's limit that an error is of; empty where it is another error."""
    if isinstance(error, MemoryError) or any(phrase in str(error) for phrase in _MEMORY):
        line = str(error).partition("\n")[0]
        return f"out of memory ({line or 'MemoryError'}): give the process more (ulimit -v, the job's limit); {_KEPT}"
    if isinstance(error, OSError) and error.errno is not None:
        _drop(sys.stdout)  # what it may still hold cannot be written either
        place = f" {error.filename}" if error.filename else ""
        return f"the system refuses{place}: {error.strerror}; mend it and run again: finished cells are kept"
    return ""


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM as an exception: files, bars and child processes are left as by Ctrl-C. Workers keep their own ways."""
    unset = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not unset or threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once is enough, while the end is written
        raise Terminated

    owner = os.getpid()
    signal.signal(signal.SIGTERM, lambda *_: end() if os.getpid() == owner else os._exit(143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _replace_what_a_terminal_lacks() -> None:
    """ASCII terminals and files get `?` for a character that they lack, in place of an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def _reader_left() -> int:
    _drop(sys.stdout)
    return 141


def _drop(stream: TextIO | None) -> None:
    """Send the rest of a stream nowhere: Python flushes it once more when it ends."""
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _say(message: str, code: int) -> int:
    short = re.sub(rf"\S{{{_LONGEST},}}", lambda word: f"{word[0][:_LONGEST]}…", message)
    try:
        print(f"lutlab: {visible(short)}", file=sys.stderr, flush=True)
    except OSError:  # nobody reads it, or the disk is full: the exit code says it
        _drop(sys.stderr)
    return code
