"""Models that ranks share give what one rank gives, whatever the family, the format and the cut."""

import copy
import dataclasses
import threading

import pytest
import torch
from tests.models.architectures import CAUSAL, make, token_ids
from tests.parallel.thread_ranks import together

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.specs import ModelRun, ModelSpec
from lutlab.compress import synthetic
from lutlab.formats import cut
from lutlab.generate.cpu import CpuStep
from lutlab.generate.graph import GraphStep
from lutlab.models.families import linear_layers
from lutlab.models.resident import Resident
from lutlab.modules import QuantLinear
from lutlab.parallel import decoding as parallel
from lutlab.parallel.shard import share_out

# Uneven: 48 intermediate channels are 3 groups of 16. Heads of 8 lie inside of groups of 16.
METHODS = {
    "opt": ("bcq", 2, 16), "llama-2": ("rtn", 3, 16), "gpt2": ("rtn", 4, -1), "gpt-neo": ("mixed_2_4_16", 2.5, 16),
}  # fmt: skip


@torch.inference_mode()
def logits_of(rank, model):
    own = copy.deepcopy(model)
    return share_out(own, Resident(own), rank).model(token_ids()).logits


def steps_of(rank, model):
    """Tokens by the engine of GPUs, without its graphs; and why that of CPUs does not take a part."""
    own = copy.deepcopy(model)
    part = share_out(own, Resident(own), rank)
    step = GraphStep(part.model, 2, 24)
    step.of_ranks = {"ranks": rank.count}
    return parallel.greedy(step, [[5, 6, 7], [8]], 9), CpuStep.obstacle(part.model, ""), step


def near(found, expected):
    return (found - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("name", CAUSAL)
def test_the_logits_are_those_of_one_rank(name):
    model = make(name)
    if name in METHODS:
        method, q, g = METHODS[name]
        lutlab.quantize(model, method, q, g, skip=["*.0.*"], calibration=token_ids(4))
    with torch.inference_mode():
        expected = model(token_ids()).logits
    for found in together(logits_of, 2, model):
        assert near(found, expected)


def test_columns_with_an_order_are_given_all_channels():
    model = make("llama-2")
    lutlab.quantize(
        model, "gptq", 4, 16, calibration=token_ids(4), act_order=True, static_groups=False
    )
    assert all(cut.order(layer.packed) is not None for _, layer in linear_layers(model))
    with torch.inference_mode():
        expected = model(token_ids()).logits
    for found in together(logits_of, 2, model):
        assert near(found, expected)


@pytest.fixture
def in_turn(monkeypatch):
    """Threads make their models in turn: transformers patches what it shares with all threads while it does."""
    lock = threading.Lock()

    def locked(function):
        def call(*arguments):
            with lock:
                return function(*arguments)

        return call

    for module, name in ((parallel, "load_mapped"), (synthetic, "drawn_blocks")):
        monkeypatch.setattr(module, name, locked(getattr(module, name)))


def loaded(rank, folders):
    part = parallel.load(folders[rank.index], rank, torch.float32)
    with torch.inference_mode():
        return part.model(token_ids()).logits, part


def test_the_step_of_a_gpu_chooses_the_tokens_of_one_rank():
    model = make("llama-2")
    expected = parallel.greedy(
        lutlab.engine(model, 2, 24, name="transformers"), [[5, 6, 7], [8]], 9
    )
    for tokens, why, step in together(steps_of, 2, model):
        assert torch.equal(tokens, expected)
        assert "its modules have hooks" in why
        assert step.facts()["ranks"] == 2
        # Layers, k and v, one head of 8, rows.
        assert step.facts()["cache_bytes"] == 2 * 2 * 1 * 8 * 24 * 2 * 4


def bits(model):
    quantized = (layer for _, layer in linear_layers(model) if isinstance(layer, QuantLinear))
    return sum(layer.packed.bits_stored for layer in quantized)


@pytest.mark.usefixtures("in_turn")
@pytest.mark.parametrize("name", ["opt-350m", "llama-3"])
def test_a_saved_model_is_loaded_part_by_part(name, tmp_path):
    model = make(name)
    lutlab.quantize(model, "rtn", 3, 16, skip=["*.0.*"])
    lutlab.save(model, tmp_path / "saved", max_shard_size="20KB")
    with torch.inference_mode():
        expected = model(token_ids()).logits
    for found, part in together(loaded, 2, [tmp_path / "saved"] * 2):
        assert near(found, expected)
        assert bits(part.model) < 0.7 * bits(model)
        assert not [n for n, p in part.model.named_parameters() if p.is_meta]


@pytest.mark.usefixtures("in_turn")
def test_ranks_that_were_given_different_models_are_refused(tmp_path):
    folders = [tmp_path / "a", tmp_path / "b"]
    for q, folder in zip((3, 4), folders, strict=True):
        model = make("opt")
        lutlab.quantize(model, "rtn", q, 16)
        lutlab.save(model, folder)
    message = r"2 ranks do not have parts of one model, .* rank 1 in its config.json, rank 1 in .*SHA256SUMS"
    with pytest.raises(LutlabError, match=message):
        together(loaded, 2, folders)
    weights = folders[0] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    with pytest.raises(LutlabError, match=r"model.safetensors is not the file"):
        together(loaded, 2, folders[:1] * 2)


def timed_on(rank, model):
    own = copy.deepcopy(model)
    part = share_out(own, Resident(own), rank)
    return parallel.timed(part, 6, 3), part.silent


def test_decoding_is_timed_with_and_without_what_is_sent():
    run = ModelRun(ModelSpec("llama", "embedded", "llama-embedded-s"), "rtn", 3, 32)
    (first, silent), (second, _) = together(timed_on, 2, parallel.quantized(run).model)
    assert not silent
    assert first.seconds == second.seconds  # of the slowest
    assert (first.tokens, len(first.seconds), len(first.apart)) == (6, 3, 3)
    assert first.facts["ranks"] == 2
    assert first.ms_per_token > 0
    assert 0 <= first.communication < 1
    # Layers, k and v, one head of 2.
    assert first.facts["bytes_read"]["cache"] == 4 * 2 * 32 * 6 * 4
    with pytest.raises(LutlabError, match=r"lutlab.save it, and measure the folder"):
        parallel.latency(dataclasses.replace(run, budget=3.0), 2, 6, 3)


def drawn_on(rank, run):
    drawing = synthetic.drawn_blocks(run, "cpu", rank.count)
    part = share_out(drawing.model, drawing, rank)
    with torch.inference_mode():
        return part.model(token_ids()).logits


@pytest.mark.usefixtures("in_turn")
def test_a_drawn_model_is_drawn_part_by_part():
    spec = ModelSpec("llama", "synthetic", "llama-embedded-s", layers=2, packed=True)
    run = ModelRun(spec, "bcq", 3, 32)
    model = synthetic.load_packed(run)[0].model
    with torch.inference_mode():
        expected = model(token_ids()).logits
    for found in together(drawn_on, 2, run):
        assert near(found, expected)


def test_heads_that_cannot_be_shared_are_refused_with_the_numbers():
    with pytest.raises(LutlabError, match=r"2 attention heads with 2 of .* shared by 4 ranks"):
        together(logits_of, 4, make("opt"))
