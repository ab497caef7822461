"""Progress of a run, read from the store: it works for every launcher, because finished cells are files.

On a terminal a bar with the time that remains; elsewhere one line a finished cell. Where a line is too narrow, the
cell's name is shortened, never the count or the time. Work before the first cell that takes long, as tuning, says where
it is in a file beside the records (`telling`): in the bar, elsewhere a line of it now and then.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lutlab.base.progress import heard
from lutlab.experiment.store.store import Store

_POLL_SECONDS = 0.3
_TELL_SECONDS = 1.0  # between two words on the stage of some cells
_STAGE_SECONDS = 30.0  # between two lines of stages, where there is no bar
_FIRST_STAGE_SECONDS = 2.0  # after which the first one is shown
_BAR = 12  # characters
_Cell = tuple[str, float]  # its name for the reader, predicted seconds


@contextmanager
def watch(store: Store, cells: Mapping[str, _Cell]) -> Iterator[None]:
    """Show the cells, by id, as their records appear in the store."""
    console = Console(file=sys.stderr)
    stop = threading.Event()
    earlier = {c: store.path(c).stat().st_mtime_ns for c in cells if store.path(c).exists()}
    follower = _bar if console.is_terminal else _lines
    thread = threading.Thread(target=follower, args=(console, store, dict(cells), earlier, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _looks(
    store: Store, cells: dict[str, _Cell], earlier: Mapping[str, int], stop: threading.Event
) -> Iterator[tuple[str, list[_Cell]]]:
    """Look after look, once more after the end: the stage of a waiting cell, and the cells that finished.

    A cell is finished when its file appeared, or was rewritten, since the run began; it leaves `cells`.
    """
    since, last = time.time(), False
    while not last:
        last = stop.wait(_POLL_SECONDS)
        stage, finished = _stage(store, cells, since), []
        for cell in list(cells):
            path = store.path(cell)
            if path.exists() and path.stat().st_mtime_ns != earlier.get(cell):
                finished.append(cells.pop(cell))
        yield stage, finished


def _lines(
    console: Console,
    store: Store,
    cells: dict[str, _Cell],
    earlier: Mapping[str, int],
    stop: threading.Event,
) -> None:
    total, began, done = len(cells), time.monotonic(), 0
    shown_at = began + _FIRST_STAGE_SECONDS - _STAGE_SECONDS
    for stage, finished in _looks(store, cells, earlier, stop):
        if stage and time.monotonic() >= shown_at + _STAGE_SECONDS:
            console.print(shorten(stage, console.width), highlight=False, markup=False)
            shown_at = time.monotonic()
        for name, _ in finished:
            done += 1
            count, took = f"[{done}/{total}] ", f"  {time.monotonic() - began:.0f} s"
            name = shorten(name, console.width - len(count) - len(took))
            console.print(f"{count}{name}{took}", highlight=False, markup=False)


@contextmanager
def telling(store: Store, cells: Collection[str]) -> Iterator[Callable[[object], None]]:
    """A function that says how far the work on some cells is, to whoever watches them; str() of it is the line."""
    if not cells:
        yield lambda _: None  # nobody watches
        return
    path, told = store.stage(next(iter(cells))), 0.0

    def tell(stage: object) -> None:
        nonlocal told
        if time.monotonic() >= told + _TELL_SECONDS:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_suffix(".draft")
            draft.write_text(f"{stage}", encoding="utf-8")  # a hint, which may be lost
            draft.replace(path)
            told = time.monotonic()

    try:
        yield tell
    finally:
        path.unlink(missing_ok=True)


@contextmanager
def shown() -> Iterator[None]:
    """Show how far a command's work is: a line that changes on a terminal, elsewhere a line of it now and then."""
    console, since = Console(file=sys.stderr), -_STAGE_SECONDS

    def line(stage: object) -> None:
        nonlocal since
        if time.monotonic() >= since + _STAGE_SECONDS:
            console.print(f"{stage}", highlight=False, markup=False)
            since = time.monotonic()

    if not console.is_terminal:
        with heard(line):
            yield
        return
    with console.status("") as status, heard(lambda stage: status.update(escape(f"{stage}"))):
        yield


def _stage(store: Store, waiting: Collection[str], began: float) -> str:
    """Last stage that a worker reported of a waiting cell since the run began; empty where there is none."""
    stages = []
    for path in map(store.stage, waiting):
        with contextlib.suppress(FileNotFoundError):  # it is gone when its work is done
            at = path.stat().st_mtime
            stages += [(at, path.read_text(encoding="utf-8"))] if at >= began else []
    return max(stages, default=(0.0, ""))[1]


def shorten(name: str, room: int) -> str:
    """A cell's name in `room` characters at most: its model from the front, its metric from the end."""
    if len(name) <= room:
        return name
    end = 2 * room // 3
    return f"{name[: max(0, room - end - 1)]}…{name[-end:]}"


def _bar(
    console: Console,
    store: Store,
    cells: dict[str, _Cell],
    earlier: Mapping[str, int],
    stop: threading.Event,
) -> None:
    predicted = sum(seconds for _, seconds in cells.values()) or 1.0
    columns = (
        TextColumn("{task.description}"),
        BarColumn(_BAR),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[eta]}"),
    )
    beside = len(f" {len(cells)}/{len(cells)} 0:00:00 ") + _BAR + 1
    others = beside + len(f"about {predicted:.0f}0 s left ")
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("measuring", total=len(cells), eta="")
        done, began = 0.0, time.monotonic()
        for stage, finished in _looks(store, cells, earlier, stop):
            if stage:  # it has a time of its own
                progress.update(task, description=shorten(stage, console.width - beside), eta="")
            for name, seconds in finished:
                done += seconds
                remaining = (predicted - done) * (time.monotonic() - began) / max(done, 1e-9)
                shown = shorten(name, console.width - others)
                eta = f"about {remaining:.0f} s left"
                progress.update(task, advance=1, description=shown, eta=eta)
