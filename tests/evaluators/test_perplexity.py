"""Perplexity and divergence against independent lines in float64, of models made here and, where present, real ones."""

import dataclasses
import math
import os
import random
import re
import statistics

import numpy as np
import pytest
import torch
from tests.base.refusals import refused
from tests.evaluators import items
from tests.models.architectures import CAUSAL, make, token_ids, uniform
from tests.tiny_models import byte_tokenizer, tiny_llama, tiny_opt

from lutlab import evaluators
from lutlab.base import registry
from lutlab.base.kept.findings import make_room
from lutlab.base.specs import ModelRun, ModelSpec, Text, TextSpec
from lutlab.compress.driver import quantize_model
from lutlab.data import load_text
from lutlab.evaluators import kld
from lutlab.evaluators import perplexity as module
from lutlab.evaluators.kld import KLDivergence, token_kl
from lutlab.evaluators.perplexity import Perplexity, per_unit, perplexity, window_nll
from lutlab.models.load import load_model
from lutlab.quantizers.rtn import RTN

ROWS = tuple(f"The {i} quick foxes, thin as threads, eat {i * i} apples." for i in range(12))
TEXT = " ".join(ROWS)
TOKENIZER = byte_tokenizer()
IDS = TOKENIZER(TEXT).input_ids


