"""Full-precision targets: the weight that a method is given, against a naive regression; where they change nothing."""

import functools
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import lsq_linear
from tests.calibrated import Fake
from tests.compress.passes import inputs_of, quantized, weights_of
from tests.compress.test_encoders import padded
from tests.models.architectures import make, token_ids
from tests.quantizers.weights import assert_same, drawn

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.tensors import CalibStats
from lutlab.compress.driver import quantize_model
from lutlab.compress.search import search_widths
from lutlab.compress.target import HELD_OUT, Target
from lutlab.compress.widths import widths
from lutlab.models.families import decoder_blocks, family_of, kinds, stream_of, weight_of
from lutlab.quantizers.gptq import GPTQ


def naive(weight, x, ahead, stream, held, damp):
    """W* by the module's equations in float64: x, ahead = x_full - x [M, K]; stream [M, N] or None; held [M] bool."""
    weight, x, ahead = weight.double(), x.double(), ahead.double()
    lacks = [ahead @ weight.T] + ([] if stream is None else [stream.double()])
    hessian = x.T @ x / len(x)
    ridge = hessian + damp * hessian.diagonal().mean() * torch.eye(len(hessian))

    def steps(rows):
        seen = x[rows].T / int(rows.sum())
        return [torch.linalg.solve(ridge, seen @ lack[rows]) for lack in lacks]

    moved = torch.stack([(x[held] @ step).flatten() for step in steps(~held)], dim=1)
    wanted = sum(lacks)[held].flatten()
    strengths = lsq_linear(moved.numpy(), wanted.numpy(), (0, 1), tol=1e-14).x
    every = steps(torch.ones_like(held))
    return weight + sum(float(t) * step.T for t, step in zip(strengths, every, strict=True))


def moments(x, ahead, stream, rows):
    x, ahead = x[rows], ahead[rows]
    stream = [] if stream is None else [stream[rows].T @ x / len(x)]
    return CalibStats(x.T @ x / len(x), x.abs().mean(0), len(x)), [ahead.T @ x / len(x), *stream]


@given(st.integers(0, 2**20), st.integers(12, 80), st.booleans(), st.sampled_from([0.01, 1.0]))
def test_is_the_ridge_regression_and_no_worse_than_the_weight(seed, tokens, streamed, damp):
    draw = torch.Generator().manual_seed(seed)
    sizes = ((tokens, 10), (tokens, 10), (tokens, 6), (6, 10))
    x, ahead, stream, weight = (torch.randn(size, generator=draw) for size in sizes)
    held = torch.arange(tokens) % HELD_OUT == 0
    ahead = 0.3 * x.roll(1, 1) + 0.3 * ahead
    stream = 0.5 * x[:, :6] + stream if streamed else None
    everything = torch.ones_like(held)
    target = Target(moments(x, ahead, stream, everything), moments(x, ahead, stream, held), damp)
    moved, expected = target(weight), naive(weight, x, ahead, stream, held, damp)
    torch.testing.assert_close(moved.double(), expected, atol=1e-3, rtol=1e-5)
    if not streamed:  # with both, what is held out decides, not the error on all
        wanted = (x + ahead) @ weight.T
        before, after = ((wanted - x @ w.T).double().square().sum() for w in (weight, moved))
        assert after <= before * (1 + 1e-6)


@dataclass
class Given(Fake):
    """Keeps every weight that it is given."""

    weights: list[torch.Tensor] = field(default_factory=list)

    def quantize(self, weight, q, g, prepared):
        self.weights.append(weight.clone())
        return super().quantize(weight, q, g, prepared)


