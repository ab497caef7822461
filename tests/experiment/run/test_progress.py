"""Progress at 80 columns: the count and the time stay, the name of the cell gives way."""

import io
import re
import threading
from types import SimpleNamespace

import pytest
from rich.console import Console

from lutlab.experiment.run import progress
from lutlab.experiment.store.store import Store

NAME = "synthetic-llama-7b-of-a-long-name-2layers mixed_2_4_16 q=2.5 g=16: masked_lm on wikitext2"


@pytest.fixture(params=[progress._lines, progress._bar])
def shown(request):
    """What is shown of some cells that a store has or waits for; whether it is by a bar."""
    stop, bar = threading.Event(), request.param is progress._bar
    stop.set()

    def show(store, cells):
        console = Console(file=io.StringIO(), width=80, force_terminal=bar, color_system=None)
        request.param(console, store, cells, {}, stop)
        return console.file.getvalue()

    return show, bar


def test_a_narrow_line_keeps_the_count(shown, tmp_path):
    (show, bar), store = shown, Store(tmp_path)
    cells = {f"{i:016x}": (NAME, 9000.0) for i in range(12)}
    for cell in cells:
        store.path(cell).parent.mkdir(exist_ok=True)
        store.path(cell).touch()
    text = show(store, dict(cells))
    lines = re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text))
    last = [line for line in lines if "12/12" in line][-1]
    assert all(len(line) <= 80 for line in lines)
    assert "on wikitext2" in last
    assert "left" in last if bar else last.endswith(" s")


def test_a_short_name_is_whole_and_a_long_one_keeps_both_ends():
    assert progress.shorten("opt rtn q=4: ppl", 16) == "opt rtn q=4: ppl"
    short = progress.shorten(NAME, 30)
    assert len(short) == 30
    assert short.startswith("synthetic")
    assert short.endswith("ked_lm on wikitext2")


def test_a_stage_is_shown_while_its_cell_is_waited_for(shown, tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "_STAGE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "_FIRST_STAGE_SECONDS", 0.0)
    # stands still, before every file was made
    clock = SimpleNamespace(monotonic=lambda: 100.0, time=lambda: 100.0)
    monkeypatch.setattr(progress, "time", clock)
    (show, _), store = shown, Store(tmp_path)
    with progress.telling(store, ["0" * 16, "1" * 16]) as tell:
        tell("tuning scales 120/400, loss 3.215, 2 min left")
        tell("too soon to be told")
        text = show(store, {"0" * 16: (NAME, 9.0)})
    assert "tuning scales 120/400, loss 3.215" in text
    assert not [*tmp_path.rglob("*.stage")]
