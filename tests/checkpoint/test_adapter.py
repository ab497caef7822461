"""Two tasks, one set of planes: swapping scales and head is exact and leaves codes alone; others are refused."""

import copy

import pytest
import torch
from tests.base.refusals import refused
from tests.models.architectures import make
from tests.models.folders import flip
from tests.tuning.test_labels import classifier, samples

import lutlab
from lutlab.checkpoint.transformers import quantized_layers


@pytest.fixture(scope="module")
def base():
    return lutlab.quantize(classifier(), "bcq", 2, 16)


def task(base, seed, classes=3):
    """The base tuned as far as its files can tell: other scales, another head."""
    model, draw = copy.deepcopy(base), torch.Generator().manual_seed(seed)
    for layer in quantized_layers(model).values():
        factor = 1 + torch.rand(layer.packed.alpha.shape, generator=draw)
        layer.alpha = (layer.packed.alpha.float() * factor).half()
    model.score = torch.nn.Linear(model.config.hidden_size, classes, bias=False)
    torch.nn.init.normal_(model.score.weight, generator=draw)
    model.config.id2label = {index: f"class {index}" for index in range(classes)}
    return model


@torch.no_grad()
def logits(model):
    return model(**samples().inputs).logits


def planes(model):
    return [layer.packed.planes.clone() for layer in quantized_layers(model).values()]


@pytest.mark.slow
def test_two_tasks_swap_over_one_set_of_planes(base, tmp_path):
    tasks = {"a": task(base, 1), "b": task(base, 2, classes=5)}
    sizes = {name: lutlab.save_adapter(model, tmp_path / name) for name, model in tasks.items()}
    model = copy.deepcopy(base)
    for name in ("a", "b", "a"):
        assert lutlab.load_adapter(model, tmp_path / name) is model
        assert torch.equal(logits(model), logits(tasks[name]))
        assert model.config.num_labels == len(logits(model)[0])
    assert all(map(torch.equal, planes(model), planes(base)))
    alphas = sum(layer.packed.alpha.nbytes for layer in quantized_layers(base).values())
    assert sizes["a"] == alphas + 3 * base.config.hidden_size * 4


def test_an_adapter_is_kept_through_save_and_load(base, tmp_path):
    lutlab.save_adapter(task(base, 1), tmp_path / "a")
    lutlab.save(base, tmp_path / "base")
    model = lutlab.load_adapter(lutlab.load(tmp_path / "base"), tmp_path / "a")
    assert torch.equal(logits(model), logits(task(base, 1)))


def test_other_planes_damage_and_other_tasks_are_refused(base, tmp_path):
    folder, other = tmp_path / "a", copy.deepcopy(base)
    lutlab.save_adapter(task(base, 1), folder)
    layer = next(iter(quantized_layers(other).values()))
    layer.planes = layer.packed.planes ^ 1
    state = copy.deepcopy(other.state_dict())
    refused(r"planes \w{16}, and this model has \w{16}", lutlab.load_adapter, other, folder)
    assert all(map(torch.equal, state.values(), other.state_dict().values()))
    opt = lutlab.quantize(make("opt"), "bcq", 2, 16)
    refused("adapter over planes", lutlab.load_adapter, opt, folder)
    refused("no layer of this", lutlab.load_adapter, classifier(), folder)
    refused(r"no adapter\.json", lutlab.load_adapter, base, tmp_path)
    refused("not empty", lutlab.save_adapter, base, folder)
    flip(folder / "adapter.safetensors")
    refused("copy its folder again", lutlab.load_adapter, copy.deepcopy(base), folder)