@pytest.mark.parametrize(("name", "target", "first", "damp"), [
    ("opt", "outputs", 1, 0.01), ("opt-350m", "stream", 1, 1), ("llama-2", "stream", 9, 0.01),
    ("gpt2", "stream", 1, 0.01), ("bert", "stream", 9, 0.01),
])  # fmt: skip
def test_targets_are_those_of_whole_forward_passes(name, target, first, damp, two_windows_a_batch):
    """Of every layer of the second block, in a model whose layers before it are quantized one by one."""
    full, by_hand = make(name), make(name)
    method = Given(target=target, first_token=first, damp=damp)
    windows = padded() if name == "bert" else token_ids(4, 16)
    model, _ = quantized(name, method, windows)
    family, given = family_of(model.config), iter(method.weights)
    for index, block in enumerate(decoder_blocks(by_hand)):
        for shared in family.inputs:
            stream = stream_of(model.config, shared) if target == "stream" else None
            paths = [f"{family.blocks}.{index}.{shared.layers[0]}"]
            paths += [] if stream is None else [f"{family.blocks}.{index}.{stream}".rstrip(".")]
            now, before = (inputs_of(each, windows, paths) for each in (by_hand, full))
            x = torch.cat(now[paths[0]])
            counts = torch.tensor([len(window) for window in now[paths[0]]])
            held = (torch.arange(len(counts)) % HELD_OUT == 0).repeat_interleave(counts)
            ahead = [torch.cat(before[path]) - torch.cat(now[path]) for path in paths]
            if shared is family.inputs[0]:  # keys and values: a first token counts as `first`
                starts = counts.cumsum(0) - counts
                x[starts], ahead[0][starts] = x[starts] * first**0.5, ahead[0][starts] * first**0.5
            ahead.append(None)
            for layer in shared.layers:
                weight = weight_of(block.get_submodule(layer))
                expected = naive(weight, x, *ahead[:2], held, damp)
                moved = (expected - weight).norm()
                assert (next(given) - expected).norm() <= 2e-3 * moved + 1e-6, (index, layer)
                done = decoder_blocks(model)[index].get_submodule(layer)
                block.set_submodule(layer, done)


def test_nothing_to_make_up_for_moves_nothing():
    """All layers but the last stay in full precision, and hold what float16 does."""
    model, method = make("opt").half().float(), Given(target="stream")
    last = "model.decoder.layers.1.fc2"
    weight = model.get_submodule(last).weight.clone()
    skip = [name for name in kinds(model.config) if name != last]
    quantize_model(model, method, widths(kinds(model.config), 3, 16, skip=skip), token_ids(4, 16))
    assert_same(method.weights, [weight])


def test_errors_stated_are_those_of_the_layers_own_weight():
    method = GPTQ(target="stream", true_sequential=True)
    model, layers = quantized("opt", method, token_ids(4, 16))
    own, after = weights_of(make("opt")), weights_of(model)
    for layer in layers:
        error = (after[layer.name].double() - own[layer.name]).square().sum().item()
        assert layer.squared_error == pytest.approx(error, rel=1e-6)


def test_a_budget_is_searched_with_targets():
    estimates, losses = [], []
    for target in ("weights", "stream"):
        method = GPTQ(true_sequential=True, target=target)
        _, facts = search_widths(make("opt"), method, [(3, 16)], 6.0, token_ids(4, 16))
        estimates.append([c["estimated_increase"] for c in facts["contenders"]])
        losses.append([c["loss"] for c in facts["contenders"]])
    assert estimates[0] == estimates[1]
    assert losses[0] != losses[1]


def test_one_window_is_too_few():
    with pytest.raises(LutlabError, match=r"one is held out: give at least two"):
        quantized("opt", Fake(target="outputs"), token_ids(1, 16))


def test_one_weight_has_no_layers_before_it():
    """So that its target is its own weight, whatever is asked; the end loss it has none of."""
    options = {"q": 3, "g": 8, "inputs": drawn(9, 8)}
    made = functools.partial(lutlab.quantize_tensor, drawn(2, 8), "gptq", **options)
    stream = made(target="stream", true_sequential=True)
    assert torch.equal(stream.dequantize(), made().dequantize())
    with pytest.raises(LutlabError, match=r"the end loss is of a model, and this is one weight"):
        made(hessian="gradients")
