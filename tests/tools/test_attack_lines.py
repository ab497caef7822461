"""A sample of hostile command lines; `python -m tools.attack.lines` makes up as many as are asked for."""

from unittest import mock

import pytest

from lutlab.experiment.row import mistakes
from tools.attack.lines import broken, scratch, typed


@pytest.mark.slow
def test_hostile_lines_end_as_documented():
    assert [(line, ended.broken, ended.err) for line, ended in broken(cases=100, seed=14)] == []


def test_a_broken_promise_is_noticed():
    with scratch():
        with mock.patch.object(mistakes, "read", side_effect=ValueError("planted")):
            assert typed(["q=3"]).broken == "traceback"
        with mock.patch.object(mistakes, "read", side_effect=SystemExit(2)):
            assert typed(["q=3"]).broken == "refused without a message"
