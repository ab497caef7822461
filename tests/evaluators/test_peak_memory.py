"""A fresh process that decodes: it sees the model's bytes, and none of the process that started it."""

import json
import signal
import subprocess

import pytest
import torch
from tests.tiny_models import RUN, tiny_llama
from transformers import LlamaConfig, LlamaForCausalLM

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.specs import Subject
from lutlab.evaluators import peak_memory
from lutlab.evaluators.peak_memory import PeakMemory


def subject(model):
    return Subject(model, None, (), None, 64, RUN)


@pytest.mark.slow
def test_counts_the_model_and_not_this_process(trapped, monkeypatch):
    """A model of 128 MiB beside ballast of 1 GiB in this process; the child is of this checkout."""
    monkeypatch.setenv("PYTHONPATH", str(trapped))
    ballast = torch.ones(2**28)
    config = LlamaConfig(
        vocab_size=32768, hidden_size=512, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, max_position_embeddings=64, bos_token_id=1,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    weights = sum(p.nbytes for p in model.parameters()) / 1e9
    found = PeakMemory(tokens=8).measure(subject(model))
    total, own = found.values["peak_memory_gb"], found.values["model_memory_gb"]
    # from the file, the head is read whole, of the embeddings a row a token; pages and copies may both count
    assert 0.49 * weights < own < 2.5 * weights + 0.05
    assert own < total < ballast.nbytes / 1e9
    assert total == pytest.approx(own + found.facts["interpreter_gb"])
    assert found.facts["kernel"] == ["torch matmul"]
    assert found.facts["threads"] == 1


def test_a_quantized_model_is_loaded_quantized(tmp_path, capfd):
    """What the fresh process does, in this one."""
    model = tiny_llama()
    lutlab.quantize(model, method="rtn", q=3, g=16)
    peak_memory.save(model, tmp_path / "model")
    peak_memory.run(str(tmp_path / "model"), type(model).__module__, "8", "1")
    out, err = capfd.readouterr()
    seen = json.loads(out.splitlines()[-1])
    assert seen["kernel"]
    assert "torch matmul" not in seen["kernel"]
    assert 0 < seen["before"] <= seen["peak"]
    assert "shards" not in err


@pytest.mark.parametrize(
    ("code", "stderr", "error", "message"),
    [
        (1, "Traceback\nRuntimeError: no such layer\n", LutlabError, "failed: RuntimeError: no such layer"),
        (3, "", LutlabError, "it said nothing"),
        (-signal.SIGKILL, "", MemoryError, "was killed"),
    ],
)  # fmt: skip
def test_a_process_that_fails_says_why(code, stderr, error, message, monkeypatch):
    done = subprocess.CompletedProcess([], code, "", stderr)
    monkeypatch.setattr(peak_memory.subprocess, "run", lambda *a, **k: done)
    with pytest.raises(error, match=message):
        PeakMemory(tokens=8).measure(subject(tiny_llama()))


def test_what_cannot_be_measured_is_refused(monkeypatch, tmp_path):
    with pytest.raises(LutlabError, match="cannot decode 128"):
        PeakMemory().measure(subject(tiny_llama()))
    with pytest.raises(LutlabError, match="without stream=true"):
        PeakMemory(tokens=8).measure(subject(tiny_llama().to("meta")))
    monkeypatch.setattr(peak_memory, "_STATUS", tmp_path / "none")
    with pytest.raises(LutlabError, match="only Linux"):
        PeakMemory(tokens=8).measure(subject(tiny_llama()))
