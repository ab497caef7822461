"""What is said of a checkout is true: a changed file makes it dirty."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import pytest

import lutlab
from lutlab.base import sources
from lutlab.experiment.store import provenance
from lutlab.experiment.store.provenance import environment, git_state, major_minor


def git(root: Path, *arguments: str) -> str:
    """Run git without the user's configuration."""
    own = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *own, *arguments], cwd=root, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A clean checkout with lutlab's folders."""
    for name in (
        "src/lutlab/a.py",
        "kernels/b.c",
        "experiments/c.yaml",
        "conf/d.yaml",
        "README.md",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("one\n")
    (tmp_path / ".gitignore").write_text("*.pyc\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    return tmp_path


def test_a_clean_checkout_is_clean(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    assert git_state(repository) == {"git_commit": commit, "git_dirty": False}


@pytest.mark.parametrize(
    ("name", "staged", "dirty"),
    [
        ("src/lutlab/a.py", False, True),
        ("kernels/b.c", True, True),
        ("experiments/c.yaml", False, True),
        ("conf/d.yaml", True, True),
        *(("src/lutlab/new.py", staged, True) for staged in (False, True)),
        ("src/lutlab/new.pyc", False, False),
        ("README.md", True, False),
    ],
)
def test_a_changed_file_that_decides_numbers_is_seen(repository, name, staged, dirty) -> None:
    (repository / name).write_text("two\n")
    if staged:
        git(repository, "add", name)
    assert git_state(repository)["git_dirty"] is dirty


def test_a_removed_file_is_seen(repository: Path) -> None:
    (repository / "kernels/b.c").unlink()
    assert git_state(repository)["git_dirty"] is True


def test_outside_of_a_repository_nothing_is_known(tmp_path: Path) -> None:
    nothing = {"git_commit": None, "git_dirty": None}
    assert git_state(None) == nothing
    assert git_state(tmp_path) == nothing


def test_a_wheel_has_no_commit_even_inside_a_repository(repository: Path, monkeypatch) -> None:
    monkeypatch.setattr(sources, "checkout", lambda: repository)
    assert provenance.repository() == repository
    installed = repository / "environment" / "lib"
    installed.mkdir(parents=True)
    for checkout in (None, installed):
        monkeypatch.setattr(sources, "checkout", lambda found=checkout: found)
        assert provenance.repository() is None


def test_this_process_says_where_it_stands() -> None:
    known = environment()
    inside = provenance.repository() is not None
    assert (known["git_commit"] is not None, known["git_dirty"] is not None) == (inside, inside)


def test_git_is_asked_once_a_process(monkeypatch) -> None:
    environment()
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("git was run again"))
    environment()


@pytest.mark.parametrize(
    ("version", "said"),
    [("2.13.0+cpu", "2.13"), ("2.13.0", "2.13"), ("5.2", "5.2"), ("5.0.0rc1", "5.0")],
)
def test_a_patch_release_says_nothing(version: str, said: str) -> None:
    assert major_minor(version) == said


def test_git_that_cannot_tell_is_no_error(repository: Path, monkeypatch, tmp_path: Path) -> None:
    """A repository of another user, broken, without a commit; git that is missing or cannot be run."""
    nothing = {"git_commit": None, "git_dirty": None}
    # Git's own switch for safe.directory.
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert git_state(repository) == nothing
    monkeypatch.delenv("GIT_TEST_ASSUME_DIFFERENT_OWNER")
    assert git_state(repository)["git_commit"]
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q")
    assert git_state(empty) == nothing
    (repository / ".git" / "HEAD").write_bytes(b"\xff\x00")
    assert git_state(repository) == nothing
    (tmp_path / "git").write_text("#!/nowhere\n")
    (tmp_path / "git").chmod(0o755)
    for path in (tmp_path, tmp_path / "nothing"):
        monkeypatch.setenv("PATH", str(path))
        assert git_state(empty) == nothing


def test_a_shallow_clone_has_its_commit_whichever_repository_the_shell_is_in(
    repository: Path, tmp_path: Path, monkeypatch
) -> None:
    (repository / "README.md").write_text("two\n")
    git(repository, "commit", "-qam", "two")
    git(tmp_path, "clone", "-q", "--depth=1", repository.as_uri(), "shallow")
    other = tmp_path / "other"
    git(tmp_path, "init", "-q", "other")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.chdir(other)
    (tmp_path / "shallow" / "src" / "ä\udcff.py").write_bytes(b"")
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "core.quotePath")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "false")
    found = git_state(tmp_path / "shallow")
    monkeypatch.delenv("GIT_DIR")
    assert found == {"git_commit": git(repository, "rev-parse", "HEAD"), "git_dirty": True}


def test_sources_have_a_digest_of_names_and_content(tmp_path: Path, monkeypatch) -> None:
    checkout, wheel = tmp_path / "checkout", tmp_path / "wheel"
    for name in ("src/lutlab/a.py", "kernels/b.c", "experiments/c.yaml", "conf/d.yaml"):
        shared = (
            name.replace("src/lutlab", "lutlab") if "lutlab" in name else f"lutlab/share/{name}"
        )
        for path in (checkout / name, wheel / shared):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name)

    def digest(package: Path, share: Path) -> str:
        monkeypatch.setattr(provenance.lutlab, "__file__", str(package / "__init__.py"))
        monkeypatch.setattr(sources, "folder", lambda name: share / name)
        return provenance.sources_digest()

    ours = digest(checkout / "src/lutlab", checkout)
    assert ours == digest(wheel / "lutlab", wheel / "lutlab/share")
    (checkout / "src/lutlab/__pycache__").mkdir()
    (checkout / "src/lutlab/__pycache__/a.pyc").write_text("1")
    assert ours == digest(checkout / "src/lutlab", checkout)
    (checkout / "conf/d.yaml").rename(checkout / "conf/e.yaml")
    assert ours != digest(checkout / "src/lutlab", checkout)


def test_a_record_names_the_tools_and_no_host() -> None:
    known = environment()
    assert {"sources", "isa", "blas", "compiler", "cpu", "threads"} <= known.keys()
    assert known["versions"]["lutlab"] == lutlab.__version__
    assert platform.node() not in str(known).split()


def test_tools_that_are_not_there_are_none(monkeypatch) -> None:
    monkeypatch.setenv("LUTLAB_CC", "no-compiler")
    monkeypatch.setenv("LUTLAB_ISA", "no-isa")
    known = environment.__wrapped__()
    assert (known["compiler"], known["isa"]) == (None, None)
    assert provenance.blas("built with: BLAS_INFO=open, ") == "open"
    assert provenance.blas("nothing") is None
