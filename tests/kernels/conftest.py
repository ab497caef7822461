"""Fixtures of kernels' tests."""

import pytest


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder, for tests that are about what is kept: others find kernels that were built before."""
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path))
    return tmp_path / "codegen"
