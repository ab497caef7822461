"""Tuning block by block on random models: what is stored was trained, against naive float64 and the block's outputs."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.models.architectures import make

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.progress import heard
from lutlab.base.tensors import BCQTensor, UniformTensor
from lutlab.compress.kept_blocks import TuningStore
from lutlab.formats import pack
from lutlab.models import fits
from lutlab.models.families import decoder_blocks, linear_layers
from lutlab.tuning import loop
from lutlab.tuning.blocks import CodedLinear, tune_blocks
from lutlab.tuning.losses import HELD_OUT

WINDOWS = torch.randint(1, 9, (9, 16), generator=torch.Generator().manual_seed(2))
PACE = lutlab.Tuning(block_steps=8, block_learning_rate=0.03, batch=2)


def tensors(draw: torch.Generator, uniform: bool, q: int, g: int, ordered: bool):
    """A random weight [6, 20] of codes."""
    codes = torch.randint(2**q, (6, 20), generator=draw, dtype=torch.uint8)
    groups = 1 if g == -1 else -(-20 // g)
    order = torch.randperm(20, generator=draw).int() if ordered else None
    if uniform:
        scale = torch.rand(6, groups, generator=draw).add(0.1).half()
        zero = torch.randint(2**q, (6, groups), generator=draw, dtype=torch.int16)
        return UniformTensor(codes, scale, zero, q, g, order)
    alpha = torch.rand(q, 6, groups, generator=draw).add(0.1).half()
    offset = torch.randn(6, groups, generator=draw).half()
    return BCQTensor(codes, alpha, offset, q, g, order)


@settings(max_examples=15)
@given(
    seed=st.integers(0, 999),
    uniform=st.booleans(),
    q=st.integers(1, 4),
    g=st.sampled_from([8, 20, -1]),
    ordered=st.booleans(),
)
def test_a_coded_layer_is_the_naive_one(seed, uniform, q, g, ordered):
    """Weight, choice and gradients against autograd in float64; what is stored is what was multiplied by."""
    draw = torch.Generator().manual_seed(seed)
    tensor = tensors(draw, uniform, q, g, ordered)
    layer = CodedLinear(pack(tensor), None)
    assert torch.equal(layer.weight(), layer.packed.dequantize()), "step 0 is the layer as it came"
    with torch.no_grad():
        for move in layer.moves.values():
            move.copy_(0.3 * torch.randn(move.shape, generator=draw))
    x, wanted = torch.eye(20), torch.randn(20, 6, generator=draw)
    (layer(x) * wanted).sum().backward()
    packed = layer.rounded()
    assert packed.layout() == layer.packed.layout()
    assert torch.equal(layer(x).T, packed.dequantize())

    now, unit = packed.unpack(), words_of(tensor).std(2, correction=0)
    group = torch.arange(20) // (20 if g == -1 else g)
    moves = {n: m.detach().double().requires_grad_() for n, m in layer.moves.items()}
    latent = layer.latent.double() + unit.unsqueeze(2) * moves["latent"]
    latent = latent.flatten(1)[:, :20]
    began = {n: getattr(tensor, n).double() for n in layer.scales}
    words = words_of(now, **{n: b + (b if uniform else unit) * moves[n] for n, b in began.items()})
    chosen = words[:, group].gather(2, now.codes.long().unsqueeze(2)).squeeze(2)
    stored = words_of(now)[:, group]
    distance = (stored - latent.unsqueeze(2)).abs()
    taken = distance.gather(2, now.codes.long().unsqueeze(2)).squeeze(2)
    assert (taken <= distance.min(2).values + 1e-5).all(), "the nearest codeword"
    weight = chosen + latent - latent.detach()
    channels = slice(None) if tensor.order is None else tensor.order.long()
    (weight * wanted.T[:, channels]).sum().backward()
    for name, move in moves.items():
        found = layer.moves[name].grad.double()
        torch.testing.assert_close(found, move.grad, rtol=1e-4, atol=1e-4)


def words_of(tensor, **scales: torch.Tensor) -> torch.Tensor:
    """The values of each group, [N, G, 2^q] float64, under these scales or its own."""
    codes = torch.arange(2**tensor.bits)
    if isinstance(tensor, UniformTensor):
        scale = scales.get("scale", tensor.scale.double())
        return scale.unsqueeze(2) * (codes - tensor.zero_point.double().unsqueeze(2))
    words = scales.get("offset", tensor.offset.double()).unsqueeze(2)
    for b, alpha in enumerate(scales.get("alpha", tensor.alpha.double())):
        words = words + alpha.unsqueeze(2) * (2 * (codes >> b & 1) - 1)
    return words


def quantized(name: str, method: str, q: int) -> tuple:
    full = make(name)
    start = lutlab.quantize(copy.deepcopy(full), method, q, 8, calibration=WINDOWS)
    return full, start


def buffers(model) -> dict[str, torch.Tensor]:
    return {
        f"{name}.{key}": buffer
        for name, layer in linear_layers(model)
        for key, buffer in layer.packed.buffers.items()
        if buffer is not None
    }


def test_blocks_come_nearer_to_full_precision():
    full, start = quantized("gpt2", "bcq", 2)
    before = {path: layer.packed for path, layer in linear_layers(start)}
    facts = tune_blocks(start, full, WINDOWS, dataclasses.replace(PACE, block_steps=24))
    for path, layer in linear_layers(start):
        assert layer.packed.layout() == before[path].layout()
    assert len(facts["blocks"]) == len(decoder_blocks(full))
    for curve in facts["blocks"]:
        held = dict(curve["held_out"])
        assert held[curve["kept_step"]] == min(held.values()) <= held[0]
        assert curve["kept_step"] > 0
        assert curve["codes_changed"] > 0
    with torch.no_grad():
        held = WINDOWS[::HELD_OUT]
        y, wanted = (m(held, output_hidden_states=True).hidden_states[1] for m in (start, full))
        everything = full(WINDOWS, output_hidden_states=True).hidden_states[1]
    error = (y - wanted).square().mean() / everything.var((0, 1), correction=0).mean()
    curve = facts["blocks"][0]
    assert error.item() == pytest.approx(dict(curve["held_out"])[curve["kept_step"]], rel=1e-4)


def test_a_killed_run_ends_byte_for_byte_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_KEEP_SECONDS", 0.0)
    monkeypatch.setattr(loop, "_KEEP_SHARE", float("inf"))
    full, whole = quantized("gpt2", "bcq", 2)
    wanted = tune_blocks(whole, full, WINDOWS, PACE)
    for killed in (("block-0000", 3), ("block-0001", 5), None):
        store, (_, again) = TuningStore(tmp_path / "kept"), quantized("gpt2", "bcq", 2)

        def kill(progress, at=killed):
            if (progress.name, progress.step) == at:
                raise KeyboardInterrupt

        if killed:
            with pytest.raises(KeyboardInterrupt), heard(kill):
                tune_blocks(again, full, WINDOWS, PACE, kept=store)
        else:
            seen = []
            with heard(seen.append):
                assert tune_blocks(again, full, WINDOWS, PACE, kept=store) == wanted
            assert {one.name for one in seen} == {"block-0001"}, "the first block was finished"
            assert seen[0].step == 6
    for key, buffer in buffers(whole).items():
        assert torch.equal(buffer, buffers(again)[key]), key


def test_what_does_not_fit_is_refused_before_it_starts(monkeypatch):
    monkeypatch.setattr(fits, "available", lambda device: 1000)
    tuning = lutlab.Tuning(block_steps=2)
    with pytest.raises(fits.TooLargeError, match=r"block by block .* windows"):
        lutlab.quantize(make("opt"), "rtn", 3, 8, calibration=WINDOWS, tuning=tuning)


def test_block_steps_are_asked_for_by_tuning():
    tuning = lutlab.Tuning(steps=0, block_steps=2, batch=2)
    model = lutlab.quantize(make("opt"), "bcq", 2, 8, calibration=WINDOWS, tuning=tuning)
    plain = lutlab.quantize(make("opt"), "bcq", 2, 8, calibration=WINDOWS)
    alone = make("opt")
    tune_blocks(plain, alone, WINDOWS, tuning)
    assert all(torch.equal(one, buffers(plain)[key]) for key, one in buffers(model).items())
    with pytest.raises(LutlabError, match="drop block_steps"):
        lutlab.quantize(make("opt"), "mixed_2_4_16", 3, calibration=WINDOWS, tuning=tuning)
