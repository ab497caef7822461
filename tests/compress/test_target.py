"""Full-precision targets: the weight that a method is given, against a naive regression; where they change nothing."""

import copy
import functools
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import lsq_linear
from tests.calibrated import Fake
from tests.compress.test_encoders import padded
from tests.models.architectures import make, token_ids, uniform

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.tensors import CalibStats
from lutlab.compress import calibrate
from lutlab.compress.driver import quantize_model
from lutlab.compress.search import search_widths
from lutlab.compress.target import DAMP, HELD_OUT, Target
from lutlab.compress.widths import widths
from lutlab.models.families import decoder_blocks, family_of, kinds, stream_of, weight_of
from lutlab.quantizers.gptq import GPTQ


def naive(weight, x, ahead, stream, held):
    """W* by the module's equations in float64: x, ahead = x_full - x [M, K]; stream [M, N] or None; held [M] bool."""
    weight, x, ahead = weight.double(), x.double(), ahead.double()
    lacks = [ahead @ weight.T] + ([] if stream is None else [stream.double()])
    hessian = x.T @ x / len(x)
    ridge = hessian + DAMP * hessian.diagonal().mean() * torch.eye(len(hessian))

    def steps(rows):
        return [
            torch.linalg.solve(ridge, x[rows].T @ lack[rows] / int(rows.sum())) for lack in lacks
        ]

    said = torch.stack([(x[held] @ step).flatten() for step in steps(~held)], dim=1)
    wanted = sum(lacks)[held].flatten()
    strengths = lsq_linear(said.numpy(), wanted.numpy(), (0, 1), tol=1e-14).x
    every = steps(torch.ones_like(held))
    return weight + sum(float(t) * step.T for t, step in zip(strengths, every, strict=True))


def moments(x, ahead, stream, rows):
    x, ahead = x[rows], ahead[rows]
    stream = [] if stream is None else [stream[rows].T @ x / len(x)]
    return CalibStats(x.T @ x / len(x), x.abs().mean(0), len(x)), [ahead.T @ x / len(x), *stream]


@given(seed=st.integers(0, 2**20), tokens=st.integers(12, 80), streamed=st.booleans())
def test_is_the_ridge_regression_and_no_worse_than_the_weight(seed, tokens, streamed):
    draw = torch.Generator().manual_seed(seed)
    x, ahead, stream, weight = (
        torch.randn(rows, columns, generator=draw)
        for rows, columns in ((tokens, 10), (tokens, 10), (tokens, 6), (6, 10))
    )
    held = torch.arange(tokens) % HELD_OUT == 0
    ahead = 0.3 * x.roll(1, 1) + 0.3 * ahead
    stream = 0.5 * x[:, :6] + stream if streamed else None
    everything = torch.ones_like(held)
    target = Target(moments(x, ahead, stream, everything), moments(x, ahead, stream, held))
    moved = target(weight)
    assert torch.allclose(moved.double(), naive(weight, x, ahead, stream, held), atol=1e-3)
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


@torch.no_grad()
def reading(model, windows, paths):
    """Inputs of modules on all tokens but padding, by whole forward passes, one window at a time: [M, K] each."""
    named = windows if isinstance(windows, dict) else {"input_ids": windows}
    mask = named.get("attention_mask", torch.ones_like(named["input_ids"])).bool()
    found = {path: [] for path in paths}
    hooks = [
        model.get_submodule(path).register_forward_pre_hook(
            lambda _, x, path=path: found[path].append(x[0].flatten(0, -2))
        )
        for path in found
    ]
    for row in range(len(mask)):
        model(**{name: value[row : row + 1, mask[row]] for name, value in named.items()})
    for hook in hooks:
        hook.remove()
    return {path: torch.cat(some) for path, some in found.items()}, mask.sum(1)


