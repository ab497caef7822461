"""Both ways of reading a prompt in turn: rates are medians, gains those of a round, and unequal logits are refused."""

import pytest
import torch
from tests.tiny_models import RUN, tiny_llama

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.specs import ModelRun, ModelSpec, Subject
from lutlab.evaluators import context
from lutlab.evaluators.context import Context
from lutlab.generate import prefill


def subject():
    model = tiny_llama()
    lutlab.quantize(model, method="bcq", q=3, g=16)
    return Subject(model, None, (), None, 64, RUN)


def test_ways_take_turns_and_gains_are_of_a_round(monkeypatch):
    ways, own = [], prefill.prefill

    def noted(engine, model, prompts, way):
        ways.append(way)
        return own(engine, model, prompts, way)

    monkeypatch.setattr(prefill, "prefill", noted)
    # Kernel, dequantized; the first round compares.
    seconds = [1.0, 1.0, 2.0, 4.0, 6.0, 3.0, 1.0, 4.0]
    ends = iter(end for one in seconds for end in (0.0, one))
    monkeypatch.setattr(context.time, "perf_counter", lambda: next(ends))
    found = Context(tokens=12, rounds=3).measure(subject())
    assert ways == ["kernel", "dequantize"] * 4
    assert found.values == {
        "kernel_tokens_per_s": 6.0,
        "dequantize_tokens_per_s": 3.0,
        "dequantize_gain": 0.5,
        "prompt_tokens": 12,
    }
    assert found.samples == (0.5, 2.0, 0.25)
    assert found.facts["tokens"] == 12


@pytest.mark.parametrize("wrong", [1.0, float("nan")])
def test_ways_that_disagree_are_not_timed(wrong, monkeypatch):
    own = prefill.prefill

    def broken(engine, model, prompts, way):
        logits = own(engine, model, prompts, way)
        return logits + wrong * torch.arange(len(logits[0])) if way == "dequantize" else logits

    monkeypatch.setattr(prefill, "prefill", broken)
    with pytest.raises(LutlabError, match="read by dequantized weights"):
        Context(tokens=12).measure(subject())


def test_what_cannot_be_measured_is_refused():
    run = ModelRun(ModelSpec("m", "embedded", "m"), "none", 16, -1)
    assert "there is one way" in Context.obstacle(run)
    with pytest.raises(LutlabError, match="context of 64 tokens cannot decode 65"):
        Context(tokens=65).measure(subject())
    with pytest.raises(LutlabError, match=r"evaluator\.context\.rounds=0"):
        Context(rounds=0)
