"""A tiny OPT in a folder, and copies of it."""

import shutil

import pytest
from tests.models.architectures import make
from tests.models.folders import save


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    return save(make("opt"), tmp_path_factory.mktemp("saved"))


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of a good model, to be damaged."""
    return shutil.copytree(saved, tmp_path / "model")
