"""A cut model's cost, scaled: exact for what grows by the same with every layer, and said in the facts."""

from __future__ import annotations

import json

import pytest
import torch
from tests.tiny_models import tiny_llama, tiny_opt

from lutlab.base.errors import LutlabError
from lutlab.base.specs import Measurement, ModelRun, ModelSpec, Subject
from lutlab.evaluators import depth, generation
from lutlab.evaluators.depth import scaled_to_all_layers
from lutlab.evaluators.generation import Generation, decode
from lutlab.models.families import decoder_blocks


class Ideal:
    """A token takes 3 s and 2 s a layer, the model 30 bytes and 10 a layer."""

    @scaled_to_all_layers
    def measure(self, subject: Subject) -> Measurement:
        """At the depth at hand."""
        layers = len(decoder_blocks(subject.model))
        assert subject.model.config.num_hidden_layers == layers
        values = {"tokens_per_s": 1 / (3 + 2 * layers), "memory_gb": 30 + 10 * layers}
        return Measurement(values, n=1, samples=(float(layers),), facts={"threads": 1})


def subject(tmp_path, model, source="synthetic", layers=2, whole=7):
    (tmp_path / "config.json").write_text(
        json.dumps(model.config.to_dict() | {"num_hidden_layers": whole})
    )
    spec = ModelRun(ModelSpec("cut", source, str(tmp_path), layers=layers), "rtn", 4, 16)
    return Subject(model, None, (), None, 64, spec)


@pytest.mark.parametrize("make", [tiny_llama, tiny_opt])
def test_what_grows_with_every_layer_is_scaled_exactly(make, tmp_path):
    model = make()
    found = Ideal().measure(subject(tmp_path, model))
    assert found.values == pytest.approx({"tokens_per_s": 1 / 17, "memory_gb": 100})
    assert found.facts["threads"] == 1
    assert found.facts["scaled_to_layers"] == 7
    assert found.facts["layers_measured"] == [1, 2]
    assert found.facts["values_measured"][1] == pytest.approx(
        {"tokens_per_s": 1 / 7, "memory_gb": 50}
    )
    assert len(decoder_blocks(model)) == model.config.num_hidden_layers == 2


@pytest.mark.parametrize("options", [{"source": "folder"}, {"layers": None}, {"whole": 2}])
def test_what_is_whole_is_left_alone(options, tmp_path):
    found = Ideal().measure(subject(tmp_path, tiny_llama(), **options))
    assert found.values == pytest.approx({"tokens_per_s": 1 / 7, "memory_gb": 50})
    assert "scaled_to_layers" not in found.facts


@pytest.mark.parametrize("make", [tiny_llama, tiny_opt])
def test_the_model_with_half_its_layers_decodes_as_one_that_never_had_more(make):
    model, half = make().eval(), make().eval()
    path = "model.layers" if make is tiny_llama else "model.decoder.layers"
    owner = half.get_submodule(path.rpartition(".")[0])
    owner.layers = owner.layers[:1]
    half.config.num_hidden_layers = 1
    half.load_state_dict({k: v for k, v in model.state_dict().items() if k in half.state_dict()})
    with torch.inference_mode():
        whole = decode(model, 12)
        with depth._first_layers(model, 1):
            cut = decode(model, 12)
        assert torch.equal(cut, decode(half, 12))
        assert torch.equal(whole, decode(model, 12))


def test_a_single_layer_and_noise_are_refused(tmp_path, monkeypatch):
    with depth._first_layers(model := tiny_llama(), 1), pytest.raises(LutlabError, match="give 2"):
        Ideal().measure(subject(tmp_path, model, layers=1))
    with pytest.raises(LutlabError, match="2 layers took no longer than 1"):
        depth._scaled("tokens_per_s", 1.0, 1.1, (1, 2, 7))


def test_decoding_is_scaled(tmp_path, monkeypatch):
    """24 steps take 4 s with two layers and 2 s with one: 400 s with 200."""
    clock = iter([0.0, 4.0, 10.0, 12.0])
    monkeypatch.setattr(generation.time, "perf_counter", lambda: next(clock))
    own = Generation(tokens=25, repeats=1, engine="transformers")
    found = own.measure(subject(tmp_path, tiny_llama(), whole=200))
    assert found.values["tokens_per_s"] == pytest.approx(24 / 400)
    assert found.values["ms_per_token"] == pytest.approx(1e3 * 400 / 24)
    (less, more), gb = found.facts["values_measured"], found.values["gb_per_token"]
    a_layer = more["gb_per_token"] - less["gb_per_token"]
    assert gb == pytest.approx(more["gb_per_token"] + 198 * a_layer)
    assert found.values["bandwidth_gb_s"] == pytest.approx(gb * 24 / 400)
    assert found.samples == (4.0,)


def test_a_table_says_that_the_model_was_cut(command, monkeypatch):
    def timed(engine, texts, tokens, repeats):
        layers = len(decoder_blocks(engine.model))
        return Measurement({"tokens_per_s": 1 / (1 + layers)}, n=1)

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
