"""Progress at 80 columns: the count and the time stay, the name of the cell gives way."""

from __future__ import annotations

import io
import re
import threading
from pathlib import Path

import pytest
from rich.console import Console

from lutlab.experiment.run import progress
from lutlab.experiment.store.store import Store

NAME = (
    "synthetic-llama-7b-of-a-very-long-name-2layers mixed_2_4_16 q=2.5 g=16: masked_lm on wikitext2"
)


@pytest.mark.parametrize("follow", [progress._lines, progress._bar])
def test_a_narrow_line_keeps_the_count(follow: object, tmp_path: Path) -> None:
    store, cells = Store(tmp_path), {f"{i:016x}": (NAME, 9000.0) for i in range(12)}
    for cell in cells:
        store.path(cell).parent.mkdir(exist_ok=True)
        store.path(cell).touch()
    stop, file = threading.Event(), io.StringIO()
    stop.set()
    console = Console(
        file=file, width=80, force_terminal=follow is progress._bar, color_system=None
    )
    follow(console, store, dict(cells), {}, stop)
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()))
    (last,) = [line for line in lines if "12/12" in line][-1:]
    assert all(len(line) <= 80 for line in lines)
    assert "on wikitext2" in last
    assert "left" in last if follow is progress._bar else last.endswith(" s")


def test_a_short_name_is_whole_and_a_long_one_keeps_both_ends() -> None:
    assert progress.shorten("opt rtn q=4: ppl", 16) == "opt rtn q=4: ppl"
    short = progress.shorten(NAME, 30)
    assert len(short) == 30
    assert short.startswith("synthetic")
    assert short.endswith("ked_lm on wikitext2")


@pytest.mark.parametrize("follow", [progress._lines, progress._bar])
def test_a_stage_is_shown_while_its_cell_is_waited_for(
    follow: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_STAGE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "_FIRST_STAGE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "time", Clock())
    store, stop, file = Store(tmp_path), threading.Event(), io.StringIO()
    stop.set()
    console = Console(file=file, width=80, force_terminal=follow is progress._bar)
    with progress.telling(store, ["0" * 16, "1" * 16]) as tell:
        tell("tuning scales 120/400, loss 3.215, 2 min left")
        tell("too soon to be told")
        follow(console, store, {"0" * 16: (NAME, 9.0)}, {}, stop)
    assert "tuning scales 120/400, loss 3.215" in file.getvalue()
    assert not [*tmp_path.rglob("*.stage")]


class Clock:
    """Time that stands still, before every file was made."""

    monotonic = staticmethod(lambda: 100.0)
    time = staticmethod(lambda: 100.0)
