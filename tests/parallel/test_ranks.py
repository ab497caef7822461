"""Processes that decode a model together, against one; what one says when it fails, and that none is left."""

import json
import multiprocessing
import os
import signal
import time

import pytest
import torch
from tests.base.refusals import refused
from tests.models.architectures import make

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.specs import ModelSpec
from lutlab.models.load import load_model
from lutlab.parallel import decoding as parallel
from lutlab.parallel import ranks

PROMPTS = [torch.tensor([5, 6, 7, 8, 9]), torch.tensor([11, 12])]
TOKENS = 12


def saved(folder):
    """OPT with letters of its own, and a LLaMA whose one key-value head both ranks hold, cut 32 and 16 channels."""
    spec = ModelSpec("opt", "embedded", "opt-embedded-s")
    models = {"opt": load_model(spec, torch.float32, "cpu", 0).model, "llama": make("llama-3")}
    for (name, model), method in zip(models.items(), ("bcq", "rtn"), strict=True):
        lutlab.save(lutlab.quantize(model, method, 4, 16), folder / name)
    return models


def decoded(engine):
    """Logits after the prompts, and the tokens that follow."""
    return engine.prefill(PROMPTS), parallel.greedy(engine, [p.tolist() for p in PROMPTS], TOKENS)


def job(rank, folder):
    """Decode both models; then decode on, until rank 1 is killed."""
    results = {}
    for name in ("opt", "llama"):
        own = parallel.engine(parallel.load(folder / name, rank), 2, 64)
        results[name] = *decoded(own), own.facts()
    with pytest.raises(LutlabError) as raised:
        rank.agree({"folder": "same", "dtype": str(rank.index)})
    if not rank.index:
        torch.save(results | {"differs": str(raised.value)}, folder / "results")
    for token in range(40):
        if token == 3 and rank.index:
            (folder / "killed").write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        own.step(torch.tensor([token, token]))


@pytest.mark.slow
def test_two_processes_choose_the_tokens_of_one_and_end_with_one_that_is_killed(tmp_path):
    models, wait = saved(tmp_path), 30.0
    message = r"of 2 processes .*, process 1 terminated with .*SIGKILL"
    refused(message, ranks.run, job, 2, "cpu", (tmp_path,), wait_seconds=wait)
    assert time.monotonic() - float((tmp_path / "killed").read_text()) < wait + 5
    results = torch.load(tmp_path / "results")
    for name, model in models.items():
        alone = lutlab.engine(model, 2, 64, name="transformers")
        expected, expected_tokens = decoded(alone)
        logits, tokens, facts = results[name]
        assert (logits - expected).abs().max() < 1e-4 * expected.abs().max()
        assert torch.equal(tokens, expected_tokens)
        assert (facts["ranks"], facts["exchange"]) == (2, "gloo")
        assert facts["cache_bytes"] == alone.facts()["cache_bytes"] * (0.5 if name == "opt" else 1)
    assert "against rank 0 differs rank 1 in its dtype: give all" in results["differs"]


def fail(rank, folder):
    (folder / f"rank-{rank.index}").write_text(str(os.getpid()))
    if rank.index == 1:
        raise ValueError("the second weight is wrong")
    rank.largest(0.0)  # waits for rank 1 in vain


def wait(rank):
    time.sleep(600 * rank.index)


@pytest.mark.slow
def test_the_first_failure_is_told_and_ends_the_others(tmp_path, monkeypatch, trapped):
    own = tmp_path / "temporary"
    own.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(own))
    message = r"on rank 1 of 2: ValueError: the second weight is wrong"
    refused(message, ranks.run, fail, 2, "cpu", (tmp_path,))
    for rank in (0, 1):
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / f"rank-{rank}").read_text()), signal.SIG_DFL)
    assert list(own.iterdir()) == []


def test_ranks_that_are_not_done_in_time_are_ended():
    refused(r"were not done in 0\.2 s", ranks.run, wait, 2, "cpu", seconds=0.2)
    assert multiprocessing.active_children() == []


@pytest.fixture
def failure(tmp_path):
    """Writes what a rank said when it failed."""

    def write(rank, at, kind, reason):
        facts = {"rank": rank, "at": at, "kind": kind, "reason": reason, "traceback": ""}
        (tmp_path / f"failure-{rank}").write_text(json.dumps(facts))

    return write


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
def test_reasons_keep_their_kind_and_the_earliest_counts(tmp_path, failure, kind, error, message):
    failure(0, 20, "RuntimeError", "connection closed by peer")
    failure(1, 10, kind, "wrong")
    with pytest.raises(error, match=f"^{message}$"):
        ranks._fail(tmp_path, 2, Ended())


def test_who_was_killed_is_told_before_who_waited_for_it(tmp_path, failure):
    failure(1, 10, "RuntimeError", "connection closed by peer")  # and rank 0 could say nothing
    end = "process 0 terminated with signal SIGKILL"
    refused(end, ranks._fail, tmp_path, 2, Ended(end))
    (tmp_path / "failure-1").unlink()
    alone = "waited for the others in vain"
    failure(0, 20, "Alone", alone)
    killed, hung = -signal.SIGKILL, -signal.SIGTERM  # which ended it for us
    message = "process 1 terminated with signal SIGKILL"
    refused(message, ranks._fail, tmp_path, 2, Ended(), [1, killed])
    message = f"on rank 0 of 2: {alone}; no word came from rank 1$"
    refused(message, ranks._fail, tmp_path, 2, Ended(), [1, hung])
    failure(1, 30, "ValueError", "wrong")
    refused("on rank 1 of 2: ValueError: wrong", ranks._fail, tmp_path, 2, Ended(), [1, 1])
