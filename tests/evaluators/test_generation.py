"""Decoding against transformers' own generate, and what is refused; how fast it is, is no test."""

import pytest
import torch
from tests.tiny_models import RUN, tiny_llama, tiny_opt
from transformers import DynamicCache

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.specs import Subject
from lutlab.evaluators import generation
from lutlab.evaluators.generation import Generation, decode
from lutlab.kernels.codegen.isa import detect


def subject(model):
    return Subject(model, None, (), None, 64, RUN)


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
    clock = iter([0.0, 4.0, 10.0, 11.0, 20.0, 22.0])  # seconds 4, 1, 2, each of 11 steps
    monkeypatch.setattr(generation.time, "perf_counter", lambda: next(clock))
    found = Generation(tokens=12, repeats=3, engine="transformers").measure(subject(model))
    read = found.facts["bytes_read"]
    assert set(read) == {"weights", "head", "cache"}
    assert found.values["tokens_per_s"] == pytest.approx(11 / 2)
    assert found.values["ms_per_token"] == pytest.approx(2000 / 11)
    assert found.values["bandwidth_gb_s"] == pytest.approx(sum(read.values()) / 1e9 * 11 / 2)
    assert (found.n, found.samples) == (3, (4.0, 1.0, 2.0))
    said = {"engine": "transformers", "tokens": 12, "prompt_tokens": 1, "batch": 1, "threads": 1}
    said |= {"cache": "float32", "head": "float32"}
    assert found.facts.items() >= said.items()
    variant = "uniform int24" if detect().name == "avx2" else "uniform convert"
    ours = f"{variant}, {detect().name}, 1 threads"
    assert found.facts["kernel"] == [ours if quantized else "torch matmul"]
    assert model.training


def test_rows_of_a_batch_are_texts_of_their_own_behind_their_prompts():
    model = tiny_llama()
    found = Generation(tokens=6, repeats=1, prompt=5, batch=3).measure(subject(model))
    assert (found.facts["prompt_tokens"], found.facts["batch"]) == (5, 3)
    assert found.values["tokens_per_s"] == pytest.approx(3 * 1e3 / found.values["ms_per_token"])
    texts = generation.prompts(model, 3, 5)
    assert len({tuple(text.tolist()) for text in texts}) == 3
    own = lutlab.engine(model.eval(), batch=3, length=10, name="transformers")
    for ids in generation.decoded(own, texts, 6):
        assert generation.first_difference(model, ids, 5) is None
        ids[-1] = (ids[-1] + 1) % 260
        assert generation.first_difference(model, ids, 5) == 5


def test_a_context_too_short_is_refused():
    with pytest.raises(LutlabError, match="context of 64 tokens cannot decode 128"):
        Generation().measure(subject(tiny_llama(context=64)))


def test_a_context_just_long_enough_is_used():
    for make in (tiny_opt, tiny_llama):
        model = make(context=24)
        assert Generation(tokens=20, repeats=1, prompt=5).measure(subject(model)).n == 1


def test_nothing_is_timed_that_a_cache_changes(monkeypatch):
    model = tiny_llama()
    forward = model.forward

    def forgetful(**given):
        """Chooses another token when it has a longer cache than when it has none."""
        caches = [value for value in given.values() if isinstance(value, DynamicCache)]
        kept = sum(cache.get_seq_length() for cache in caches)
        out = forward(**given)
        out.logits = -out.logits if kept > 5 else out.logits
        return out

    monkeypatch.setattr(model, "forward", forgetful)
    with pytest.raises(LutlabError, match="first at 6 of 12"):
        Generation(tokens=12, engine="transformers").measure(subject(model))


def test_logits_that_are_no_numbers_are_refused():
    model = tiny_llama()
    model.lm_head.weight.data.fill_(float("nan"))
    with pytest.raises(LutlabError, match="first at 0 of 12"):
        Generation(tokens=12, engine="transformers").measure(subject(model))


def test_attention_is_the_one_asked_for_and_put_back():
    model = tiny_llama()
    before, seen = model.config._attn_implementation, []
    model.register_forward_pre_hook(lambda m, _: seen.append(m.config._attn_implementation))
    own = Generation(tokens=4, repeats=1, engine="transformers", attention="eager")
    found = own.measure(subject(model))
    assert (set(seen), found.facts["attention"]) == ({"eager"}, "eager")
    assert model.config._attn_implementation == before != "eager"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "eagre"}, "did you mean 'eager'"),
        ({"attention": "sdpa"}, "set evaluator.generation.engine=transformers"),
        ({"tokens": 1}, "evaluator.generation.tokens=1: give a whole number of at least 2"),
        ({"batch": 0}, "evaluator.generation.batch=0"),
    ],
)
def test_what_cannot_be_measured_is_refused(options, message):
    with pytest.raises(LutlabError, match=message):
        Generation(**options)
