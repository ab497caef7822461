"""Processes that work together: what one of them says when it fails, and that none is left."""

import json
import multiprocessing
import os
import signal
import time

import pytest
import torch

from lutlab.base.errors import LutlabError
from lutlab.parallel import ranks


def fail(rank, folder):
    (folder / f"rank-{rank.index}").write_text(str(os.getpid()))
    if rank.index == 1:
        raise ValueError("the second weight is wrong")
    rank.largest(0.0)  # waits for rank 1 in vain


def wait(rank):
    if rank.index == 1:
        time.sleep(600)


@pytest.mark.slow
def test_the_first_failure_is_told_and_ends_the_others(tmp_path, monkeypatch, trapped):
    own = tmp_path / "temporary"
    own.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(own))
    with pytest.raises(
        LutlabError, match=r"on rank 1 of 2: ValueError: the second weight is wrong"
    ):
        ranks.run(fail, 2, "cpu", (tmp_path,))
    for rank in (0, 1):
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / f"rank-{rank}").read_text()), signal.SIG_DFL)
    assert list(own.iterdir()) == []


def test_ranks_that_are_not_done_in_time_are_ended():
    with pytest.raises(LutlabError, match=r"were not done in 0\.2 s"):
        ranks.run(wait, 2, "cpu", seconds=0.2)
    assert multiprocessing.active_children() == []


def failure(rank, at, kind, reason):
    return json.dumps({"rank": rank, "at": at, "kind": kind, "reason": reason, "traceback": ""})


class Ended(Exception):
    """What torch says of a process that ended."""

    error_index = 0


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("LutlabError", LutlabError, "on rank 1 of 2: wrong"),
        ("OutOfMemoryError", torch.OutOfMemoryError, "on rank 1 of 2: wrong"),
        ("KeyError", LutlabError, "on rank 1 of 2: KeyError: wrong"),
    ],
)
def test_reasons_keep_their_kind_and_the_earliest_counts(tmp_path, kind, error, message):
    (tmp_path / "failure-0").write_text(failure(0, 20, "RuntimeError", "connection closed by peer"))
    (tmp_path / "failure-1").write_text(failure(1, 10, kind, "wrong"))
    with pytest.raises(error, match=f"^{message}$"):
        ranks._fail(tmp_path, 2, Ended())


def test_a_process_that_could_say_nothing_is_told_by_its_end(tmp_path):
    (tmp_path / "failure-1").write_text(failure(1, 10, "RuntimeError", "connection closed by peer"))
    with pytest.raises(LutlabError, match="process 0 terminated with signal SIGKILL"):
        ranks._fail(tmp_path, 2, Ended("process 0 terminated with signal SIGKILL"))


def test_who_was_killed_is_told_before_who_waited_for_it(tmp_path):
    alone = "waited for the others in vain"
    (tmp_path / "failure-0").write_text(failure(0, 20, "Alone", alone))
    error = Ended()
    error.error_index = 0
    with pytest.raises(LutlabError, match="process 1 terminated with signal SIGKILL"):
        ranks._fail(tmp_path, 2, error, [1, -signal.SIGKILL])
    with pytest.raises(LutlabError, match=f"on rank 0 of 2: {alone}; no word came from rank 1$"):
        ranks._fail(tmp_path, 2, error, [1, -signal.SIGTERM])  # it hung, and was ended by us
    (tmp_path / "failure-1").write_text(failure(1, 30, "ValueError", "wrong"))
    with pytest.raises(LutlabError, match="on rank 1 of 2: ValueError: wrong"):
        ranks._fail(tmp_path, 2, error, [1, 1])
