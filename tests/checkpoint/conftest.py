"""Folders of all readers, written once a worker."""

from pathlib import Path

import pytest
from tests.checkpoint.readers import write_all


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of each reader a folder, and `<reader>-dense` with the same weights."""
    root = tmp_path_factory.mktemp("readers")
    write_all(root)
    return root
