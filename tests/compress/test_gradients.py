"""Hessians weighted by gradients of the end loss, against a naive pass, and where all tokens count the same."""

import pytest
import torch
from tests.calibrated import Fake
from tests.compress.test_encoders import padded
from tests.models.architectures import make, token_ids, uniform

from lutlab.base.errors import LutlabError
from lutlab.compress import driver
from lutlab.compress.calibrate import stats_of
from lutlab.compress.driver import quantize_model
from lutlab.compress.gradients import quantized_rows
from lutlab.formats import pack
from lutlab.models.families import family_of, kinds
from lutlab.quantizers.gptq import GPTQ
from lutlab.quantizers.gptq_bcq import GPTQBCQ
from lutlab.quantizers.mixed_2_4_16 import Mixed2416


def naive(model, windows, layer, groups):
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
    return [x.T @ (x * (w / w.mean())[:, None]) / len(x) for w in means]


@pytest.mark.parametrize("name", ["opt", "llama-2"])
def test_hessians_are_those_of_the_end_loss(name):
    model, windows = make(name), token_ids(4, 16)
    fake = Fake(true_sequential=False, hessian="gradients")
    quantize_model(make(name), fake, uniform(model, 3, 16), windows)
    family = family_of(model.config)
    assert len(fake.seen) == 2 * len(family.linears) * 4
    for place, layer in enumerate(family.linears):
        found = fake.seen[4 * place : 4 * place + 4]
        for stats, expected in zip(
            found, naive(model, windows, f"{family.blocks}.0.{layer}", 4), strict=True
        ):
            assert stats.tokens == windows.numel()
            error = (stats.hessian.double() - expected).norm()
            assert error < 1e-4 * expected.norm(), layer


def test_where_all_tokens_count_the_same_nothing_changes(monkeypatch):
    """Up to the order of sums over rows; the Hessians themselves are the same to the last bit."""
    ones = dict.fromkeys(kinds(make("opt").config), torch.ones(64, 4))
    monkeypatch.setattr(driver, "token_weights", lambda *_: ones)
    plain, guided, seen = [], [], []
    for hessian in ("inputs", "gradients"):
        model, fake = make("opt"), Fake(hessian=hessian, target="stream")
        seen.append(fake.seen)
        quantize_model(model, fake, uniform(model, 3, 16), token_ids(4, 16))
        (guided if fake.hessian == "gradients" else plain).append(model.state_dict())
    assert all(map(torch.equal, plain[0].values(), guided[0].values()))
    (first, *_), (others) = seen[0], seen[1][:12]
    assert all(torch.equal(first.hessian, other.hessian) for other in others)


@pytest.mark.parametrize("method", [GPTQ(), GPTQBCQ(), GPTQBCQ(offset=False)])
def test_rows_are_those_of_each_group_alone(method):
    weight = torch.randn(10, 32, generator=torch.Generator().manual_seed(0))
    factors = [method.prepare(stats_of(torch.randn(40, 32))) for _ in range(3)]
    found, _ = quantized_rows(method, weight, 3, 8, factors, name="a weight")
    alone = [
        pack(method.quantize(rows, 3, 8, one)).dequantize()
        for rows, one in zip(weight.split([4, 3, 3]), factors, strict=True)
    ]
    assert torch.equal(pack(found).dequantize(), torch.cat(alone))


def test_what_is_refused():
    model = make("bert")
    with pytest.raises(LutlabError, match=r"takes the loss of the next token"):
        quantize_model(model, Fake(hessian="gradients"), uniform(model, 3, 16), padded())
    with torch.device("meta"):
        model = type(make("opt"))(make("opt").config)
    with pytest.raises(LutlabError, match=r"drop stream=true"):
        quantize_model(model, Fake(hessian="gradients"), uniform(model, 3, 16), token_ids())
    with pytest.raises(TypeError, match="hessian"):
        Mixed2416(hessian="gradients")
