"""What is said of a checkout is true: a changed file makes it dirty."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lutlab import sources
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
    ("name", "dirty"),
    [
        ("src/lutlab/a.py", True),
        ("kernels/b.c", True),
        ("experiments/c.yaml", True),
        ("conf/d.yaml", True),
        ("src/lutlab/new.py", True),
        ("src/lutlab/new.pyc", False),
        ("README.md", False),
    ],
)
@pytest.mark.parametrize("staged", [False, True])
def test_a_changed_file_that_decides_numbers_is_seen(repository, name, dirty, staged) -> None:
    (repository / name).write_text("two\n")
    if staged and not name.endswith(".pyc"):
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
