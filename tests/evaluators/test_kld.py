"""KLD is a naive reading's in float64, exactly 0 of the same weights, and kept inputs of the head change no digit."""

import math
import os
import statistics

import numpy as np
import pytest
import torch
from tests.models.architectures import CAUSAL, make, token_ids, uniform
from tests.tiny_models import byte_tokenizer, tiny_llama

from lutlab.base.errors import LutlabError
from lutlab.base.kept.findings import make_room
from lutlab.base.specs import ModelRun, ModelSpec, Subject, Text
from lutlab.compress.driver import quantize_model
from lutlab.evaluators import kld
from lutlab.evaluators.kld import KLDivergence, token_kl
from lutlab.models.load import load_model
from lutlab.quantizers.rtn import RTN

ROWS = tuple(f"The {i} quick foxes, thin as threads, eat {i * i} apples." for i in range(12))
TEXT = Text("wikitext2", ROWS, "rows", "here")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache folder of the test's own."""
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "full-precision"


@pytest.fixture
def run(tmp_path):
    """A row of a model in a folder."""
    folder = tmp_path / "model"
    tiny_llama().save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return ModelRun(ModelSpec("tiny", "folder", str(folder)), "rtn", 3, 16)


def loaded(run, **options):
    return load_model(run.model, torch.float32, "cpu", 0, **options)


def quantized(run):
    model = loaded(run).model
    quantize_model(model, RTN(), uniform(model, run.q, run.g))
    return model


def measured(model, run, text=TEXT, seqlen=31):
    return KLDivergence().measure(Subject(model, byte_tokenizer(), (), text, seqlen, run))


@torch.no_grad()
def test_values_are_those_of_a_naive_reading(run, monkeypatch):
    monkeypatch.setattr(kld, "_CHUNK_BYTES", 5 * 8 * 260)  # windows end within chunks
    model, full = quantized(run), loaded(run).model
    found = measured(model, run)
    ids = byte_tokenizer()("\n\n".join(ROWS), return_tensors="pt").input_ids[0]
    windows, same = [], []
    for window in ids[: len(ids) // 31 * 31].view(-1, 31):
        p, q = (m(window[None]).logits[0, :-1].double().softmax(-1).numpy() for m in (full, model))
        windows.append((p * np.log(p / q)).sum(-1))
        same += (p.argmax(-1) == q.argmax(-1)).tolist()
    flat = np.concatenate(windows)
    wanted = {
        "kld_mean_nats": statistics.fmean(flat),
        "kld_median_nats": statistics.median(flat),
        "kld_p90_nats": np.quantile(flat, 0.9, method="linear"),
        "kld_p99_nats": np.quantile(flat, 0.99, method="linear"),
        "top1_agreement": statistics.fmean(same),
    }
    assert found.values.keys() == {metric.name for metric in KLDivergence.metrics}
    assert found.values == pytest.approx(wanted, rel=1e-5)
    assert 0.1 < wanted["top1_agreement"] < 0.9
    assert found.n == len(windows) == found.facts["windows"]
    means = [statistics.fmean(one) for one in windows]
    assert found.samples == pytest.approx(means, rel=1e-5)
    error = statistics.stdev(means) / math.sqrt(len(means))
    assert found.errors["kld_mean_nats"] == pytest.approx(error, rel=1e-5)
    assert found.errors.keys() == {"kld_mean_nats", "top1_agreement"}
    assert len(measured(model, run, seqlen=60).errors) == 2


def test_the_same_weights_are_exactly_0_and_others_are_not(run):
    for _ in range(2):  # run, and kept
        found = measured(loaded(run).model, run)
        assert {*found.values.values()} == {0.0, 1.0}
        assert found.values["top1_agreement"] == 1
    streamed = loaded(run, stream=True)
    streamed.blocks.serve()
    assert measured(streamed.model, run).values == found.values
    model = loaded(run).model
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[0, 0] += 1e-3
    assert 0 < measured(model, run).values["kld_mean_nats"] < 1e-4
    torch.manual_seed(1)
    assert measured(make("llama-3"), run).values["kld_median_nats"] > 0.1
    nearly = token_kl(*(torch.tensor([[[0.0, 1.0 + x]]]) for x in (0.0, 1e-6)))[0].item()
    assert nearly == pytest.approx(1e-12 * 0.19661 / 2, rel=0.1), "p (1 - p) / 2, and no rounding"


def test_one_pass_of_the_full_precision_model_serves_all_rows(run, cache, monkeypatch, caplog):
    model = quantized(run)
    first = measured(model, run)
    (folder,) = cache.iterdir()
    states = [path.stat().st_size for path in sorted(folder.iterdir())]
    tokens = first.facts["windows"] * 31
    assert tokens * 32 * 4 < sum(states) < tokens * 32 * 4 + 2000
    passes = []
    plain = kld._full_precision

    def watched(*args, **options):
        full = plain(*args, **options)
        full.model.layers[0].register_forward_hook(lambda *_: passes.append(1))
        return full

    monkeypatch.setattr(kld, "_full_precision", watched)
    assert measured(model, run) == first
    assert not passes
    (file,) = folder.iterdir()
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    assert measured(model, run) == first
    assert passes
    assert "damaged" in caplog.text
    passes.clear()
    for other in ({"seqlen": 30}, {"text": Text("wikitext2", ROWS[1:], "rows", "here")}):
        measured(model, run, **other)
        assert passes
        passes.clear()
    other = tiny_llama()
    with torch.no_grad():
        other.lm_head.weight[7] *= 2
    other.save_pretrained(run.model.id)
    assert measured(model, run).values != first.values
    assert passes, "files of other weights are not its own"


def test_folders_that_were_not_used_for_longest_make_room(tmp_path):
    for age, name in enumerate(("new", "middle", "old", "used")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_bytes(bytes(100))
        os.utime(tmp_path / name, (1e9 - age, 1e9 - age))
    make_room(tmp_path, 300, used=tmp_path / "used")
    assert len([*tmp_path.iterdir()]) == 4
    make_room(tmp_path, 250, used=tmp_path / "used")
    assert {path.name for path in tmp_path.iterdir()} == {"new", "middle", "used"}
    make_room(tmp_path, 99, used=tmp_path / "used")
    assert [path.name for path in tmp_path.iterdir()] == ["used"]


@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_logits_are_what_a_familys_head_makes_of_its_last_states(name):
    model = make(name).eval()
    states = model.base_model(input_ids=token_ids(), use_cache=False).last_hidden_state
    assert torch.equal(model.get_output_embeddings()(states), model(token_ids()).logits)


def test_what_is_refused(run, monkeypatch):
    model = loaded(run).model
    assert "full precision" in KLDivergence.obstacle(ModelRun(run.model, "stored", 4, 16))
    with pytest.raises(LutlabError, match=r"kld measures models for causal_lm.*evaluate masked_lm"):
        measured(make("bert"), run)
    with torch.no_grad():
        model.lm_head.weight[5] = torch.nan
    with pytest.raises(LutlabError, match=r"KL of window 0 of \d+ is nan"):
        measured(model, run)
    plain = kld._full_precision

    def cap(_model, _inputs, out):
        out.logits.div_(3).tanh_().mul_(3)

    def capped(*args, **options):
        full = plain(*args, **options)
        full.register_forward_hook(cap)
        return full

    monkeypatch.setattr(kld, "_full_precision", capped)
    with pytest.raises(
        LutlabError, match="from what its head puts out: they are changed behind it"
    ):
        measured(model, run, seqlen=33)
