"""Facts of a checkout by git; where it has no answer, whatever the reason, the error is of one kind."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

# What a hook, or a shell inside another repository, sets: it would answer for that one.
_OF_ANOTHER = (
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_COMMON_DIR",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
)
_SECONDS = 20.0


class NoAnswer(Exception):
    """git is not installed, refuses (another user's repository), finds a broken one, or takes too long."""


def ask(*arguments: str, root: Path | None = None) -> bytes:
    """The output of a git command, which writes nothing into the repository.

    Args:
        arguments: arguments of git.
        root: folder to ask in; None: the current one.

    Raises:
        NoAnswer: git fails; the error has its message.
    """
    own = {key: value for key, value in os.environ.items() if key not in _OF_ANOTHER}
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=root,
            env=own | {"GIT_OPTIONAL_LOCKS": "0"},
            capture_output=True,
            check=False,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswer(f"git cannot be run: {error}") from error
    if done.returncode:
        raise NoAnswer(done.stderr.decode(errors="replace").strip())
    return done.stdout
