"""A model spread over devices is quantized and evaluated as on one. Without GPUs: accelerate's hooks on a CPU map."""

import dataclasses

import pytest
import torch
from tests.calibrated import Fake, FakeScaling
from tests.models.architectures import CAUSAL, make, token_ids, uniform

from lutlab.base.errors import LutlabError
from lutlab.base.limits import a_device
from lutlab.base.specs import ModelSpec
from lutlab.compress.driver import quantize_model
from lutlab.evaluators.perplexity import window_nll
from lutlab.experiment.row.run import _device
from lutlab.models.families import decoder_blocks, family_of
from lutlab.models.load import load_model
from lutlab.models.resident import spread


def device_map(model, devices):
    """Embeddings and head on the first device, block i on devices[i % n]."""
    blocks = family_of(model.config).blocks
    parts = {name for name, _ in model.named_parameters() if not name.startswith(f"{blocks}.")}
    places = {name.rpartition(".")[0]: devices[0] for name in parts}
    for index in range(len(decoder_blocks(model))):
        places[f"{blocks}.{index}"] = devices[index % len(devices)]
    rest = [n for n, m in model.named_modules() if n and not list(m.children())]
    return places | {
        n: devices[0] for n in rest if not any(n == p or n.startswith(f"{p}.") for p in places)
    }


def spread_equals_one_device(name, fake, devices, tolerance=0.0):
    model, alone = make(name), make(name)
    spread(model, device_map(model, devices))
    windows = token_ids(4, 16)
    again = dataclasses.replace(fake, seen=[], quantized=0)
    stats = quantize_model(model, fake, uniform(model, 3, 16), windows)
    expected = quantize_model(alone, again, uniform(alone, 3, 16), windows)
    assert [layer.name for layer in stats] == [layer.name for layer in expected]
    assert tolerance or stats == expected
    ids = token_ids(1, 64).flatten()
    assert window_nll(model, ids, 32) == pytest.approx(
        window_nll(alone, ids, 32), rel=tolerance, abs=0
    )
    return model


@pytest.mark.parametrize(
    ("name", "fake"),
    [
        (name, (Fake(target="stream"), Fake("full"), FakeScaling())[at % 3])
        for at, name in enumerate(CAUSAL)
    ],
)
def test_hooks_change_nothing(name, fake):
    model = spread_equals_one_device(name, fake, ["cpu"])
    assert all(hasattr(block, "_hf_hook") for block in decoder_blocks(model))


@pytest.mark.gpu
@pytest.mark.parametrize("name", CAUSAL)
def test_over_the_gpus_there_are(name):
    devices = list(range(torch.cuda.device_count()))
    model = spread_equals_one_device(name, Fake("quantized", True), devices, tolerance=0.05)
    for index, block in enumerate(decoder_blocks(model)):
        assert {t.device.index for t in block.state_dict().values()} == {
            devices[index % len(devices)]
        }


@pytest.mark.gpu
def test_accelerate_fills_the_gpus():
    model = spread(make("llama-2"))
    assert {p.device.type for p in model.parameters()} == {"cuda"}
    assert model(token_ids().cuda()).logits.isfinite().all()


@pytest.mark.skipif(torch.cuda.is_available(), reason="GPUs hold such a model")
def test_a_model_that_the_gpus_do_not_hold(tmp_path):
    with pytest.raises(
        LutlabError, match=r"GPUs of this machine do not hold the model.*stream=true"
    ):
        spread(make("opt"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA devices")
def test_spread_without_gpus_is_refused_before_anything_is_loaded():
    with pytest.raises(LutlabError, match="device=spread, but this machine has no CUDA device"):
        _device("spread")


def test_unknown_device_suggests():
    with pytest.raises(LutlabError, match="did you mean 'spread'"):
        a_device("device", "spred")


def test_one_device_is_loaded_without_hooks(tmp_path):
    spec = ModelSpec("model", "embedded", "opt-embedded-s")
    model = load_model(spec, torch.float32, "cpu", 0).model
    assert not hasattr(decoder_blocks(model)[0], "_hf_hook")
