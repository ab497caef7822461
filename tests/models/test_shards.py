"""Weights by name out of several files, and what a checkpoint may not hold or lack."""

import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from lutlab.base.errors import LutlabError
from lutlab.models.files import Shards

NAMES = ["model.layers.0.fc.weight", "model.layers.1.fc.weight", "model.norm.weight"]


def write(folder, tensors, files):
    """`files[i]` is the shard of the i-th tensor."""
    shards = {}
    for (name, tensor), number in zip(tensors.items(), files, strict=True):
        shards.setdefault(f"model-{number}.safetensors", {})[name] = tensor
    for file, content in shards.items():
        save_file(content, folder / file, {"format": "pt"})
    index = {name: file for file, content in shards.items() for name in content}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def tensors(names=NAMES):
    return {name: torch.full((2, 3), float(i)) for i, name in enumerate(names)}


@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    files=st.lists(st.integers(0, 2), min_size=3, max_size=3),
    bare=st.booleans(),
    wanted=st.lists(st.sampled_from(NAMES), unique=True),
    stored=st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]),
    dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
)
def test_reads_what_is_asked_for_from_any_file(files, bare, wanted, stored, dtype, tmp_path):
    for old in tmp_path.iterdir():
        old.unlink()
    content = {n.removeprefix("model.") if bare else n: t.to(stored) for n, t in tensors().items()}
    write(tmp_path, content, files)
    shards = Shards(tmp_path, "model")
    shards.check(NAMES, "model.layers")
    shapes = {name: torch.empty(2, 3, device="meta") for name in wanted}
    found = shards.read(shapes, dtype, "cpu")
    assert sorted(found) == sorted(wanted)
    for name, tensor in found.items():
        assert tensor.dtype == dtype
        assert torch.equal(tensor, tensors()[name].to(dtype))


def test_what_was_read_outlives_the_file(tmp_path):
    write(tmp_path, tensors(), [0, 0, 0])
    found = Shards(tmp_path, "model").read({NAMES[1]: torch.empty(2, 3)}, torch.float32, "cpu")
    (tmp_path / "model-0.safetensors").write_bytes(b"\0" * 1000)
    assert found[NAMES[1]].tolist() == [[1.0] * 3] * 2


def test_a_weight_that_is_lacking(tmp_path):
    write(tmp_path, tensors(NAMES[1:]), [0, 1])
    with pytest.raises(LutlabError, match=r"lacks 1 weights .*first model\.layers\.0\.fc\.weight"):
        Shards(tmp_path, "model").check(NAMES, "model.layers")


def test_a_block_without_a_place(tmp_path):
    write(tmp_path, tensors(), [0, 1, 0])
    shards = Shards(tmp_path, "model")
    with pytest.raises(LutlabError, match=r"holds 1 tensors .*layers\.1\.fc\.weight"):
        shards.check([NAMES[0], NAMES[2]], "model.layers")


def test_weights_beside_the_blocks_are_left_alone(tmp_path):
    """A vision tower, a buffer of an old version: not asked for, not read."""
    write(tmp_path, tensors([*NAMES, "vision.weight", "model.layers.0.attn.bias"]), [0, 1, 0, 1, 0])
    Shards(tmp_path, "model").check(NAMES, "model.layers")


def test_contains(tmp_path):
    write(tmp_path, tensors(["layers.0.fc.weight"]), [0])
    shards = Shards(tmp_path, "model")
    assert "model.layers.0.fc.weight" in shards
    assert "model.layers.1.fc.weight" not in shards


def test_pickles_are_never_read(tmp_path):
    torch.save(tensors(), tmp_path / "pytorch_model.bin")
    with pytest.raises(LutlabError, match="safetensors only, never pickled weights"):
        Shards(tmp_path, "model")
