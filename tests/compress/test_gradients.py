"""Hessians weighted by gradients of the end loss, against a naive pass, and where all tokens count the same."""

import pytest
import torch
from tests.calibrated import Fake
from tests.compress.passes import quantized
from tests.compress.test_encoders import padded
from tests.models.architectures import make, token_ids, uniform
from tests.quantizers.weights import assert_same, drawn

from lutlab.base.errors import LutlabError
from lutlab.compress import driver
from lutlab.compress.calibrate import stats_of
from lutlab.compress.driver import quantize_model
from lutlab.compress.gradients import quantized_rows
from lutlab.formats import dequantize
from lutlab.models.families import family_of, kinds
from lutlab.quantizers.gptq import GPTQ
from lutlab.quantizers.gptq_bcq import GPTQBCQ
from lutlab.quantizers.mixed_2_4_16 import Mixed2416


def naive(model, windows, layer, groups, first):
    """H_k of a layer in float64, by passes of one window, whose weights are the squares of its own gradients."""
    model, inputs, squares = model.double(), [], []

    def see(_, x, y):
        inputs.append(x[0].detach().flatten(0, -2))
        y.retain_grad()
        outputs.append(y)

    hook = model.get_submodule(layer).register_forward_hook(see)
    for window in windows:
        outputs = []
        logits = model(window[None]).logits[0, :-1]
        torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").backward()
        squares.append(outputs[0].grad.flatten(0, -2).square())
    hook.remove()
    x, squares = torch.cat(inputs), torch.cat(squares)
    size = -(-squares.shape[1] // groups)
    means = [part.mean(1) for part in squares.split(size, dim=1)]
    of_window = torch.ones(windows.shape, dtype=x.dtype)
    of_window[:, 0] = first
    return [x.T @ (x * (w / w.mean() * of_window.flatten())[:, None]) / len(x) for w in means]


@pytest.mark.parametrize("name", ["opt", "llama-2"])
def test_hessians_are_those_of_the_end_loss(name):
    windows = token_ids(4, 16)
    fake = Fake(true_sequential=False, hessian="gradients", first_token=9.0)
    quantized(name, fake, windows)
    model = make(name)
    family = family_of(model.config)
    assert len(fake.seen) == 2 * len(family.linears) * 4
    for place, layer in enumerate(family.linears):
        first = 9.0 if layer in family.inputs[0].layers else 1.0
        hessians = naive(model, windows, f"{family.blocks}.0.{layer}", 4, first)
        for stats, expected in zip(fake.seen[4 * place : 4 * place + 4], hessians, strict=True):
            assert stats.tokens == windows.numel()
            error = (stats.weighted.double() - expected).norm()
            assert error < 1e-4 * expected.norm(), layer


def test_where_all_tokens_count_the_same_nothing_changes(monkeypatch):
    """Up to the order of sums over rows; the Hessians themselves are the same to the last bit."""
    ones = dict.fromkeys(kinds(make("opt").config), torch.ones(64, 4))
    monkeypatch.setattr(driver, "token_weights", lambda *_: ones)
    fakes = [Fake(hessian=hessian, target="stream") for hessian in ("inputs", "gradients")]
    plain, guided = (quantized("opt", fake, token_ids(4, 16))[0].state_dict() for fake in fakes)
    assert_same(guided, plain)
    hessian = fakes[0].seen[0].hessian
    assert all(torch.equal(hessian, other.weighted) for other in fakes[1].seen[:12])


@pytest.mark.parametrize("method", [GPTQ(), GPTQBCQ(), GPTQBCQ(offset=False)])
def test_rows_are_those_of_each_group_alone(method):
    weight = drawn(10, 32)
    factors = [method.prepare(stats_of(drawn(40, 32, seed=seed))) for seed in range(3)]
    together, _ = quantized_rows(method, weight, 3, 8, factors, name="a weight")
    parts = zip(weight.split([4, 3, 3]), factors, strict=True)
    alone = [dequantize(method.quantize(rows, 3, 8, factor)) for rows, factor in parts]
    assert torch.equal(dequantize(together), torch.cat(alone))


def test_what_is_refused():
    with pytest.raises(LutlabError, match=r"takes the loss of the next token"):
        quantized("bert", Fake(hessian="gradients"), padded())
    with torch.device("meta"):
        model = type(make("opt"))(make("opt").config)
    with pytest.raises(LutlabError, match=r"drop stream=true"):
        quantize_model(model, Fake(hessian="gradients"), uniform(model, 3, 16), token_ids())
    with pytest.raises(TypeError, match="hessian"):
        Mixed2416(hessian="gradients")
