"""Decoding against transformers' own; its speed by clocks that are not real: shared, of models cut short, by QIGen."""

import json

import pytest
import torch
from tests.base.refusals import refused
from tests.evaluators.items import check, clock, subject
from tests.parallel.thread_ranks import ThreadRank, together
from tests.tiny_models import tiny_llama, tiny_opt
from transformers import DynamicCache

import lutlab
from lutlab.base.specs import Measurement, ModelRun, ModelSpec, Subject
from lutlab.evaluators import depth, generation, latency, qigen
from lutlab.evaluators.generation import Generation, decode
from lutlab.evaluators.latency import Latency
from lutlab.evaluators.qigen import QIGen
from lutlab.kernels.codegen.isa import detect, halved
from lutlab.kernels.cpu.qigen import qigen_gemv
from lutlab.models.families import decoder_blocks
from lutlab.parallel import ranks


def row(device="cuda"):
    return ModelRun(ModelSpec("m", "embedded", "m"), "rtn", 4, 128, device=device)


@pytest.mark.parametrize("make", [tiny_opt, tiny_llama])
@torch.inference_mode()
def test_decodes_what_transformers_decodes(make):
    model = make().eval()
    prompt = torch.tensor([[model.config.bos_token_id]])
    theirs = model.generate(prompt, do_sample=False, min_new_tokens=20, max_new_tokens=20)[0]
    ours = decode(model, 20)
    assert ours.dtype == torch.int64
    ends = (theirs == model.config.eos_token_id).nonzero()
    same = int(ends[1]) if len(ends) > 1 else 21  # min_new_tokens forbids an end, we pass over it
    assert torch.equal(ours[:same], theirs[:same])


@pytest.mark.parametrize("quantized", [False, True])
def test_measures_every_repeat_and_names_the_kernel(quantized, monkeypatch):
    model = tiny_llama().train()
    if quantized:
        lutlab.quantize(model, method="rtn", q=4, g=16)
    clock(monkeypatch, 4.0, 1.0, 2.0)  # each of 11 steps
    measured = Generation(tokens=12, repeats=3, engine="transformers").measure(subject(model))
    read = measured.facts["bytes_read"]
    gb_s = sum(read[part] for part in ("weights", "head", "cache")) / 1e9 * 11 / 2
    check(measured, {"tokens_per_s": 11 / 2, "ms_per_token": 2000 / 11, "bandwidth_gb_s": gb_s})
    assert (measured.n, measured.samples) == (3, (4.0, 1.0, 2.0))
    on = detect(slow="avx512" if halved() else "").name
    ours = f"uniform {'int24' if on == 'avx2' else 'convert'}, {on}, 1 threads"
    facts = {
        "engine": "transformers", "tokens": 12, "prompt_tokens": 1, "batch": 1, "threads": 1,
        "cache": "float32", "head": "float32", "kernel": [ours if quantized else "torch matmul"],
    }  # fmt: skip
    assert measured.facts.items() >= facts.items()
    assert model.training


def test_rows_of_a_batch_are_texts_of_their_own_behind_their_prompts():
    model = tiny_llama()
    measured = Generation(tokens=6, repeats=1, prompt=5, batch=3).measure(subject(model))
    assert (measured.facts["prompt_tokens"], measured.facts["batch"]) == (5, 3)
    check(measured, {"tokens_per_s": 3 * 1e3 / measured.values["ms_per_token"]})
    texts = generation.prompts(model, 3, 5)
    assert len({tuple(text.tolist()) for text in texts}) == 3
    own = lutlab.engine(model.eval(), batch=3, length=10, name="transformers")
    for ids in generation.decoded(own, texts, 6):
        assert generation.first_difference(model, ids, 5) is None
        ids[-1] = (ids[-1] + 1) % 260
        assert generation.first_difference(model, ids, 5) == 5


@pytest.mark.parametrize("make", [tiny_opt, tiny_llama])
def test_a_context_just_long_enough_is_used_and_a_shorter_one_refused(make):
    own = Generation(tokens=20, repeats=1, prompt=5)
    assert own.measure(subject(make(context=24))).n == 1
    refused("context of 23 tokens cannot decode 24", own.measure, subject(make(context=23)))


def test_nothing_is_timed_that_a_cache_changes_or_that_is_no_number():
    own, model, broken = Generation(tokens=12, engine="transformers"), tiny_llama(), tiny_llama()

    def forgetful(_module, _args, given, out):
        """Chooses another token when it has a longer cache than when it has none."""
        caches = [value for value in given.values() if isinstance(value, DynamicCache)]
        if sum(cache.get_seq_length() for cache in caches) > 6:
            out.logits.neg_()

    model.register_forward_hook(forgetful, with_kwargs=True)
    refused("first at 6 of 12", own.measure, subject(model))
    broken.lm_head.weight.data.fill_(torch.nan)
    refused("first at 0 of 12", own.measure, subject(broken))


