"""A model spread over devices is quantized and evaluated as on one. Without GPUs: accelerate's hooks on a CPU map."""

import dataclasses

import pytest
import torch
from tests.base.refusals import refused
from tests.calibrated import Fake, FakeScaling
from tests.models.architectures import CAUSAL, make, token_ids, uniform
from tests.models.folders import loaded

from lutlab.compress.driver import quantize_model
from lutlab.evaluators.perplexity import window_nll
from lutlab.experiment.row.run import _device
from lutlab.models.families import decoder_blocks, family_of
from lutlab.models.resident import spread


def device_map(model, devices):
    """Embeddings and head on the first device, block i on devices[i % n]."""
    blocks, count = family_of(model.config).blocks, len(decoder_blocks(model))
    leaves = [
        n for n, m in model.named_modules() if not [*m.children()] and not n.startswith(blocks)
    ]
    places = {f"{blocks}.{at}": devices[at % len(devices)] for at in range(count)}
    return dict.fromkeys(leaves, devices[0]) | places


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
    nll = window_nll(alone, ids, 32)
    assert window_nll(model, ids, 32) == pytest.approx(nll, rel=tolerance, abs=0)
    return model


FAKES = (Fake(target="stream"), Fake("full"), FakeScaling())


@pytest.mark.parametrize(("name", "at"), [(name, at % 3) for at, name in enumerate(CAUSAL)])
def test_hooks_change_nothing(name, at):
    model = spread_equals_one_device(name, FAKES[at], ["cpu"])
    assert all(hasattr(block, "_hf_hook") for block in decoder_blocks(model))


@pytest.mark.gpu
@pytest.mark.parametrize("name", CAUSAL)
def test_over_the_gpus_there_are(name):
    devices = list(range(torch.cuda.device_count()))
    model = spread_equals_one_device(name, Fake("quantized", True), devices, tolerance=0.05)
    for index, block in enumerate(decoder_blocks(model)):
        here = {t.device.index for t in block.state_dict().values()}
        assert here == {devices[index % len(devices)]}


@pytest.mark.gpu
def test_accelerate_fills_the_gpus():
    model = spread(make("llama-2"))
    assert {p.device.type for p in model.parameters()} == {"cuda"}
    assert model(token_ids().cuda()).logits.isfinite().all()


@pytest.mark.skipif(torch.cuda.is_available(), reason="GPUs hold such a model")
def test_without_gpus_that_hold_the_model_it_is_refused():
    refused("GPUs of this machine do not hold the model.*stream=true", spread, make("opt"))
    refused("device=spread, but this machine has no CUDA device", _device, "spread")


def test_one_device_is_loaded_without_hooks():
    model = loaded("opt-embedded-s", "embedded").model
    assert not hasattr(decoder_blocks(model)[0], "_hf_hook")
