"""Processes that decode one model together through gloo, against one process; and one that is killed meanwhile."""

import os
import signal
import time

import pytest
import torch
from tests.models.architectures import make

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.specs import ModelSpec
from lutlab.models.load import load_model
from lutlab.parallel import decoding as parallel
from lutlab.parallel import ranks

PROMPTS = [[5, 6, 7, 8, 9], [11, 12]]
TOKENS = 12


def saved(folder):
    """OPT with letters of its own, and a LLaMA whose one key-value head both ranks hold, cut 32 and 16 channels."""
    spec = ModelSpec("opt", "embedded", "opt-embedded-s")
    models = {"opt": load_model(spec, torch.float32, "cpu", 0).model, "llama": make("llama-3")}
    for (name, model), method in zip(models.items(), ("bcq", "rtn"), strict=True):
        lutlab.quantize(model, method, 4, 16)
        lutlab.save(model, folder / name)
    return models


# ---- in two processes ----


def job(rank, folder):
    """Decode both models; then decode on, until rank 1 is killed."""
    found = {}
    for name in ("opt", "llama"):
        own = parallel.engine(parallel.load(folder / name, rank), 2, 64)
        first = own.prefill([torch.tensor(ids) for ids in PROMPTS])
        found[name] = first, parallel.greedy(own, PROMPTS, TOKENS), own.facts()
    with pytest.raises(LutlabError) as raised:
        rank.agree({"folder": "same", "dtype": str(rank.index)})
    if not rank.index:
        torch.save(found | {"differs": str(raised.value)}, folder / "found")
    for token in range(40):
        if token == 3 and rank.index:
            (folder / "killed").write_text(str(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)
        own.step(torch.tensor([token, token]))


@pytest.mark.slow
def test_two_processes_choose_the_tokens_of_one_and_end_with_one_that_is_killed(tmp_path):
    models, wait = saved(tmp_path), 30.0
    with pytest.raises(
        LutlabError, match=r"of 2 processes .*, process 1 terminated with .*SIGKILL"
    ):
        ranks.run(job, 2, "cpu", (tmp_path,), wait_seconds=wait)
    assert time.monotonic() - float((tmp_path / "killed").read_text()) < wait + 5
    found = torch.load(tmp_path / "found")
    for name, model in models.items():
        alone = lutlab.engine(model, 2, 64, name="transformers")
        expected = alone.prefill([torch.tensor(ids) for ids in PROMPTS])
        first, tokens, facts = found[name]
        assert (first - expected).abs().max() < 1e-4 * expected.abs().max()
        assert torch.equal(tokens, parallel.greedy(alone, PROMPTS, TOKENS))
        assert (facts["ranks"], facts["exchange"]) == (2, "gloo")
        assert facts["cache_bytes"] == alone.facts()["cache_bytes"] * (0.5 if name == "opt" else 1)
    assert "against rank 0 differs rank 1 in its dtype: give all" in found["differs"]