def test_attention_is_the_one_asked_for_and_put_back():
    model = tiny_llama()
    before, seen = model.config._attn_implementation, []
    model.register_forward_pre_hook(lambda m, _: seen.append(m.config._attn_implementation))
    own = Generation(tokens=4, repeats=1, engine="transformers", attention="eager")
    assert {own.measure(subject(model)).facts["attention"], *seen} == {"eager"}
    assert model.config._attn_implementation == before != "eager"
    refused("set evaluator.generation.engine=transformers", Generation, attention="sdpa")
    refused("evaluator.generation.batch=0", Generation, batch=0)


def test_latency_is_of_one_gpu_the_median_repeats_milliseconds_a_token(monkeypatch):
    assert "no CUDA device" in Latency.obstacle(row("cpu"))
    assert "set device=cuda" in Latency.obstacle(row("spread"))
    assert Latency.obstacle(row()) == Latency.obstacle(row("cuda:1")) == ""
    clock(monkeypatch, 4.0, 1.0, 2.0)  # each of 10 steps
    own = Latency(tokens=11, repeats=3, engine="transformers")
    measured = own.measure(subject(tiny_opt(), run=row()))
    assert measured.values == {"latency_1gpu_ms": pytest.approx(200.0)}
    assert (measured.samples, measured.facts["tokens"]) == ((4.0, 1.0, 2.0), 11)


def test_ranks_share_the_model_and_choose_its_tokens_or_say_why_not(monkeypatch):
    """Ranks are threads of this process; the last id that the first says may be changed in `change`."""
    change = []

    def run(job, count, device, task, *limits):
        ids, decoding = together(job, count, *task)[0]
        return [*ids[:-1], *change] if change else ids, decoding

    monkeypatch.setattr(ThreadRank, "agree", lambda rank, parts: None, raising=False)
    monkeypatch.setattr(ranks, "run", run)
    model = lutlab.quantize(tiny_opt().eval(), "rtn", q=4, g=16)
    own, counts = Latency(tokens=6, repeats=2, prompt=3), {"latency_2gpu_ms": 2}
    values, facts, not_shared = own._shared(model, counts, "cpu")
    assert (not_shared, facts["latency_2gpu_ms"]["ranks"]) == ({}, 2)
    seconds = facts["latency_2gpu_ms"]["seconds"]
    assert values == {"latency_2gpu_ms": pytest.approx(1e3 * sum(seconds) / 2 / 5)}
    monkeypatch.setattr(latency, "gpus", lambda device: 4)
    measured = own.measure(subject(tiny_opt(), run=row()))
    assert set(measured.values) == {"latency_1gpu_ms", "latency_2gpu_ms"}
    assert "4" in measured.facts["not_measured"]["latency_4gpu_ms"]
    change.append(259)
    refused("first at 5 of 6", own._shared, model, counts, "cpu")


def costs(layers):
    """A token takes 3 s and 2 s a layer, the model 30 bytes and 10 a layer."""
    return {"tokens_per_s": 1 / (3 + 2 * layers), "memory_gb": 30 + 10 * layers}


@depth.scaled_to_all_layers
def ideal(self: None, subject: Subject) -> Measurement:
    """At the depth at hand."""
    layers = len(decoder_blocks(subject.model))
    assert subject.model.config.num_hidden_layers == layers
    return Measurement(costs(layers), n=1, samples=(float(layers),), facts={"threads": 1})


@pytest.fixture
def shallow(tmp_path):
    """A model that is said to be the first layers of a whole one."""

    def cut(model, source="synthetic", layers=2, whole=7):
        config = model.config.to_dict() | {"num_hidden_layers": whole}
        (tmp_path / "config.json").write_text(json.dumps(config))
        spec = ModelSpec("cut", source, str(tmp_path), layers=layers)
        return subject(model, run=ModelRun(spec, "rtn", 4, 16))

    return cut


@pytest.mark.parametrize("make", [tiny_llama, tiny_opt])
def test_what_grows_with_every_layer_is_scaled_exactly(make, shallow):
    model = make()
    scaled = ideal(None, shallow(model))
    assert scaled.values == pytest.approx(costs(7))
    assert (scaled.facts["threads"], scaled.facts["scaled_to_layers"]) == (1, 7)
    assert scaled.facts["layers_measured"] == [1, 2]
    assert scaled.facts["values_measured"][1] == pytest.approx(costs(2))
    assert len(decoder_blocks(model)) == model.config.num_hidden_layers == 2
    for options in ({"source": "folder"}, {"layers": None}, {"whole": 2}):  # whole, and left alone
        measured = ideal(None, shallow(model, **options))
        assert measured.values == pytest.approx(costs(2))
        assert "scaled_to_layers" not in measured.facts


