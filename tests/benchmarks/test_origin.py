"""A benchmark's JSON says of which code, on which machine and when it was measured."""

import json
import re
from unittest import mock

import origin
from tests.conftest import ROOT

from lutlab.experiment.store import provenance

KNOWN = {"cpu", "cores", "threads", "load_average", "date", "versions", "git_commit", "git_dirty"}


def test_numbers_have_their_origin(tmp_path):
    path = tmp_path / "new folder" / "numbers.json"
    origin.write(path, {"results": [1.5]})
    written = json.loads(path.read_text())
    assert written.keys() == {"origin", "results"}
    own = written["origin"]
    assert own.keys() >= KNOWN
    assert own["cpu"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", own["date"])
    assert own["versions"]["torch"]
    assert (own["git_commit"] is None) == (provenance.repository() is None)


def test_a_changed_benchmark_is_dirty(monkeypatch):
    state = mock.Mock(return_value={})
    monkeypatch.setattr(provenance, "git_state", state)
    origin.origin()
    assert state.call_args.args[1] == ("src", "kernels", "experiments", "conf", "benchmarks")


def test_every_benchmark_writes_its_numbers_through_it():
    """gpu_report.py's own JSON says how its steps ended, and has no numbers."""
    texts = {p.name: p.read_text() for p in (ROOT / "benchmarks").glob("*.py")}
    writers = {name for name, text in texts.items() if re.search(r"write_text\(\s*json", text)}
    assert writers == {"origin.py", "gpu_report.py"}
    assert sum("origin.write(" in text for text in texts.values()) > 15
