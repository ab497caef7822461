"""Weights by name out of several files, and what a checkpoint may not hold or lack."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.base.refusals import refused
from tests.models.folders import write_shards

from lutlab.models.files import Shards

NAMES = ["model.layers.0.fc.weight", "model.layers.1.fc.weight", "model.norm.weight"]


def tensors(names=NAMES):
    return {name: torch.full((2, 3), float(i)) for i, name in enumerate(names)}


FLOATS = [torch.float16, torch.bfloat16, torch.float32]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    files=st.lists(st.integers(0, 2), min_size=3, max_size=3), bare=st.booleans(), dtype=st.sampled_from(FLOATS),
    wanted=st.lists(st.sampled_from(NAMES), unique=True), stored=st.sampled_from([*FLOATS, torch.float64]),
)  # fmt: skip
def test_reads_what_is_asked_for_from_any_file(files, bare, wanted, stored, dtype, tmp_path):
    for old in tmp_path.iterdir():
        old.unlink()
    content = {n.removeprefix("model.") if bare else n: t.to(stored) for n, t in tensors().items()}
    write_shards(tmp_path, content, files)
    shards = Shards(tmp_path, "model")
    shards.check(NAMES, "model.layers")
    shapes = {name: torch.empty(2, 3, device="meta") for name in wanted}
    weights = shards.read(shapes, dtype, "cpu")
    expected = {name: tensors()[name].to(dtype) for name in wanted}
    torch.testing.assert_close(dict(weights), expected, rtol=0, atol=0)


def test_what_was_read_outlives_the_file(tmp_path):
    write_shards(tmp_path, tensors(), [0, 0, 0])
    weights = Shards(tmp_path, "model").read({NAMES[1]: torch.empty(2, 3)}, torch.float32, "cpu")
    (tmp_path / "model-0.safetensors").write_bytes(b"\0" * 1000)
    assert weights[NAMES[1]].tolist() == [[1.0] * 3] * 2


def test_what_lacks_and_what_has_no_place(tmp_path):
    """A vision tower, a buffer of an old version: not asked for, not read."""
    others = ["vision.weight", "model.layers.0.attn.bias"]
    write_shards(tmp_path, tensors([*NAMES[1:], *others]), [0, 1, 0, 1])
    check = Shards(tmp_path, "model").check
    check(NAMES[1:], "model.layers")
    refused(r"lacks 1 weights .*first model\.layers\.0\.fc\.weight", check, NAMES, "model.layers")
    refused(r"holds 1 tensors .*layers\.1\.fc\.weight", check, NAMES[2:], "model.layers")


def test_contains(tmp_path):
    write_shards(tmp_path, tensors(["layers.0.fc.weight"]), [0])
    shards = Shards(tmp_path, "model")
    assert [name in shards for name in NAMES] == [True, False, False]