@pytest.mark.parametrize("make", [tiny_llama, tiny_opt])
@torch.inference_mode()
def test_the_model_with_half_its_layers_decodes_as_one_that_never_had_more(make):
    model, half = make().eval(), make().eval()
    owner = half.model if make is tiny_llama else half.model.decoder
    owner.layers = owner.layers[:1]
    half.config.num_hidden_layers = 1
    whole = decode(model, 12)
    with depth._first_layers(model, 1):
        cut = decode(model, 12)
    assert torch.equal(cut, decode(half, 12))
    assert torch.equal(whole, decode(model, 12))


def test_a_single_layer_and_noise_are_refused(shallow):
    with depth._first_layers(model := tiny_llama(), 1):
        refused("give 2", ideal, None, shallow(model, layers=1))
    message, layers = "2 layers took no longer than 1", (1, 2, 7)
    refused(message, depth._scaled, "tokens_per_s", 1.0, 1.1, layers)


def test_decoding_is_scaled(shallow, monkeypatch):
    """24 steps take 4 s with two layers and 2 s with one: 400 s with 200."""
    clock(monkeypatch, 4.0, 2.0)
    own = Generation(tokens=25, repeats=1, engine="transformers")
    scaled = own.measure(shallow(tiny_llama(), whole=200))
    less, more = (values["gb_per_token"] for values in scaled.facts["values_measured"])
    gb = more + 198 * (more - less)
    rates = {"tokens_per_s": 24 / 400, "ms_per_token": 1e3 * 400 / 24, "gb_per_token": gb}
    check(scaled, rates | {"bandwidth_gb_s": gb * 24 / 400})
    assert scaled.samples == (4.0,)


def test_a_table_says_that_the_model_was_cut(command, monkeypatch):
    def timed(engine, texts, tokens, repeats):
        return Measurement({"tokens_per_s": 1 / (1 + len(decoder_blocks(engine.model)))}, n=1)

    monkeypatch.setattr(generation, "timed", timed)
    outcome = command(
        "model=synthetic", "model.id=llama-embedded-s", "model.layers=2", "evaluate=[generation]", "logger=none"
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    (record,) = command.records().values()
    assert record["values"]["tokens_per_s"] == pytest.approx(1 / 5)
    assert record["facts"]["scaled_to_layers"] == 4
    assert "synthetic-llama-embedded-s, 2 layers" in outcome.out
    assert "scaled to all of them" in " ".join(outcome.out.split())


def quantized(make=tiny_llama, q=4, g=16, method="rtn"):
    return lutlab.quantize(make(), method=method, q=q, g=g)


@pytest.mark.parametrize("make", [tiny_llama, tiny_opt])  # opt's layers have a bias
@pytest.mark.parametrize(("q", "g"), [(4, 16), (3, -1), (2, 32)])
@torch.inference_mode()
def test_logits_are_those_of_our_kernels(make, q, g):
    model = quantized(make, q, g).eval()
    ids = torch.tensor([[1, 5, 9]])
    ours = model(ids).logits
    with qigen._multiplying(qigen._packed(model)):
        theirs = model(ids).logits
    assert not torch.equal(ours, theirs)  # other kernels, other rounding
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * float(ours.abs().max()))
    assert torch.equal(ours, model(ids).logits)


@pytest.fixture
def model():
    """Quantized; afterwards its layers multiply as before."""
    model = quantized()
    yield model
    assert not any("forward" in vars(module) for module in model.modules())


def test_measures_with_the_kernels_it_names(model, monkeypatch):
    calls, gemv = [], qigen_gemv.gemv
    monkeypatch.setattr(qigen_gemv, "gemv", lambda x, w: calls.append(1) or gemv(x, w))
    measured = QIGen(tokens=6, repeats=2).measure(subject(model))
    assert (len(calls), len(measured.samples)) == (2 * 7 * (6 + 2 * 6), 2)  # decoded, timed twice
    assert measured.values["tokens_per_s"] > 0
    assert measured.facts["searched"] == (4 in qigen_gemv._searched())
    kernels = measured.facts["kernel"]
    assert kernels == [name for name in kernels if name.startswith("qigen q4 g16")]


def test_kernels_that_decode_something_else_are_not_timed(model, monkeypatch):
    gemv = qigen_gemv.gemv
    monkeypatch.setattr(qigen_gemv, "gemv", lambda x, weight: gemv(x, weight) * -1.1)
    refused("other tokens than lutlab's, first at", QIGen(tokens=6).measure, subject(model))


def test_what_the_kernels_do_not_multiply_is_refused():
    measure = QIGen(tokens=6).measure
    refused("no layer is quantized", measure, subject(tiny_llama()))
    refused("are not: quantize by method=rtn", measure, subject(quantized(method="bcq", q=3)))
    refused("q=5", measure, subject(quantized(q=5)))
    refused("device=cpu dtype=float32", measure, subject(quantized().bfloat16()))
    refused("cannot decode 128", QIGen().measure, subject(quantized()))
