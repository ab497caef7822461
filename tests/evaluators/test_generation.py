"""Decoding against transformers' own generate, and what is refused; how fast it is, is no test."""

import pytest
import torch
from tests.tiny_models import one_thread, tiny_llama, tiny_opt  # noqa: F401

import lutlab
from lutlab.errors import LutlabError
from lutlab.evaluators import generation
from lutlab.evaluators.generation import Generation, decode
from lutlab.kernels.codegen.isa import detect
from lutlab.specs import Subject

pytestmark = pytest.mark.usefixtures("one_thread")


def subject(model):
    return Subject(model, None, (), None, 64)


@pytest.mark.parametrize("make", [tiny_opt, tiny_llama])
def test_decodes_what_transformers_decodes(make):
    model = make().eval()
    prompt = torch.tensor([[model.config.bos_token_id]])
    theirs = model.generate(prompt, do_sample=False, min_new_tokens=20, max_new_tokens=20)
    with torch.inference_mode():
        ours = decode(model, 20)
    assert ours.dtype == torch.int64
    ends = (theirs[0] == model.config.eos_token_id).nonzero()
    same = int(ends[1]) if len(ends) > 1 else 21  # min_new_tokens forbids an end, we pass over it
    assert ours[:same].tolist() == theirs[0][:same].tolist()


@pytest.mark.parametrize("quantized", [False, True])
def test_measures_every_repeat_and_names_the_kernel(quantized, monkeypatch):
    model = tiny_llama()
    model.train()
    if quantized:
        lutlab.quantize(model, method="rtn", q=4, g=16)
    clock = iter([0.0, 4.0, 10.0, 11.0, 20.0, 22.0])  # seconds 4, 1, 2
    monkeypatch.setattr(generation.time, "perf_counter", lambda: next(clock))
    found = Generation(tokens=12, repeats=3).measure(subject(model))
    assert found.values == {"tokens_per_s": 12 / 2}
    assert (found.n, found.samples) == (3, (4.0, 1.0, 2.0))
    assert found.facts["tokens"] == 12
    assert found.facts["threads"] == 1
    variant = "uniform int24" if detect().name == "avx2" else "uniform convert"
    ours = f"{variant}, {detect().name}, 1 threads"
    assert found.facts["kernel"] == [ours if quantized else "torch matmul"]
    assert model.training


def test_a_context_too_short_is_refused():
    with pytest.raises(LutlabError, match="context of 64 tokens cannot decode 128"):
        Generation().measure(subject(tiny_llama(context=64)))


def test_a_context_just_long_enough_is_used():
    for make in (tiny_opt, tiny_llama):
        assert Generation(tokens=24, repeats=1).measure(subject(make(context=24))).n == 1


class Forgetful(torch.nn.Module):
    """Chooses another token when it has a cache than when it has none."""

    def __init__(self, model):
        super().__init__()
        self.model, self.config, self.device, self.dtype = (
            model,
            model.config,
            model.device,
            model.dtype,
        )

    def forward(self, input_ids, past_key_values=None, use_cache=False):
        out = self.model(input_ids=input_ids, past_key_values=past_key_values, use_cache=use_cache)
        if use_cache and past_key_values is not None and past_key_values.get_seq_length() > 5:
            out.logits = -out.logits
        return out


def test_nothing_is_timed_that_a_cache_changes():
    with pytest.raises(LutlabError, match="first at 5 of 12"):
        Generation(tokens=12).measure(subject(Forgetful(tiny_llama())))


def test_logits_that_are_no_numbers_are_refused():
    model = tiny_llama()
    model.lm_head.weight.data.fill_(float("nan"))
    with pytest.raises(LutlabError, match="first at 0 of 12"):
        Generation(tokens=12).measure(subject(model))


def test_attention_is_the_one_asked_for_and_put_back():
    model = tiny_llama()
    before, seen = model.config._attn_implementation, []
    model.register_forward_pre_hook(lambda m, _: seen.append(m.config._attn_implementation))
    found = Generation(tokens=4, repeats=1, attention="eager").measure(subject(model))
    assert (set(seen), found.facts["attention"]) == ({"eager"}, "eager")
    assert model.config._attn_implementation == before != "eager"
    with pytest.raises(LutlabError, match="did you mean 'eager'"):
        Generation(attention="eagre")
