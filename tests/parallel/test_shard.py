"""Parts that ranks have, of real shapes too: they give what one rank gives, whatever the family, format and cut."""

import copy
import dataclasses
import threading
from functools import partial

import pytest
import torch
from tests.base.refusals import refused
from tests.models.architectures import CAUSAL, make, token_ids
from tests.parallel.thread_ranks import together

import lutlab
from lutlab.base.specs import ModelRun, ModelSpec
from lutlab.compress import synthetic
from lutlab.formats import cut
from lutlab.generate.cpu import CpuStep
from lutlab.generate.graph import GraphStep
from lutlab.models.families import family_named, linear_layers
from lutlab.models.resident import Resident
from lutlab.modules import QuantLinear
from lutlab.parallel import decoding as parallel
from lutlab.parallel.shard import Width, share_of, share_out

# Uneven: 48 intermediate channels are 3 groups of 16. Heads of 8 lie inside of groups of 16.
METHODS = {
    "opt": ("bcq", 2, 16), "llama-2": ("rtn", 3, 16), "gpt2": ("rtn", 4, -1), "gpt-neo": ("mixed_2_4_16", 2.5, 16),
}  # fmt: skip


@torch.inference_mode()
def logits(model):
    return model(token_ids()).logits


def part_of(rank, model):
    own = copy.deepcopy(model)
    return share_out(own, Resident(own), rank)


def logits_of(rank, model):
    return logits(part_of(rank, model).model)


def check(model, shared):
    """The logits of every rank are those of one."""
    expected = logits(model)
    for part in shared:
        assert (part - expected).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("name", CAUSAL)
def test_the_logits_are_those_of_one_rank(name):
    model = make(name)
    if name in METHODS:
        lutlab.quantize(model, *METHODS[name], skip=["*.0.*"], calibration=token_ids(4))
    check(model, together(logits_of, 2, model))


def test_columns_with_an_order_are_given_all_channels():
    options = {"calibration": token_ids(4), "act_order": True, "static_groups": False}
    model = lutlab.quantize(make("llama-2"), "gptq", 4, 16, **options)
    assert all(cut.order(layer.packed) is not None for _, layer in linear_layers(model))
    check(model, together(logits_of, 2, model))


@pytest.fixture(autouse=True)
def in_turn(monkeypatch):
    """Threads make their models in turn: transformers patches what it shares with all threads while it does."""
    lock = threading.Lock()

    def locked(function, *arguments):
        with lock:
            return function(*arguments)

    for module, name in ((parallel, "load_mapped"), (synthetic, "drawn_blocks")):
        monkeypatch.setattr(module, name, partial(locked, getattr(module, name)))


def steps_of(rank, model):
    """Tokens by the engine of GPUs, without its graphs; and why that of CPUs does not take a part."""
    part = part_of(rank, model).model
    step = GraphStep(part, 2, 24)
    step.of_ranks = {"ranks": rank.count}
    return parallel.greedy(step, [[5, 6, 7], [8]], 9), CpuStep.obstacle(part, ""), step.facts()


def test_the_step_of_a_gpu_chooses_the_tokens_of_one_rank():
    model = make("llama-2")
    alone = lutlab.engine(model, 2, 24, name="transformers")
    expected = parallel.greedy(alone, [[5, 6, 7], [8]], 9)
    for tokens, why, facts in together(steps_of, 2, model):
        assert torch.equal(tokens, expected)
        assert "its modules have hooks" in why
        # Layers, k and v, one head of 8, rows.
        assert (facts["ranks"], facts["cache_bytes"]) == (2, 2 * 2 * 1 * 8 * 24 * 2 * 4)


def bits(model):
    quantized = (layer for _, layer in linear_layers(model) if isinstance(layer, QuantLinear))
    return sum(layer.packed.bits_stored for layer in quantized)


def loaded(rank, folders):
    part = parallel.load(folders[rank.index], rank, torch.float32)
    return logits(part.model), part.model


@pytest.mark.parametrize("name", ["opt-350m", "llama-3"])
def test_a_saved_model_is_loaded_part_by_part(name, tmp_path):
    model = lutlab.quantize(make(name), "rtn", 3, 16, skip=["*.0.*"])
    lutlab.save(model, tmp_path / "saved", max_shard_size="20KB")
    shared, parts = zip(*together(loaded, 2, [tmp_path / "saved"] * 2), strict=True)
    check(model, shared)
    for part in parts:
        assert bits(part) < 0.7 * bits(model)
        assert not any(parameter.is_meta for parameter in part.parameters())


