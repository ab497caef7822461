"""Tuning block by block on random models: what is stored was trained, against naive float64 and the block's outputs."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.weights import second_order_tensor, uniform_second_order_tensor
from tests.models.architectures import make
from tests.quantizers.weights import assert_same, exact
from tests.tuning.tuned import Killed, coded, kill_after, windows

import lutlab
from lutlab.base.progress import heard
from lutlab.base.tensors import UniformTensor
from lutlab.compress.kept_blocks import TuningStore
from lutlab.formats import pack
from lutlab.models.families import decoder_blocks, linear_layers
from lutlab.tuning.blocks import CodedLinear, tune_blocks
from lutlab.tuning.losses import HELD_OUT

WINDOWS = windows()
PACE = lutlab.Tuning(block_steps=8, block_learning_rate=0.12, batch=2)


@settings(max_examples=20)
@given(
    st.booleans(), st.booleans(), st.integers(1, 4), st.sampled_from([8, 20, -1]), st.booleans(), st.integers(0, 999),
)  # fmt: skip
def test_a_coded_layer_is_the_naive_one(uniform, on_grids, q, g, ordered, seed):
    """Weight, choice and gradients against autograd in float64; what is stored is what was multiplied by."""
    draw, shift = torch.Generator().manual_seed(seed), None if uniform else "f16"
    options = {"ordered": ordered, "seed": seed}
    if on_grids:
        make_tensor = uniform_second_order_tensor if uniform else second_order_tensor
        layer = CodedLinear(pack(make_tensor(6, 20, q, g, **options)), None)
    else:
        layer = CodedLinear(pack(coded(6, 20, q, g, not uniform, shift, **options)), None)
    tensor = layer.packed.unpack()
    assert torch.equal(layer.weight(), layer.packed.dequantize()), "step 0 is the layer as it came"
    units = layer.units()
    with torch.no_grad():
        for name, parameter in layer.trained().items():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw) * units[name])
    x, wanted = torch.eye(20), torch.randn(20, 6, generator=draw)
    (layer(x) * wanted).sum().backward()
    packed = layer.rounded()
    assert packed.layout() == (layer.on_grids or layer.packed).layout()
    assert torch.equal(layer(x).T, packed.dequantize())

    first = packed.first_order() if on_grids else packed
    now, deviation = first.unpack(), words_of(tensor).std(2, correction=0)
    for name, unit in units.items():
        expected = (tensor.scale.abs() if name == "scale" else deviation) / 2**q
        torch.testing.assert_close(unit.view(expected.shape).double(), expected.double())
    group = torch.arange(20) // (20 if g == -1 else g)
    trained = {n: p.detach().double().requires_grad_() for n, p in layer.trained().items()}
    latent = trained["latent"].flatten(1)[:, :20]
    words = words_of(now, **{name: trained[name] for name in layer.scales})
    chosen = words[:, group].gather(2, now.codes.long().unsqueeze(2)).squeeze(2)
    distance = (words_of(now)[:, group] - latent.unsqueeze(2)).abs()
    taken = distance.gather(2, now.codes.long().unsqueeze(2)).squeeze(2)
    assert (taken <= distance.min(2).values + 1e-5).all(), "the nearest codeword"
    weight = chosen + latent - latent.detach()
    channels = slice(None) if tensor.order is None else tensor.order.long()
    (weight * wanted.T[:, channels]).sum().backward()
    for name, parameter in trained.items():
        ours = layer.trained()[name].grad.double()
        torch.testing.assert_close(ours, parameter.grad, rtol=1e-4, atol=1e-4)


def words_of(tensor, **scales):
    """The values of each group, [N, G, 2^q] float64, under these scales or its own."""
    groups = getattr(tensor, "scale" if isinstance(tensor, UniformTensor) else "alpha").shape[-1]
    codes = torch.arange(2**tensor.bits, dtype=torch.uint8).repeat(6, groups)
    options = {"codes": codes, "group_size": 2**tensor.bits, "order": None} | scales
    return exact(dataclasses.replace(tensor, **options)).unflatten(1, (groups, -1))


def quantized(**few):
    """A model and the same with binary codes, whose alphas may have few bits."""
    return make("gpt2"), lutlab.quantize(make("gpt2"), "bcq", 2, 8, calibration=WINDOWS, **few)


def buffers(model):
    return {name: layer.packed.buffers for name, layer in linear_layers(model)}


@pytest.mark.parametrize("few", [{}, {"alpha_bits": 4}])
def test_blocks_come_nearer_to_full_precision(few):
    full, start = quantized(**few)
    before = {path: layer.packed.layout() for path, layer in linear_layers(start)}
    facts = tune_blocks(start, full, WINDOWS, dataclasses.replace(PACE, block_steps=24))
    assert {path: layer.packed.layout() for path, layer in linear_layers(start)} == before
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
    first = facts["blocks"][0]
    assert error.item() == pytest.approx(dict(first["held_out"])[first["kept_step"]], rel=1e-4)


def test_a_killed_run_ends_byte_for_byte_the_same(tmp_path, kept_at_every_step):
    full, whole = quantized()
    wanted = tune_blocks(whole, full, WINDOWS, PACE)
    for steps in (
        3,
        5 + 5,
    ):  # the second goes on at step 4 of 8, and dies at step 5 of the next block
        (_, again), store = quantized(), TuningStore(tmp_path / "kept")
        with pytest.raises(Killed), heard(kill_after(steps)):
            tune_blocks(again, full, WINDOWS, PACE, kept=store)
    (_, again), seen = quantized(), []
    with heard(seen.append):
        assert tune_blocks(again, full, WINDOWS, PACE, kept=store) == wanted
    assert {stage.name for stage in seen} == {"block-0001"}, "the first block was finished"
    assert seen[0].step == 6
    assert_same(buffers(again), buffers(whole))


def test_block_steps_are_asked_for_by_tuning():
    tuning = lutlab.Tuning(steps=0, block_steps=2, batch=2)
    full, plain = quantized()
    model = lutlab.quantize(make("gpt2"), "bcq", 2, 8, calibration=WINDOWS, tuning=tuning)
    tune_blocks(plain, full, WINDOWS, tuning)
    assert_same(buffers(model), buffers(plain))
