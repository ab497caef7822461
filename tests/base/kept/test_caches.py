"""The cache folder is its user's alone, or another one serves and a warning says which path is open, and to whom."""

import os
import stat

import pytest
from tests.base.refusals import refused

from lutlab.base.kept import findings
from lutlab.base.kept.findings import cache_folder, others_can_change, writable

OTHER = 12345  # a user's number


@pytest.fixture(autouse=True)
def new_process(monkeypatch, tmp_path):
    """Nothing is said or made yet."""
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path / "cache"))
    forget()
    yield
    forget()


def forget():
    for function in (findings._instead, findings._private, findings.writable):
        function.cache_clear()


def test_folders_are_made_for_their_user_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path / "a" / "b"))
    before = os.umask(0o002)  # Fedora's: groups may write what is made without a thought
    try:
        folder = cache_folder("codegen")
    finally:
        os.umask(before)
    assert folder == writable(folder) == tmp_path / "a" / "b" / "codegen"
    for path in (folder, folder.parent, folder.parent.parent):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize(("open_", "mode"), [
    ("codegen", 0o720), ("", 0o702), ("", 0o770), ("..", 0o777), ("codegen", 0o1777),
])  # fmt: skip
def test_a_folder_that_others_can_write_is_not_used(tmp_path, caplog, open_, mode):
    folder = cache_folder("codegen")
    planted = folder / "planted"
    planted.write_text("code")
    wide = (tmp_path / "cache" / open_).resolve()
    wide.chmod(mode)
    for _ in range(2):
        private = cache_folder("codegen")
    assert writable(private) == private
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    assert not (private / "planted").exists()
    (warning,) = caplog.records
    assert f"{wide} can be written by others: chmod go-w {wide}" in warning.getMessage()
    assert "LUTLAB_CACHE" in warning.getMessage()
    wide.chmod(0o755)
    assert cache_folder("codegen") == folder


def test_a_sticky_folder_on_the_way_is_as_good_as_ones_own(tmp_path, caplog):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o1777)
    assert cache_folder("codegen") == tmp_path / "cache" / "codegen"
    assert caplog.text == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("sticky", [0o700, 0o1777])
@pytest.mark.parametrize("theirs", ["cache", "cache/codegen", "cache/codegen/file"])
def test_what_belongs_to_another_user_is_not_ones_own(tmp_path, sticky, theirs):
    file = cache_folder("codegen") / "file"
    file.write_text("")
    tmp_path.chmod(sticky)
    assert others_can_change(file) == ""
    os.chown(tmp_path / theirs, OTHER, OTHER)
    message = f"{tmp_path / theirs} belongs to another user ({OTHER}): chown"
    assert message in others_can_change(file)
    assert (cache_folder("codegen") == file.parent) == (theirs == "cache/codegen/file")


def test_links_are_followed_to_whoever_can_change_them(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "real" / "codegen").mkdir(parents=True)
    (tmp_path / "open" / "link").symlink_to("../real")
    (tmp_path / "cache").symlink_to(tmp_path / "open" / "link")
    cache = tmp_path / "cache" / "codegen"
    assert others_can_change(cache) == ""
    (tmp_path / "open").chmod(0o777)
    assert f"{tmp_path / 'open'} can be written" in others_can_change(cache)
    (tmp_path / "open").chmod(0o700)
    (tmp_path / "real").chmod(0o777)
    assert "real can be written" in others_can_change(cache)
    (tmp_path / "circle").symlink_to("circle")
    for nothing in ("circle", "circle/file", "missing"):
        assert others_can_change(tmp_path / nothing) == ""


def test_without_any_folder_of_ones_own_nothing_is_built(tmp_path, monkeypatch):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "open"))
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path / "open"))
    refused(r"open can be written by others: chmod .* TMPDIR", cache_folder, "codegen")
