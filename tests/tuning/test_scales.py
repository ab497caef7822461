"""Scales under codes that stay: exact gradients, nothing else moved, what is stored is what was trained."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.command_line import CommandLine
from tests.models.architectures import make, uniform
from tests.quantizers.weights import assert_same, exact
from tests.tuning.tuned import Killed, coded, kill_after, stored, tuned, windows

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.progress import heard
from lutlab.compress.kept_blocks import TuningStore
from lutlab.formats import pack
from lutlab.models import fits
from lutlab.models.families import linear_layers
from lutlab.quantizers.contract import make_method
from lutlab.tuning.scales import ScaledLinear
from lutlab.tuning.stages import tune


@settings(max_examples=12)
@given(st.builds(
    coded, st.just(2), st.integers(9, 19), st.integers(1, 3), st.sampled_from([8, -1]), st.booleans(),
    st.sampled_from([None, "f16"]), ordered=st.booleans(), seed=st.integers(0, 99),
))  # fmt: skip
def test_gradients_are_those_of_the_formulas(tensor):
    draw, columns = torch.Generator().manual_seed(0), tensor.codes.shape[1]
    layer = ScaledLinear(pack(tensor), None)
    x = torch.randn(5, columns, generator=draw, dtype=torch.float64)
    out = torch.randn(5, 2, generator=draw, dtype=torch.float64)
    scales = {name: getattr(tensor, name, None) for name in ("alpha", "scale", "offset")}
    scales = {n: s.double().requires_grad_() for n, s in scales.items() if s is not None}
    weight = exact(dataclasses.replace(tensor, **scales))
    torch.testing.assert_close(layer.rounded().dequantize().double(), weight, rtol=1e-7, atol=1e-7)
    ((x @ weight.T) * out).sum().backward()
    (layer(x) * out).sum().backward()
    for name, scale in scales.items():
        torch.testing.assert_close(layer.scales[name].grad, scale.grad.float())


@pytest.mark.parametrize(("name", "method"), [
    ("opt", "gptq_bcq"), ("llama-2", "rtn"), ("gpt2", "bcq"), ("llama-1", "awq"),
])  # fmt: skip
def test_scales_alone_move(name, method):
    assert moved_buffers(name, method) <= {"alpha", "offset", "scale"}


@pytest.mark.parametrize(("name", "method", "few"), [
    ("opt", "hessian_bcq", {"alpha_bits": 4}), ("llama-2", "gptq", {"scale_bits": 5}),
])  # fmt: skip
def test_scales_of_second_order_move_on_their_grids(name, method, few):
    assert moved_buffers(name, method, few, learning_rate=None) == {"scale_code"}


def moved_buffers(name, method, few=None, **options):
    moved = set()
    for layer, other in stored(name, method, 2, 0.0, few, steps=8, trains="scales", **options):
        assert layer.layout() == other.layout()
        now, before = layer.packed.buffers, other.packed.buffers
        changed = {k for k in now if now[k] is not None and not torch.equal(now[k], before[k])}
        assert changed
        moved |= changed
    return moved


@pytest.mark.parametrize(("trains", "method"), [("scales", "gptq_bcq"), ("weights", "mixed_2_4_16")])  # fmt: skip
def test_a_killed_tuning_ends_byte_for_byte_as_another(
    trains, method, tmp_path, kept_at_every_step
):
    options = {"q": 2, "trains": trains, "loss": "distribution", "steps": 5}
    whole, store = tuned("opt", method, **options), TuningStore(tmp_path)
    with pytest.raises(Killed), heard(kill_after(3)):
        tuned("opt", method, **options, kept=store)
    again = tuned("opt", method, **options, kept=store)
    assert again[2] == whole[2]
    for name, layer in whole[0].items():
        assert_same(again[0][name].buffers, layer.buffers)


def test_other_windows_are_tuned_on_than_calibrated():
    ids = windows(9)
    pace = {"steps": 8, "trains": "scales", "learning_rate": 3e-3, "loss": "labels"}
    both = lutlab.Tuning(**pace, samples=5)
    model = lutlab.quantize(make("opt"), "gptq", 3, 8, calibration=ids, tuning=both)
    start, method = make("opt"), make_method("gptq")
    packed, _, facts = tune(
        start, method, uniform(start, 3, 8), ids[:4], ids[4:], lutlab.Tuning(**pace)
    )
    assert facts["kept_step"] > 0
    plain = lutlab.quantize(make("opt"), "gptq", 3, 8, calibration=ids[:4])
    for (name, layer), (_, untuned) in zip(linear_layers(model), linear_layers(plain), strict=True):
        assert_same(layer.packed.buffers, packed[name].buffers)
        assert torch.equal(layer.packed.qweight, untuned.packed.qweight), "codes of the first four"
    with pytest.raises(LutlabError, match=r"tuning\.samples=9 of 9"):
        lutlab.quantize(
            make("opt"), "gptq", 3, 8, calibration=ids, tuning=lutlab.Tuning(**pace, samples=9)
        )


@pytest.mark.parametrize(("options", "message"), [
    ({}, "give one of them"), ({"steps": 1, "trains": "scale"}, r"trains 'scale'.*scales"),
    ({"steps": 1, "weight_decay": -1}, "weight_decay=-1"), ({"steps": 0}, "tuning.steps=0"),
    ({"steps": 1, "batch": True}, "tuning.batch=True"), ({"steps": 1, "learning_rate": 0}, "learning_rate=0"),
    ({"steps": 1, "loss": "label"}, "labels"),
])  # fmt: skip
def test_values_out_of_range_are_refused(options, message):
    with pytest.raises(LutlabError, match=message):
        lutlab.Tuning(**options)


@pytest.mark.parametrize(("name", "method", "samples", "options", "message"), [
    ("opt", "none", 9, {"steps": 1, "trains": "scales"}, "scales of binary or uniform codes"),
    ("opt", "mixed_2_4_16", 9, {"steps": 1, "trains": "scales"}, "scales of binary or uniform codes"),
    ("opt", "gptq", 9, {"steps": 1}, "mixed_2_4_16"), ("opt", "mixed_2_4_16", 1, {"steps": 1}, "at least 2"),
    ("bert", "mixed_2_4_16", 2, {"steps": 1}, "masked_lm"),
    ("opt", "mixed_2_4_16", 9, {"steps": 0, "block_steps": 2}, "block_steps moves .* drop it"),
])  # fmt: skip
def test_what_cannot_be_tuned_is_refused(name, method, samples, options, message):
    given = {"calibration": windows(samples), "tuning": lutlab.Tuning(**options)}
    with pytest.raises(LutlabError, match=message):
        lutlab.quantize(make(name), method=method, q=3, g=8, **given)


@pytest.mark.parametrize(("options", "message"), [
    ({"steps": 1, "trains": "scales"}, r"a float32 copy.*lower tuning\.batch"),
    ({"block_steps": 2}, r"block by block .* windows"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_before_it_starts(options, message, monkeypatch):
    monkeypatch.setattr(fits, "available", lambda device: 1000)
    model, tuning = make("opt"), lutlab.Tuning(**options)
    with pytest.raises(fits.TooLargeError, match=message):
        lutlab.quantize(model, "rtn", q=2, g=8, calibration=windows(), tuning=tuning)
    assert_same(model.state_dict(), make("opt").state_dict())


def test_a_row_of_tuned_scales(command: CommandLine):
    row = ["method=rtn", "q=2", "g=32", "calibration.text=pydocs-train", "calibration.samples=2",
           "calibration.seqlen=32", "logger=none", "tuning.steps=2", "tuning.trains=scales",
           "tuning.samples=2"]  # fmt: skip
    outcome = command(*row, "evaluate=[weight_error]")
    assert outcome.code == 0, outcome.err
    (record,) = command.records().values()
    assert record["provenance"]["identity"]["components"]["tuning/scales"] == 1
    assert record["run"]["tuning"].items() >= {"trains": "scales", "samples": 2}.items()
    outcome = command(*row, "evaluate=[model_size]")
    assert outcome.code == 0, outcome.err
    first, later = (record["facts"]["tuning"] for record in command.records().values())
    assert first == later, "a later evaluation has the curve too"
    assert {"held_out", "losses", "kept_step", "diverged"} <= first.keys()
    assert not [*command.results.glob("records/*.stage"), *command.results.glob("*/*/tuning-s*")]
