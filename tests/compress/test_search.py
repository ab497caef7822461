"""Widths under a budget, on random models: sizes, estimates, and that no grid point of the same size is better."""

import math

import pytest
import torch
from tests.command_line import CommandLine
from tests.models.architectures import make, token_ids, uniform
from tests.quantizers.weights import assert_same

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.compress import search as sensitivity
from lutlab.compress.driver import quantize_model
from lutlab.compress.search import loss_curvature, search_widths
from lutlab.compress.widths import widths
from lutlab.models.families import kinds, linear_layers, weight_of
from lutlab.quantizers.contract import make_method

CANDIDATES = [(2, 8), (2, -1), (4, 8), (4, -1)]
WINDOWS = token_ids(4, 16)


def bits_per_weight(model, method, chosen):
    """As the driver stores it."""
    layers = quantize_model(model, make_method(method), chosen, WINDOWS)
    weights = sum(layer.out_features * layer.in_features for layer in layers)
    return sum(layer.bits_stored for layer in layers) / weights


def search(model, budget, method="rtn", **options):
    return search_widths(model, make_method(method), CANDIDATES, budget, WINDOWS, **options)


@pytest.mark.parametrize(("name", "method"), [
    ("opt", "rtn"), ("opt-350m", "bcq"), ("gpt2", "bcq"), ("llama-2", "gptq"), ("llama-1", "awq"),
])  # fmt: skip
def test_what_is_found_is_stored_within_the_budget(name, method):
    model = make(name)
    ends = [bits_per_weight(make(name), method, uniform(model, q, -1)) for q in (2, 4)]
    budget = sum(ends) / 2
    chosen, facts = search(model, budget, method)
    assert_same(model.state_dict(), make(name).state_dict())
    assert list(chosen) == list(kinds(model.config))
    assert set(chosen.values()) <= set(CANDIDATES)
    assert bits_per_weight(model, method, chosen) == facts["bits_per_weight"] <= budget
    assert facts["widths"] == {name: list(width) for name, width in chosen.items()}


def test_no_grid_point_of_the_same_size_that_was_tried_is_better():
    model = make("opt")
    grid = widths(kinds(model.config), 2, -1)
    grid |= {name: (4, 8) for name, kind in kinds(model.config).items() if kind == "attention"}
    budget = bits_per_weight(make("opt"), "rtn", grid)
    chosen, facts = search(model, budget)
    tried = facts["contenders"]
    assert tried[0]["name"] == "integer program"
    assert len(tried) == 1 + sensitivity.GRID_POINTS
    first, *others = (contender["estimated_increase"] for contender in tried)
    assert first <= min(others) * (1 + 1e-9)  # the optimum of what it optimises
    best = min(tried, key=lambda contender: contender["loss"])
    assert facts["winner"] == best["name"]
    quantize_model(model, make_method("rtn"), chosen)
    with torch.no_grad():
        loss = model(input_ids=WINDOWS, labels=WINDOWS).loss.item()
    assert loss == pytest.approx(best["loss"], rel=1e-5)


def test_the_lowest_loss_wins_not_the_lowest_estimate(monkeypatch):
    """Where the estimate is upside down, a grid point has to win."""

    def inverted(*arguments):
        return {name: -value for name, value in loss_curvature(*arguments).items()}

    monkeypatch.setattr(sensitivity, "loss_curvature", inverted)
    monkeypatch.setattr(sensitivity, "GRID_POINTS", 16)
    _, facts = search(make("opt"), 12.0)
    losses = {contender["name"]: contender["loss"] for contender in facts["contenders"]}
    assert facts["winner"] != "integer program"
    assert losses[facts["winner"]] == min(losses.values()) < losses["integer program"]


@pytest.mark.parametrize("name", ["opt", "llama-2", "gpt2"])
def test_curvature_is_that_of_the_gradients(name):
    """Against gradients taken one window at a time through an added zero."""
    model, ids = make(name), WINDOWS[:3]
    curvature = loss_curvature(model, ids)
    for layer, module in list(linear_layers(model))[::3]:
        zero = torch.zeros(1, ids.shape[1], weight_of(module).shape[0], requires_grad=True)
        total = 0.0
        hook = module.register_forward_hook(lambda _, inputs, output, zero=zero: output + zero)
        for row in ids:
            logits = model(input_ids=row[None]).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(logits, row[1:], reduction="sum")
            total += torch.autograd.grad(loss, zero)[0].square().mean(-1).sum().item()
        hook.remove()
        assert curvature[layer] == pytest.approx(total / 2 / ids.numel(), rel=1e-4)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_skipped_layers_count_and_stay():
    model = make("opt")
    chosen, facts = search(model, 10.0, skip=["*.fc2"])
    assert all((width is None) == name.endswith("fc2") for name, width in chosen.items())
    assert bits_per_weight(model, "rtn", chosen) == facts["bits_per_weight"] <= 10


def test_the_python_api_takes_a_budget():
    model, options = make("opt"), {"candidates": CANDIDATES, "calibration": WINDOWS}
    assert lutlab.quantize(model, "rtn", budget=5.5, **options) is model
    packed = [module.packed for _, module in linear_layers(model)]
    weights = sum(math.prod(weight.shape) for weight in packed)
    assert sum(weight.bits_stored for weight in packed) <= 5.5 * weights
    assert len({(weight.bits, weight.group_size) for weight in packed}) > 1


@pytest.mark.parametrize(("method", "candidates", "budget", "device", "message"), [
    ("rtn", [], 4.0, "cpu", "budget needs candidates"), ("rtn", CANDIDATES, -4.0, "cpu", "give a positive number"),
    ("rtn", CANDIDATES, 2.0, "cpu", "smallest size that the candidates give"),
    ("none", CANDIDATES, 4.0, "cpu", "needs a method that quantizes"), ("rtn", CANDIDATES, 4.0, "meta", "streamed"),
])  # fmt: skip
def test_mistakes_say_what_to_do(method, candidates, budget, device, message):
    with pytest.raises(LutlabError, match=message):
        search_widths(make("opt").to(device), make_method(method), candidates, budget, WINDOWS)


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
    facts = record["facts"]["budget"]
    assert math.isclose(facts["bits_per_weight"], record["values"]["bits_per_weight"])
    assert {tuple(width) for width in facts["widths"].values()} == {(2, 128), (4, 128)}
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