@pytest.mark.parametrize(
    ("name", "target"),
    [("opt", "outputs"), *((n, "stream") for n in ("opt-350m", "llama-2", "gpt2", "bert"))],
)
def test_targets_are_those_of_whole_forward_passes(name, target, monkeypatch):
    """Of every layer of the second block, in a model whose layers before it are quantized one by one."""
    monkeypatch.setattr(calibrate, "BATCH_TOKENS", 32)
    model, windows = make(name), padded() if name == "bert" else token_ids(4, 16)
    full, by_hand, method = copy.deepcopy(model), copy.deepcopy(model), Given(target=target)
    quantize_model(model, method, uniform(model, 3, 16), windows)
    family = family_of(model.config)
    layers = [f"{index}.{layer}" for index in (0, 1) for layer in family.linears]
    for index, block in enumerate(decoder_blocks(by_hand)):
        for shared in family.inputs:
            stream = stream_of(model.config, shared) if target == "stream" else None
            paths = [f"{family.blocks}.{index}.{shared.layers[0]}"]
            paths += [] if stream is None else [f"{family.blocks}.{index}.{stream}".rstrip(".")]
            now, counts = reading(by_hand, windows, paths)
            before, _ = reading(full, windows, paths)
            held = (torch.arange(len(counts)) % HELD_OUT == 0).repeat_interleave(counts)
            ahead = [before[path] - now[path] for path in paths] + [None]
            for layer in shared.layers:
                weight = weight_of(block.get_submodule(layer))
                expected = naive(weight, now[paths[0]], *ahead[:2], held)
                found = method.weights[layers.index(f"{index}.{layer}")]
                moved = (expected - weight).norm()
                assert (found - expected).norm() <= 2e-3 * moved + 1e-6, (index, layer)
                done = decoder_blocks(model)[index].get_submodule(layer)
                block.set_submodule(layer, done)


def test_nothing_to_make_up_for_moves_nothing():
    """All layers but the last stay in full precision, and hold what float16 does."""
    model, method = make("opt").half().float(), Given(target="stream")
    last = "model.decoder.layers.1.fc2"
    weight = model.get_submodule(last).weight.clone()
    skip = [name for name in kinds(model.config) if name != last]
    quantize_model(model, method, widths(kinds(model.config), 3, 16, skip=skip), token_ids(4, 16))
    (found,) = method.weights
    assert torch.equal(found, weight)


def test_errors_stated_are_those_of_the_layers_own_weight():
    model = make("opt")
    own = {name: model.get_submodule(name).weight.clone() for name in kinds(model.config)}
    method = GPTQ(target="stream", true_sequential=True)
    for layer in quantize_model(model, method, uniform(model, 3, 16), token_ids(4, 16)):
        error = model.get_submodule(layer.name).packed.dequantize().double() - own[layer.name]
        assert layer.squared_error == pytest.approx(error.square().sum().item(), rel=1e-6)


def test_a_budget_is_searched_with_targets():
    model, windows = make("opt"), token_ids(4, 16)
    plain, method = GPTQ(true_sequential=True), GPTQ(true_sequential=True, target="stream")
    found, expected = (
        search_widths(model, one, [(3, 16)], 6.0, windows) for one in (method, plain)
    )
    first, other = (facts["contenders"] for _, facts in (found, expected))
    assert [c["estimated_increase"] for c in first] == [c["estimated_increase"] for c in other]
    assert [c["loss"] for c in first] != [c["loss"] for c in other]


def test_one_window_is_too_few():
    model = make("opt")
    with pytest.raises(LutlabError, match=r"one is held out: give at least two"):
        quantize_model(model, Fake(target="outputs"), uniform(model, 3, 16), token_ids(1, 16))


def test_one_weight_has_no_layers_before_it():
    """So that its target is its own weight, whatever is asked; the end loss it has none of."""
    draw = torch.Generator().manual_seed(0)
    weight, inputs = torch.randn(2, 8, generator=draw), torch.randn(9, 8, generator=draw)
    found = functools.partial(lutlab.quantize_tensor, weight, "gptq", q=3, g=8, inputs=inputs)
    stream = found(target="stream", true_sequential=True)
    assert torch.equal(stream.dequantize(), found().dequantize())
    with pytest.raises(LutlabError, match=r"the end loss is of a model, and this is one weight"):
        found(hessian="gradients")
