"""Fixtures of the tests of tuning."""

import pytest

from lutlab.tuning import loop


@pytest.fixture
def kept_at_every_step(monkeypatch):
    monkeypatch.setattr(loop, "_KEEP_SECONDS", 0.0)
    monkeypatch.setattr(loop, "_KEEP_SHARE", float("inf"))
