"""Fixtures of the tests of compression."""

import pytest

from lutlab.compress import calibrate


@pytest.fixture
def two_windows_a_batch(monkeypatch):
    """Of 16 tokens."""
    monkeypatch.setattr(calibrate, "BATCH_TOKENS", 2 * 16 + 1)