@torch.no_grad()
def reference(model, ids, seqlen):
    """Mean nats of what windows predict, in float64, as opt_eval of the GPTQ repository has them."""
    windows = torch.tensor(ids[: len(ids) // seqlen * seqlen]).view(-1, seqlen)
    log_p = model.eval()(windows).logits[:, :-1].double().log_softmax(-1)
    return -log_p.gather(-1, windows[:, 1:, None]).mean().item()


def check(model, tokenizer, text, seqlen):
    expected = math.exp(reference(model, tokenizer(text).input_ids, seqlen))
    assert perplexity(model, tokenizer, text, seqlen) == pytest.approx(expected, rel=1e-5)


def subject(model, tokenizer=TOKENIZER, protocol="wikitext2"):
    return items.subject(model, tokenizer, Text(protocol, (TEXT,), "rows", "here"), 32)


@pytest.mark.parametrize("make", [tiny_opt, tiny_llama])
@pytest.mark.parametrize("seqlen", [5, 31, 64])
def test_equals_the_reference(make, seqlen):
    assert len(IDS) % seqlen, "the remainder must matter"
    check(make(), TOKENIZER, TEXT, seqlen)


@pytest.mark.parametrize(
    ("name", "seqlen", "characters"),
    [("stories260K", 512, 8000), ("shakespeare-char-opt", 64, 2000)],
)
def test_real_models_on_wikitext2_equal_the_reference(shared, name, seqlen, characters):
    text = load_text(TextSpec("wikitext2", "folder", str(shared / "data")))
    check(*items.real_model(shared, name), "\n\n".join(text.rows)[:characters], seqlen)


def test_stories260k_knows_its_own_domain(shared):
    """3.685 over whole stories each with BOS (data card); windows of one stream are harder, other text far harder."""
    stories = (shared / "data" / "text" / "tinystories_valid_head.txt").read_text()[:20_000]
    assert 3.4 < perplexity(*items.real_model(shared, "stories260K"), stories, 512) < 4.2


def test_batches_and_chunks_keep_to_their_budget_and_do_not_change_the_result(monkeypatch):
    model, ids, sizes = tiny_opt(), torch.tensor(IDS), []
    expected = window_nll(model, ids, 16)
    model.register_forward_hook(lambda _m, _i, output: sizes.append(output.logits.nbytes))
    window = 16 * 260 * 4
    for batch, chunk in ((1, 1), (3 * window + 9, 5 * 260 * 4), (2**30, 2**30)):
        monkeypatch.setattr(evaluators, "LOGITS_BYTES", batch)
        monkeypatch.setattr(module, "_CHUNK_BYTES", chunk)
        assert window_nll(model, ids, 16) == pytest.approx(expected, rel=1e-5)
        assert max(sizes) == min(max(batch // window, 1), len(IDS) // 16) * window


def test_the_measurement_says_what_it_rests_on():
    model = tiny_llama()
    measured = registry.lookup("evaluator", "ppl")().measure(subject(model))
    ppl = perplexity(model, TOKENIZER, TEXT, 32)
    assert math.exp(sum(measured.samples) / (measured.n * 32)) == measured.values["ppl"] == ppl
    assert measured.n == len(measured.samples) == measured.facts["windows"] == len(IDS) // 32
    scored_bytes, scored_words = naive_counts()
    facts = {
        "protocol": "wikitext2", "seqlen": 32, "bos": 0, "loss_dtype": "float32", "text_sha256": "rows",
        "origin": "here", "tokens": len(IDS), "scored_bytes": scored_bytes, "scored_words": scored_words,
    }  # fmt: skip
    assert measured.facts.items() >= facts.items()
    other = Perplexity().measure(subject(model, byte_tokenizer(bos=False))).facts
    assert other["bos"] is None
    for key in ("token_sha256", "tokenizer_sha256"):
        assert len(measured.facts[key]) == 64
        assert measured.facts[key] != other[key]


def naive_counts():
    """Bytes and words of what the windows of 32 predict: the text (ASCII) between their first and last tokens."""
    starts = [len(TOKENIZER.decode(IDS[:i], skip_special_tokens=True)) for i in range(len(IDS) + 1)]
    spans = [(starts[i + 1], starts[i + 32]) for i in range(0, len(IDS) - 31, 32)]
    ends = [word.end() for word in re.finditer(r"\S+", TEXT)]
    size = sum(last - first for first, last in spans)
    return size, sum(first < end <= last for first, last in spans for end in ends)


def test_per_byte_and_per_word_are_sums_over_what_is_predicted():
    model = tiny_opt()
    values = Perplexity().measure(subject(model)).values
    nats = reference(model, IDS, 32) * 31 * (len(IDS) // 32)
    size, words = naive_counts()
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
        first, *rest = ([column[i] for i in some] for column in (nll, sizes, words))
        again.append(per_unit(first, 16, *rest)[0])
    for name, value in values.items():
        drawn = statistics.stdev(values_again[name] for values_again in again)
        assert errors[name] == pytest.approx(drawn, rel=0.15), (name, value)
    assert per_unit(nll[:1], 16, sizes[:1], words[:1])[1] == {}, "one window has no spread"


def test_half_precision_loss_differs_a_little_as_gptq_and_awq_do_and_dropout_is_off():
    full, half = (Perplexity(f"float{b}").measure(subject(tiny_opt())) for b in (32, 16))
    assert half.facts["loss_dtype"] == "float16"
    assert full.values["ppl"] != half.values["ppl"] == pytest.approx(full.values["ppl"], rel=5e-3)
    model = tiny_opt().train()
    assert perplexity(model, TOKENIZER, TEXT, 32) == perplexity(model, TOKENIZER, TEXT, 32)
    assert model.training
    assert model.lm_head.weight.requires_grad


def test_limits_say_what_to_pass():
    model = tiny_opt()
    refused("pass seqlen=64 or less", perplexity, model, TOKENIZER, TEXT)
    refused("a text of 6 tokens has no window of 32", perplexity, model, TOKENIZER, "short", 32)
    refused("seqlen from 2", perplexity, model, TOKENIZER, TEXT, 1)
    message = "loss_dtype 'float64': did you mean 'float16'"
    refused(message, lambda: Perplexity("float64").measure(subject(model)))
    refused("passages-joined", Perplexity().measure, subject(model, protocol="passages"))
    for missing in ("tokenizer", "text"):
        without = dataclasses.replace(subject(model), **{missing: None})
        refused(f"ppl needs a {missing}", Perplexity().measure, without)


@torch.no_grad()
def test_a_loss_that_is_no_number_names_its_window_and_one_beyond_a_float_is_refused():
    model, tokenizer = tiny_llama(), byte_tokenizer(bos=False)
    model.model.embed_tokens.weight[tokenizer("~").input_ids[0]] = math.nan
    message = r"window 2 of 3 \(tokens 64 to 95\) is nan"
    refused(message, perplexity, model, tokenizer, "x" * 70 + "~" + "x" * 30, 32)
    model.lm_head.weight *= 1e5
    refused("beyond what exp can express", perplexity, model, TOKENIZER, TEXT, 32)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A row of a model in a folder, with a cache folder of its own."""
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "model"
    tiny_llama().save_pretrained(folder)
    TOKENIZER.save_pretrained(folder)
    return ModelRun(ModelSpec("tiny", "folder", str(folder)), "rtn", 3, 16)


def loaded(run, **options):
    return load_model(run.model, torch.float32, "cpu", 0, **options)


def quantized(run):
    model = loaded(run).model
    quantize_model(model, RTN(), uniform(model, run.q, run.g))
    return model


def hook_full(monkeypatch, part, hook):
    """Full-precision models that are loaded from now on have a hook on one of their parts."""

    def load(*arguments, **options):
        full = plain(*arguments, **options)
        full.get_submodule(part).register_forward_hook(hook)
        return full

    plain = kld._full_precision
    monkeypatch.setattr(kld, "_full_precision", load)


def divergence(model, run, rows=ROWS, seqlen=31):
    text = Text("wikitext2", rows, "rows", "here")
    return KLDivergence().measure(items.subject(model, TOKENIZER, text, seqlen, run=run))


@torch.no_grad()
def test_divergences_are_those_of_a_naive_reading(run, monkeypatch):
    monkeypatch.setattr(kld, "_CHUNK_BYTES", 5 * 8 * 260)  # windows end within chunks
    model, full = quantized(run), loaded(run).model
    measurement = divergence(model, run)
    ids = TOKENIZER("\n\n".join(ROWS), return_tensors="pt").input_ids[0]
    windows = ids[: len(ids) // 31 * 31].view(-1, 31)
    p, q = (m(windows).logits[:, :-1].double().softmax(-1).numpy() for m in (full, model))
    rows, same = (p * np.log(p / q)).sum(-1), p.argmax(-1) == q.argmax(-1)
    flat, means = rows.flatten(), rows.mean(1).tolist()
    wanted = {
        "kld_mean_nats": statistics.fmean(flat),
        "kld_median_nats": statistics.median(flat),
        "kld_p90_nats": np.quantile(flat, 0.9, method="linear"),
        "kld_p99_nats": np.quantile(flat, 0.99, method="linear"),
        "top1_agreement": same.mean(),
    }
    assert measurement.values == pytest.approx(wanted, rel=1e-5)
    assert wanted.keys() == {metric.name for metric in KLDivergence.metrics}
    assert 0.1 < wanted["top1_agreement"] < 0.9
    assert measurement.n == len(windows) == measurement.facts["windows"]
    assert measurement.samples == pytest.approx(means, rel=1e-5)
    error = statistics.stdev(means) / math.sqrt(len(means))
    assert measurement.errors["kld_mean_nats"] == pytest.approx(error, rel=1e-5)
    errors = {"kld_mean_nats", "top1_agreement"}
    assert measurement.errors.keys() == errors == divergence(model, run, seqlen=60).errors.keys()


def test_the_same_weights_are_exactly_0_and_others_are_not(run):
    for _ in range(2):  # run, and kept
        values = divergence(loaded(run).model, run).values
        assert ({*values.values()}, values["top1_agreement"]) == ({0.0, 1.0}, 1)
    streamed = loaded(run, stream=True)
    streamed.blocks.serve()
    assert divergence(streamed.model, run).values == values
    model = loaded(run).model
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[0, 0] += 1e-3
    assert 0 < divergence(model, run).values["kld_mean_nats"] < 1e-4
    assert divergence(make("llama-3"), run).values["kld_median_nats"] > 0.1
    nearly = token_kl(*(torch.tensor([[[0.0, 1.0 + x]]]) for x in (0.0, 1e-6)))[0].item()
    assert nearly == pytest.approx(1e-12 * 0.19661 / 2, rel=0.1), "p (1 - p) / 2, and no rounding"


def test_one_pass_of_the_full_precision_model_serves_all_rows(run, tmp_path, monkeypatch, caplog):
    model, passes = quantized(run), []
    hook_full(monkeypatch, "model.layers.0", lambda *_: passes.append(1))

    def values(**options):
        """And whether full precision was run for them."""
        passes.clear()
        return divergence(model, run, **options), bool(passes)

    first, passed = values()
    assert passed
    (folder,) = (tmp_path / "cache" / "full-precision").iterdir()
    size = first.facts["windows"] * 31 * 32 * 4
    assert size < sum(path.stat().st_size for path in folder.iterdir()) < size + 2000
    assert values() == (first, False)
    (file,) = folder.iterdir()
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    assert values() == (first, True)
    assert "damaged" in caplog.text
    assert values(seqlen=30)[1]
    assert values(rows=ROWS[::-1])[1]
    other = tiny_llama()
    with torch.no_grad():
        other.lm_head.weight[7] *= 2
    other.save_pretrained(run.model.id)
    changed, passed = values()
    assert changed.values != first.values
    assert passed, "files of other weights are not its own"


def test_folders_that_were_not_used_for_longest_make_room(tmp_path):
    for age, name in enumerate(("new", "middle", "old", "used")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(bytes(100))
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    everyone = {"new", "middle", "old", "used"}
    for limit, left in ((300, everyone), (250, everyone - {"old"}), (99, {"used"})):
        make_room(tmp_path, limit, used=tmp_path / "used")
        assert {path.name for path in tmp_path.iterdir()} == left


@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_logits_are_what_a_familys_head_makes_of_its_last_states(name):
    model = make(name).eval()
    states = model.base_model(input_ids=token_ids(), use_cache=False).last_hidden_state
    assert torch.equal(model.get_output_embeddings()(states), model(token_ids()).logits)


def test_what_has_no_divergence_is_refused(run, monkeypatch):
    assert "full precision" in KLDivergence.obstacle(ModelRun(run.model, "stored", 4, 16))
    message = r"kld measures models for causal_lm.*evaluate masked_lm"
    refused(message, divergence, make("bert"), run)
    model = loaded(run).model
    with torch.no_grad():
        model.lm_head.weight[5] = torch.nan
    refused(r"KL of window 0 of \d+ is nan", divergence, model, run)
    capped = lambda _m, _i, out: setattr(out, "logits", (out.logits / 3).tanh() * 3)  # noqa: E731
    hook_full(monkeypatch, "", capped)
    message = "from what its head puts out: they are changed behind it"
    refused(message, divergence, model, run, seqlen=33)
