"""Scales under codes that stay: exact gradients, nothing else moved, what is stored is what was trained."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.command_line import CommandLine
from tests.models.architectures import make, uniform
from tests.tuning.test_loop import Killed, kill_after

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.progress import heard
from lutlab.base.specs import Tuning
from lutlab.base.tensors import BCQTensor, UniformTensor
from lutlab.compress.driver import quantize_model
from lutlab.compress.kept_blocks import TuningStore
from lutlab.formats import pack
from lutlab.models import fits
from lutlab.models.families import linear_layers
from lutlab.quantizers.contract import make_method
from lutlab.tuning import loop
from lutlab.tuning.scales import ScaledLinear
from lutlab.tuning.stages import tune


def windows(samples: int = 9, length: int = 16) -> torch.Tensor:
    """Of eight tokens, so that there is something to learn."""
    return torch.randint(1, 9, (samples, length), generator=torch.Generator().manual_seed(2))


def naive(tensor: BCQTensor | UniformTensor, scales: dict[str, torch.Tensor]) -> torch.Tensor:
    """[N, K] float64, weight by weight of the formulas; gradients pass to `scales`."""
    rows, columns = tensor.codes.shape
    length = columns if tensor.group_size == -1 else tensor.group_size
    out = {}
    for n in range(rows):
        for k in range(columns):
            code, g = int(tensor.codes[n, k]), k // length
            if isinstance(tensor, UniformTensor):
                zero = 0 if tensor.zero_point is None else int(tensor.zero_point[n, g])
                found = scales["scale"][n, g] * (code - zero)
            else:
                signs = [2 * (code >> b & 1) - 1 for b in range(tensor.bits)]
                found = sum(s * a[n, g] for s, a in zip(signs, scales["alpha"], strict=True))
            found = found + scales["offset"][n, g] if "offset" in scales else found
            out[n, k if tensor.order is None else int(tensor.order[k])] = found
    return torch.stack([torch.stack([out[n, k] for k in range(columns)]) for n in range(rows)])


@settings(max_examples=12)
@given(
    st.sampled_from(["bcq", "offset", "uniform", "uniform offset"]),
    st.sampled_from([8, -1]),
    st.integers(9, 19),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 99),
)
def test_gradients_are_those_of_the_formulas(kind, g, columns, q, ordered, seed):
    draw = torch.Generator().manual_seed(seed)
    groups = 1 if g == -1 else -(-columns // g)
    codes = torch.randint(0, 2**q, (2, columns), generator=draw).to(torch.uint8)
    order = torch.randperm(columns, generator=draw).int() if ordered else None
    values = torch.rand(q + 1, 2, groups, generator=draw).half() + 0.5
    zeros = torch.randint(-3, 2**q, (2, groups), generator=draw).short()
    if kind == "uniform":
        tensor, scales = UniformTensor(codes, values[0], zeros, q, g, order), {"scale": values[0]}
    elif kind == "uniform offset":
        scales = {"scale": values[0], "offset": values[q]}
        tensor = UniformTensor(codes, values[0], None, q, g, order, values[q])
    else:
        offset = values[q] if kind == "offset" else None
        tensor = BCQTensor(codes, values[:q].contiguous(), offset, q, g, order)
        scales = {"alpha": values[:q]} | ({"offset": offset} if kind == "offset" else {})
    layer = ScaledLinear(pack(tensor), None)
    x = torch.randn(5, columns, generator=draw, dtype=torch.float64)
    out = torch.randn(5, 2, generator=draw, dtype=torch.float64)
    exact = {name: one.double().requires_grad_() for name, one in scales.items()}
    weight = naive(tensor, exact)
    torch.testing.assert_close(layer.rounded().dequantize().double(), weight, rtol=1e-7, atol=1e-7)
    ((x @ weight.T) * out).sum().backward()
    (layer(x) * out).sum().backward()
    for name, one in exact.items():
        torch.testing.assert_close(layer.scales[name].grad, one.grad.float())


def tuned(name: str, method: str, **options) -> tuple:
    model, more = make(name), {"learning_rate": 3e-3, "batch": 4, "loss": "labels", "steps": 8}
    more |= {"trains": "scales"}
    given = {key: options.pop(key) for key in ("kept", "report") if key in options}
    tuning = Tuning(**more | options)
    return tune(model, make_method(method), chosen(model), windows(), tuning, **given)


def chosen(model) -> dict:
    """All of one width, but for one layer in full precision."""
    found = uniform(model, 2, 8)
    return found | {next(iter(found)): None}


@pytest.mark.parametrize(("name", "method"), [
    ("opt", "gptq_bcq"), ("llama-2", "rtn"), ("gpt2", "bcq"), ("llama-1", "awq"),
])  # fmt: skip
def test_scales_alone_move(name, method):
    packed, _, facts = tuned(name, method)
    losses = dict(facts["held_out"])
    kept = losses[facts["kept_step"]]
    assert kept == min(losses.values()) < losses[0]
    model, plain = make(name), make(name)
    quantizer, ids = make_method(method), windows()
    layers = quantize_model(model, quantizer, chosen(model), ids, packed=packed)
    untuned = quantize_model(plain, quantizer, chosen(plain), ids)
    held = ids[::8]
    with torch.no_grad():  # there is no gap between what was trained and what is stored
        assert model(held, labels=held).loss.item() == pytest.approx(kept, rel=1e-5)
        assert plain(held, labels=held).loss.item() == pytest.approx(losses[0], rel=1e-5)
    assert [one.bits_stored for one in layers] == [one.bits_stored for one in untuned]
    for (path, one), (_, other) in zip(linear_layers(model), linear_layers(plain), strict=True):
        if chosen(model)[path] is None:
            assert torch.equal(one.weight, other.weight)
            continue
        assert one.layout() == other.layout()
        now, before = one.packed.buffers, other.packed.buffers
        moved = {k for k in now if now[k] is not None and not torch.equal(now[k], before[k])}
        assert moved
        assert moved <= {"alpha", "offset", "scale"}


@pytest.mark.parametrize("trains", ["scales", "weights"])
def test_a_killed_tuning_ends_byte_for_byte_as_another(trains, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(loop, "_KEEP_SECONDS", 0.0)
    monkeypatch.setattr(loop, "_KEEP_SHARE", float("inf"))
    method, store = "gptq_bcq" if trains == "scales" else "mixed_2_4_16", TuningStore(tmp_path)
    options = {"trains": trains, "loss": "distribution", "steps": 5}
    whole = tuned("opt", method, **options)
    with pytest.raises(Killed), heard(kill_after(3)):
        tuned("opt", method, **options, kept=store)
    again = tuned("opt", method, **options, kept=store)
    assert again[2] == whole[2]
    for name, layer in whole[0].items():
        for key, buffer in layer.buffers.items():
            other = again[0][name].buffers[key]
            assert (buffer is None and other is None) or torch.equal(buffer, other)


def test_what_has_no_scales_or_no_room_is_refused(monkeypatch):
    once = lutlab.Tuning(steps=1, trains="scales")
    for method in ("none", "mixed_2_4_16"):
        with pytest.raises(LutlabError, match="scales of binary or uniform codes"):
            lutlab.quantize(
                make("opt"), method=method, q=3, g=8, calibration=windows(), tuning=once
            )
    with pytest.raises(LutlabError, match="give one of them"):
        lutlab.Tuning()
    with pytest.raises(LutlabError, match=r"trains 'scale'.*scales"):
        lutlab.Tuning(steps=1, trains="scale")
    with pytest.raises(LutlabError, match="weight_decay=-1"):
        lutlab.Tuning(steps=1, weight_decay=-1)
    monkeypatch.setattr(fits, "available", lambda device: 10_000)
    model = make("opt")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(fits.TooLargeError, match=r"a float32 copy.*lower tuning\.batch"):
        lutlab.quantize(model, "rtn", q=2, g=8, calibration=windows(), tuning=once)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_row_of_tuned_scales(command: CommandLine):
    row = ["method=rtn", "q=2", "g=32", "calibration.text=pydocs-train", "calibration.samples=2",
           "calibration.seqlen=32", "logger=none", "tuning.steps=2", "tuning.trains=scales"]  # fmt: skip
    outcome = command(*row, "evaluate=[weight_error]")
    assert outcome.code == 0, outcome.err
    (record,) = command.records().values()
    assert record["provenance"]["identity"]["components"]["tuning/scales"] == 1
    assert record["run"]["tuning"]["trains"] == "scales"
    outcome = command(*row, "evaluate=[model_size]")
    assert outcome.code == 0, outcome.err
    facts = [one["facts"]["tuning"] for one in command.records().values()]
    assert facts[0] == facts[1], "a later evaluation has the curve too"
    assert {"held_out", "losses", "kept_step", "diverged"} <= facts[0].keys()
    assert not [*command.results.glob("records/*.stage"), *command.results.glob("*/*/tuning-s*")]
