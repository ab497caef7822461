"""Widths under a budget, on random models: sizes, estimates, and that no grid point of the same size is better."""

from __future__ import annotations

import math

import pytest
import torch
from tests.command_line import CommandLine
from tests.models.architectures import VOCABULARY, make, uniform

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.compress import search as sensitivity
from lutlab.compress.driver import quantize_model
from lutlab.compress.search import loss_curvature, search_widths
from lutlab.compress.widths import widths
from lutlab.models.families import kinds, linear_layers, weight_of
from lutlab.quantizers.contract import make_method

CANDIDATES = [(2, 8), (2, -1), (4, 8), (4, -1)]


def windows(samples: int = 4, length: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(VOCABULARY, (samples, length), generator=generator)


def total_weights(model) -> int:
    return sum(weight_of(module).numel() for _, module in linear_layers(model))


def bits_per_weight(model, method, chosen) -> float:
    """As the driver stores it."""
    weights = total_weights(model)
    layers = quantize_model(model, make_method(method), chosen, windows())
    return sum(layer.bits_stored for layer in layers) / weights


def loss_of(model, ids) -> float:
    with torch.no_grad():
        return model(input_ids=ids, labels=ids).loss.item()


@pytest.mark.parametrize(("name", "method"), [
    ("opt", "rtn"), ("opt-350m", "bcq"), ("gpt2", "bcq"), ("llama-2", "gptq"), ("llama-1", "awq"),
])  # fmt: skip
def test_what_is_found_is_stored_within_the_budget(name, method):
    model = make(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    small, large = (
        bits_per_weight(make(name), method, uniform(model, *c)) for c in ((2, -1), (4, -1))
    )
    budget = (small + large) / 2
    chosen, facts = search_widths(model, make_method(method), CANDIDATES, budget, windows())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert list(chosen) == list(kinds(model.config))
    assert set(chosen.values()) <= set(CANDIDATES)
    stored = bits_per_weight(model, method, chosen)
    assert stored == facts["bits_per_weight"] <= budget
    assert facts["widths"] == {name: list(width) for name, width in chosen.items()}


def test_no_grid_point_of_the_same_size_that_was_tried_is_better():
    model = make("opt")
    grid = widths(kinds(model.config), 2, -1)
    grid |= {name: (4, 8) for name, kind in kinds(model.config).items() if kind == "attention"}
    budget = bits_per_weight(make("opt"), "rtn", grid)
    chosen, facts = search_widths(model, make_method("rtn"), CANDIDATES, budget, windows())
    tried = facts["contenders"]
    assert [one["name"] for one in tried[:1]] == ["integer program"]
    assert len(tried) == 1 + sensitivity.GRID_POINTS
    estimates = [one["estimated_increase"] for one in tried]
    assert estimates[0] <= min(estimates[1:]) * (1 + 1e-9)  # the optimum of what it optimises
    best = min(tried, key=lambda one: one["loss"])
    assert facts["winner"] == best["name"]
    quantize_model(model, make_method("rtn"), chosen)
    assert loss_of(model, windows()) == pytest.approx(best["loss"], rel=1e-5)


def test_the_lowest_loss_wins_not_the_lowest_estimate(monkeypatch):
    """Where the estimate is upside down, a grid point has to win."""
    upright = sensitivity.loss_curvature
    monkeypatch.setattr(
        sensitivity, "loss_curvature", lambda *a: {n: -v for n, v in upright(*a).items()}
    )
    quantizer = make_method("rtn")
    monkeypatch.setattr(sensitivity, "GRID_POINTS", 16)
    _, facts = search_widths(make("opt"), quantizer, CANDIDATES, 12.0, windows())
    losses = {one["name"]: one["loss"] for one in facts["contenders"]}
    assert facts["winner"] != "integer program"
    assert losses[facts["winner"]] == min(losses.values()) < losses["integer program"]


@pytest.mark.parametrize("name", ["opt", "llama-2", "gpt2"])
def test_curvature_is_that_of_the_gradients(name):
    """Against gradients taken one window at a time through an added zero."""
    model, ids = make(name), windows(3)
    found = loss_curvature(model, ids)
    for layer, module in list(linear_layers(model))[::3]:
        zero = torch.zeros(1, ids.shape[1], weight_of(module).shape[0], requires_grad=True)
        total = 0.0
        hook = module.register_forward_hook(lambda _, inputs, output, zero=zero: output + zero)
        for row in ids:
            logits = model(input_ids=row[None]).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(logits, row[1:], reduction="sum")
            total += torch.autograd.grad(loss, zero)[0].square().mean(-1).sum().item()
        hook.remove()
        assert found[layer] == pytest.approx(total / 2 / ids.numel(), rel=1e-4)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_skipped_layers_count_and_stay():
    model = make("opt")
    chosen, facts = search_widths(
        model, make_method("rtn"), CANDIDATES, 10.0, windows(), skip=["*.fc2"]
    )
    assert all((width is None) == name.endswith("fc2") for name, width in chosen.items())
    assert bits_per_weight(model, "rtn", chosen) == facts["bits_per_weight"] <= 10


def test_the_python_api_takes_a_budget():
    model = make("opt")
    assert (
        lutlab.quantize(model, "rtn", budget=9.0, candidates=CANDIDATES, calibration=windows())
        is model
    )
    packed = [module.packed for _, module in linear_layers(model)]
    assert sum(one.bits_stored for one in packed) <= 9.0 * sum(
        math.prod(one.shape) for one in packed
    )
    assert len({(one.bits, one.group_size) for one in packed}) > 1


def test_mistakes_say_what_to_do():
    model, rtn = make("opt"), make_method("rtn")
    smallest = bits_per_weight(make("opt"), "rtn", uniform(model, 2, -1))
    with pytest.raises(
        LutlabError, match=f"smallest size that the candidates give, {smallest:.4g} bits"
    ):
        search_widths(model, rtn, CANDIDATES, smallest - 0.01, windows())
    with pytest.raises(LutlabError, match="budget needs candidates"):
        search_widths(model, rtn, [], 4.0, windows())
    with pytest.raises(LutlabError, match="give a positive number"):
        search_widths(model, rtn, CANDIDATES, -4.0, windows())
    with pytest.raises(LutlabError, match="needs a method that quantizes"):
        search_widths(model, make_method("none"), CANDIDATES, 4.0, windows())
    with pytest.raises(LutlabError, match="streamed"):
        search_widths(model.to("meta"), rtn, CANDIDATES, 4.0, windows())


SWEEP = [
    "model=opt-embedded-s", "method=rtn", "candidates.q=[2,4]", "candidates.g=[128]", "calibration.samples=2",
    "calibration.seqlen=64", "evaluate=[model_size]", "logger=none",
]  # fmt: skip


def test_the_command_line_keeps_to_the_budget(command: CommandLine):
    outcome = command(*SWEEP, "budget=3.5")
    assert outcome.code == 0, outcome.err
    assert "budget 3.5" in outcome.out
    (record,) = command.records().values()
    assert record["values"]["bits_per_weight"] <= 3.5
    found = record["facts"]["budget"]
    assert math.isclose(found["bits_per_weight"], record["values"]["bits_per_weight"])
    assert {tuple(width) for width in found["widths"].values()} == {(2, 128), (4, 128)}
    assert record["run"]["budget"] == 3.5


@pytest.mark.parametrize(("arguments", "message"), [
    (["budget=-1"], "budget=-1: give a number above 0"),
    (["budget=3.5", "method=none"], "method=none has no widths to choose"),
    (["budget=3.5", "stream=true"], "drop stream=true"),
    (["budget=3.5", "candidates.g=[]"], "candidates.q or candidates.g is empty"),
    (["budget=3.5", "sublayers.attention.q=2"], "drop sublayers.attention"),
    (["budget=2"], "below the smallest size that the candidates give"),
])  # fmt: skip
def test_mistakes_on_the_command_line(command: CommandLine, arguments, message):
    outcome = command(*SWEEP, *arguments)
    assert outcome.code != 0
    assert message in outcome.out + outcome.err
    assert "Traceback" not in outcome.err
