"""Folders of all readers, written once a worker."""

import pytest
from tests.checkpoint.readers import write_all
from tests.gguf.gguf_files import _cache  # noqa: F401


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """Of each reader a folder, and `<reader>-dense` with the same weights."""
    root = tmp_path_factory.mktemp("readers")
    write_all(root)
    return root