def test_ranks_that_were_given_different_models_are_refused(tmp_path):
    folders = [tmp_path / "3", tmp_path / "4"]
    for folder in folders:
        lutlab.save(lutlab.quantize(make("opt"), "rtn", int(folder.name), 16), folder)
    message = r"2 ranks do not have parts of one model, .* rank 1 in its config.json, rank 1 in .*SHA256SUMS"
    refused(message, together, loaded, 2, folders)
    weights = folders[0] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    refused(r"model.safetensors is not the file", together, loaded, 2, folders[:1] * 2)


def timed_on(rank, model):
    part = part_of(rank, model)
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
    folder = r"lutlab.save it, and measure the folder"
    refused(folder, parallel.latency, dataclasses.replace(run, budget=3.0), 2, 6, 3)


def drawn_on(rank, run):
    drawing = synthetic.drawn_blocks(run, "cpu", rank.count)
    return logits(share_out(drawing.model, drawing, rank).model)


def test_a_drawn_model_is_drawn_part_by_part():
    spec = ModelSpec("llama", "synthetic", "llama-embedded-s", layers=2, packed=True)
    run = ModelRun(spec, "bcq", 3, 32)
    check(synthetic.load_packed(run)[0].model, together(drawn_on, 2, run))


Q, K, V, O = (f"self_attn.{n}_proj" for n in "qkvo")  # noqa: E741
GATE, UP, DOWN = (f"mlp.{n}_proj" for n in ("gate", "up", "down"))


def llama(count, hidden=4096, inner=11008, heads=32, kv=None, g=128, **down):
    keys = hidden * (kv or heads) // heads
    rows = {Q: hidden, K: keys, V: keys, O: hidden, GATE: inner, UP: inner}
    widths = {name: Width(size, hidden, g) for name, size in rows.items()}
    widths[DOWN] = Width(hidden, inner, g, **down)
    return [share_of(family_named("llama"), widths, heads, i, count) for i in range(count)]


def test_channels_that_do_not_divide_by_groups_are_cut_where_groups_end():
    shares = llama(4)
    for share in shares:
        assert share.rows[GATE] == share.rows[UP] == share.columns[DOWN][:1]
        assert share.columns[O] == share.rows[Q] * 2
    parts = [range(128 * i, 128 * j) for i, j in ((0, 22), (22, 44), (44, 65), (65, 86))]
    assert [share.columns[DOWN][0] for share in shares] == parts
    assert [len(share.columns[DOWN][0]) for share in llama(4, g=-1)] == [2752] * 4


def test_key_value_heads_fewer_than_ranks_are_held_by_several():
    shares = llama(8, heads=32, kv=4)
    assert [share.key_values for share in shares] == [range(i // 2, i // 2 + 1) for i in range(8)]
    assert [len(share.heads) for share in shares] == [4] * 8
    assert [len(share.key_values) for share in llama(2, heads=32, kv=4)] == [2, 2]


def test_columns_with_an_order_are_cut_apart_from_channels_and_several_parts_in_each():
    part = llama(4, ordered=True)[1].columns[DOWN]
    assert part == (range(2816, 5632), range(2816, 5632))
    last = llama(4, inner=11000, ordered=True)[3].columns[DOWN]
    assert last[0] == range(65 * 128, 11000)
    widths = {"attn.c_attn": Width(96, 32), "attn.c_proj": Width(32, 32)}
    widths |= {"mlp.c_fc": Width(64, 32), "mlp.c_proj": Width(32, 64)}
    share = share_of(family_named("gpt2"), widths, 4, 1, 2)
    assert share.rows["attn.c_attn"] == (range(16, 32), range(48, 64), range(80, 96))
    assert (share.heads, share.key_values, share.head_size) == (range(2, 4), range(2, 4), 8)


def test_what_ranks_cannot_share_is_refused_with_the_numbers():
    heads = r"52 attention heads with 52 of .* by 8 ranks"
    refused(heads, llama, 8, heads=52, hidden=6656)
    refused(r"24 attention heads with 6 of .* by 4", llama, 4, heads=24, kv=6, hidden=3072)
    channels = r"320 intermediate channels in units of 128 .* by 4 .*: 3 can"
    refused(channels, llama, 4, inner=320)
    heads = r"2 attention heads with 2 of .* shared by 4 ranks"
    refused(heads, together, logits_of, 4, make("opt"))
    refused("type bert cannot be shared", share_of, family_named("bert"), {}, 2, 0, 2)
