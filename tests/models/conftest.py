"""A tiny OPT in a folder, and copies of it."""

import shutil

import pytest
from tests.models.architectures import make
from tests.tiny_models import byte_tokenizer


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    make("opt").save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy of a good model, to be damaged."""
    return shutil.copytree(saved, tmp_path / "model")
