"""Perplexity against a few independent lines, on models made here and, where present, on real ones and real text."""

import dataclasses
import math
import random
import re
import statistics

import pytest
import torch
from tests.tiny_models import RUN, byte_tokenizer, tiny_llama, tiny_opt
from transformers import AutoModelForCausalLM, AutoTokenizer

from lutlab import evaluators
from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.specs import Subject, Text, TextSpec
from lutlab.data import load_text
from lutlab.evaluators import perplexity as module
from lutlab.evaluators.perplexity import Perplexity, per_unit, perplexity, window_nll

TEXT = " ".join(f"The {i} quick foxes, thin as threads, eat {i * i} apples." for i in range(12))


def reference(model, ids, seqlen):
    """opt_eval of the GPTQ repository in its own terms, one window at a time."""
    nlls = []
    for i in range(len(ids) // seqlen):
        window = ids[i * seqlen : (i + 1) * seqlen][None]
        with torch.no_grad():
            logits = model.eval()(window).logits
        log_p = logits[0, :-1].double().log_softmax(-1)
        nlls.append(-log_p[torch.arange(seqlen - 1), window[0, 1:]].mean() * seqlen)
    return math.exp(torch.stack(nlls).sum() / (len(nlls) * seqlen))


def subject(model, tokenizer, rows=(TEXT,), protocol="wikitext2", seqlen=32):
    return Subject(model, tokenizer, (), Text(protocol, rows, "rows", "here"), seqlen, RUN)


@pytest.mark.parametrize("make", [tiny_opt, tiny_llama])
@pytest.mark.parametrize("seqlen", [5, 31, 64])
def test_equals_the_reference(make, seqlen):
    model, tokenizer = make(), byte_tokenizer()
    ids = torch.tensor(tokenizer(TEXT).input_ids)
    assert len(ids) % seqlen, "the remainder must matter"
    assert perplexity(model, tokenizer, TEXT, seqlen) == pytest.approx(
        reference(model, ids, seqlen), rel=1e-5
    )


@pytest.mark.parametrize(
    ("name", "seqlen", "characters"),
    [("stories260K", 512, 8000), ("shakespeare-char-opt", 64, 2000)],
)
def test_real_models_on_wikitext2_equal_the_reference(shared, name, seqlen, characters):
    model = AutoModelForCausalLM.from_pretrained(shared / "models" / name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(shared / "models" / name)
    text = load_text(TextSpec("wikitext2", "folder", str(shared / "data")))
    start = "\n\n".join(text.rows)[:characters]
    ids = torch.tensor(tokenizer(start).input_ids)
    assert perplexity(model, tokenizer, start, seqlen) == pytest.approx(
        reference(model, ids, seqlen), rel=1e-5
    )


def test_stories260k_knows_its_own_domain(shared):
    """3.685 over whole stories each with BOS (data card); windows of one stream are harder, other text far harder."""
    folder = shared / "models" / "stories260K"
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    stories = (shared / "data" / "text" / "tinystories_valid_head.txt").read_text()[:20_000]
    assert 3.4 < perplexity(model, AutoTokenizer.from_pretrained(folder), stories, 512) < 4.2


def test_batches_and_chunks_do_not_change_the_result(monkeypatch):
    model, tokenizer = tiny_opt(), byte_tokenizer()
    ids = torch.tensor(tokenizer(TEXT).input_ids)
    expected = window_nll(model, ids, 16)
    for batch, chunk in ((1, 1), (3 * 16 * 260 * 4, 5 * 260 * 4), (2**30, 2**30)):
        monkeypatch.setattr(evaluators, "LOGITS_BYTES", batch)
        monkeypatch.setattr(module, "_CHUNK_BYTES", chunk)
        assert window_nll(model, ids, 16) == pytest.approx(expected, rel=1e-5)


def test_a_batch_of_logits_stays_within_its_budget(monkeypatch):
    model, tokenizer = tiny_opt(), byte_tokenizer()
    sizes = []
    model.register_forward_hook(lambda _m, _i, output: sizes.append(output.logits.nbytes))
    monkeypatch.setattr(evaluators, "LOGITS_BYTES", 5 * 16 * 260 * 4)
    window_nll(model, torch.tensor(tokenizer(TEXT).input_ids), 16)
    assert len(sizes) > 4
    assert max(sizes) == 5 * 16 * 260 * 4


def test_the_measurement_says_what_it_rests_on():
    model, tokenizer = tiny_llama(), byte_tokenizer()
    measured = registry.lookup("evaluator", "ppl")().measure(subject(model, tokenizer))
    facts = measured.facts
    ids = tokenizer(TEXT).input_ids
    assert measured.values["ppl"] == perplexity(model, tokenizer, TEXT, 32)
    assert measured.n == len(measured.samples) == facts["windows"] == len(ids) // 32
    assert math.exp(sum(measured.samples) / (measured.n * 32)) == measured.values["ppl"]
    assert (facts["protocol"], facts["seqlen"], facts["bos"], facts["loss_dtype"]) == (
        "wikitext2",
        32,
        0,
        "float32",
    )
    assert (facts["text_sha256"], facts["origin"], facts["tokens"]) == ("rows", "here", len(ids))
    assert (facts["scored_bytes"], facts["scored_words"]) == naive_counts(ids, tokenizer)
    other = Perplexity().measure(subject(model, byte_tokenizer(bos=False))).facts
    assert other["bos"] is None
    for key in ("token_sha256", "tokenizer_sha256"):
        assert len(facts[key]) == 64
        assert facts[key] != other[key]


def naive_counts(ids, tokenizer):
    """Bytes and words of what the windows of 32 predict: the text (ASCII) between their first and last tokens."""
    starts = [len(tokenizer.decode(ids[:i], skip_special_tokens=True)) for i in range(len(ids) + 1)]
    spans = [(starts[i + 1], starts[i + 32]) for i in range(0, len(ids) - 31, 32)]
    ends = [word.end() for word in re.finditer(r"\S+", TEXT)]
    return (
        sum(last - first for first, last in spans),
        sum(first < end <= last for first, last in spans for end in ends),
    )


@torch.no_grad()
def test_per_byte_and_per_word_are_sums_over_what_is_predicted():
    model, tokenizer = tiny_opt(), byte_tokenizer()
    values = Perplexity().measure(subject(model, tokenizer)).values
    ids = tokenizer(TEXT).input_ids
    nats = 0.0
    for i in range(0, len(ids) - 31, 32):
        log_p = model.eval()(torch.tensor([ids[i : i + 32]])).logits[0].log_softmax(-1)
        nats -= sum(log_p[j, ids[i + j + 1]].item() for j in range(31))
    size, words = naive_counts(ids, tokenizer)
    assert values["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    assert values["word_perplexity"] == pytest.approx(math.exp(nats / words), rel=1e-4)


def test_errors_are_those_of_the_ratios_over_windows_drawn_again():
    draw = random.Random(1)
    sizes = [draw.randint(20, 40) for _ in range(60)]
    words = [size // 5 for size in sizes]
    nll = [draw.gauss(0.1, 0.01) * size * 16 for size in sizes]
    values, errors = per_unit(nll, 16, sizes, words)
    again = []
    for _ in range(2000):
        some = draw.choices(range(60), k=60)
        drawn = ([column[i] for i in some] for column in (nll, sizes, words))
        first, *rest = drawn
        again.append(per_unit(first, 16, *rest)[0])
    for name, value in values.items():
        drawn = statistics.stdev(one[name] for one in again)
        assert errors[name] == pytest.approx(drawn, rel=0.15), (name, value)
    assert per_unit(nll[:1], 16, sizes[:1], words[:1])[1] == {}, "one window has no spread"


def test_half_precision_loss_differs_a_little_as_gptq_and_awq_do():
    model, tokenizer = tiny_opt(), byte_tokenizer()
    full, half = (
        Perplexity(dtype).measure(subject(model, tokenizer)) for dtype in ("float32", "float16")
    )
    assert half.facts["loss_dtype"] == "float16"
    assert half.values["ppl"] != full.values["ppl"]
    assert half.values["ppl"] == pytest.approx(full.values["ppl"], rel=5e-3)


def test_dropout_is_off_and_the_mode_comes_back():
    model, tokenizer = tiny_opt().train(), byte_tokenizer()
    assert perplexity(model, tokenizer, TEXT, 32) == perplexity(model, tokenizer, TEXT, 32)
    assert model.training
    assert model.lm_head.weight.requires_grad


def test_limits_say_what_to_pass():
    model, tokenizer = tiny_opt(), byte_tokenizer()
    with pytest.raises(LutlabError, match="pass seqlen=64 or less"):
        perplexity(model, tokenizer, TEXT)
    with pytest.raises(LutlabError, match="a text of 6 tokens has no window of 32"):
        perplexity(model, tokenizer, "short", 32)
    with pytest.raises(LutlabError, match="seqlen from 2"):
        perplexity(model, tokenizer, TEXT, 1)
    with pytest.raises(LutlabError, match="loss_dtype 'float64': did you mean 'float16'"):
        Perplexity("float64").measure(subject(model, tokenizer))
    with pytest.raises(LutlabError, match="passages-joined"):
        Perplexity().measure(subject(model, tokenizer, protocol="passages"))
    for missing in ("tokenizer", "text"):
        with pytest.raises(LutlabError, match=f"ppl needs a {missing}"):
            Perplexity().measure(dataclasses.replace(subject(model, tokenizer), **{missing: None}))


def test_a_loss_that_is_not_finite_names_its_window():
    model, tokenizer = tiny_llama(), byte_tokenizer(bos=False)
    broken = tokenizer("~").input_ids[0]
    with torch.no_grad():
        model.model.embed_tokens.weight[broken] = math.nan
    with pytest.raises(LutlabError, match=r"window 2 of 3 \(tokens 64 to 95\) is nan"):
        perplexity(model, tokenizer, "x" * 70 + "~" + "x" * 30, 32)


def test_a_perplexity_beyond_a_float_is_an_error():
    model, tokenizer = tiny_llama(), byte_tokenizer()
    with torch.no_grad():
        model.lm_head.weight *= 1e5
    with pytest.raises(LutlabError, match="beyond what exp can express"):
        perplexity(model, tokenizer, TEXT, 32)
