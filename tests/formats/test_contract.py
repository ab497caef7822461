"""What every registered format keeps to, found by name."""

import json

import pytest
import torch
from tests.kernels.weights import bcq_tensor, uniform_tensor
from tests.mixed_weights import mixed_tensor

import gguf
from lutlab import formats
from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.tensors import BCQTensor, BlocksTensor, DenseTensor, MixedTensor, UniformTensor
from lutlab.formats.contract import Format


def blocks_tensor(kind):
    """[5, 96] in one of ggml's types that gguf itself rounds to."""
    weight = torch.randn(5, 96, generator=torch.Generator().manual_seed(0))
    blocks = gguf.quants.quantize(weight.numpy(), gguf.GGMLQuantizationType[kind])
    return BlocksTensor(torch.from_numpy(blocks), kind, 96)


FORMATS = registry.classes("format")
EXAMPLES = {
    UniformTensor: [
        uniform_tensor(5, 45, 3, 16, ordered=True),
        uniform_tensor(4, 64, 4, -1, scale="f32"),
        uniform_tensor(5, 45, 4, 16, shift="f16", ordered=True),
        UniformTensor(
            torch.zeros(3, 8, dtype=torch.uint8),
            torch.ones(3, 1),
            torch.full((3, 1), -5).short(),
            2,
            -1,
        ),
    ],
    BCQTensor: [
        bcq_tensor(5, 45, 3, 16, ordered=True),
        bcq_tensor(4, 64, 4, -1, alpha="f32", offset="f32"),
    ],
    MixedTensor: [
        mixed_tensor(18, 70, outliers=5, aligned=True),
        mixed_tensor(5, 45, 8, (2, 3, 4), by_row=False),
    ],
    DenseTensor: [DenseTensor(torch.randn(3, 7)), DenseTensor(torch.randn(3, 7).half())],
    BlocksTensor: [blocks_tensor("Q4_0"), blocks_tensor("Q8_0")],
}
WEIGHTS = [(name, tensor) for name, cls in FORMATS.items() for tensor in EXAMPLES[cls.tensor]]


def same(a, b):
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and torch.equal(a, b)


@pytest.mark.parametrize("name", FORMATS)
def test_says_its_version_its_tensor_and_its_kernels(name):
    cls = FORMATS[name]
    assert issubclass(cls, Format)
    assert type(cls.version) is int
    operations = registry.classes("kernel")
    assert all(op in operations for ops in cls.kernels.values() for op in ops)


def test_each_tensor_has_one_format():
    assert len({cls.tensor for cls in FORMATS.values()}) == len(FORMATS)


@pytest.mark.parametrize(("name", "tensor"), WEIGHTS)
def test_packs_and_unpacks(name, tensor):
    packed = formats.pack(tensor)
    assert type(packed) is FORMATS[name]
    assert formats.name_of(packed) == name
    back = packed.unpack()
    for field, value in vars(tensor).items():
        other = getattr(back, field)
        assert same(value, other) if isinstance(value, torch.Tensor) else value == other, field
    dense = packed.dequantize()
    assert (dense.dtype, tuple(dense.shape)) == (torch.float32, packed.shape)


@pytest.mark.parametrize(("name", "tensor"), WEIGHTS)
def test_buffers_are_all_that_is_stored(name, tensor):
    packed = formats.pack(tensor)
    assert packed.bits_stored == sum(8 * b.nbytes for b in packed.buffers.values() if b is not None)
    assert packed.bits_per_weight == packed.bits_stored / (packed.shape[0] * packed.shape[1])
    held = {k: v for k, v in vars(packed).items() if isinstance(v, torch.Tensor)}
    assert held.keys() == {name for name, b in packed.buffers.items() if b is not None}
    if name != "dense":  # a layer keeps these names for itself, and stays as it is in format dense
        assert packed.buffers.keys().isdisjoint({"weight", "bias"})


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(("name", "tensor"), WEIGHTS)
def test_is_made_again_from_its_layout_and_its_buffers(name, tensor, device):
    packed = formats.pack(tensor)
    layout = json.loads(json.dumps(packed.layout()))
    empty = FORMATS[name].from_layout(layout, device)
    assert empty.layout() == layout
    assert empty.shape == packed.shape
    for key, buffer in packed.buffers.items():
        made = empty.buffers[key]
        assert (made is None) == (buffer is None), key
        if buffer is not None:
            assert (made.shape, made.dtype) == (buffer.shape, buffer.dtype), key
            assert made.device.type == device
    again = empty.with_buffers(packed.buffers)
    assert torch.equal(again.dequantize(), packed.dequantize())
    assert packed.to("meta").buffers.keys() == packed.buffers.keys()


@pytest.mark.parametrize(("name", "tensor"), WEIGHTS)
def test_a_damaged_layout_is_explained(name, tensor):
    layout = formats.pack(tensor).layout()
    cls = FORMATS[name]
    for key in layout:
        with pytest.raises(LutlabError, match=f"lacks '{key}'"):
            cls.from_layout({k: v for k, v in layout.items() if k != key})
        with pytest.raises(LutlabError, match=f"{key}="):
            cls.from_layout(layout | {key: "nonsense"})
    with pytest.raises(LutlabError, match="has unknown 'colour'"):
        cls.from_layout(layout | {"colour": "red"})


def test_the_binary_form_is_counted_without_being_made():
    for tensor in EXAMPLES[UniformTensor] + EXAMPLES[BCQTensor]:
        packed = formats.pack(tensor)
        assert packed.bcq_bits == packed.to_bcq().bits_stored


def test_a_uniform_weight_that_eq_5_cannot_say_has_no_binary_form():
    zero = torch.zeros(1, 1, dtype=torch.int16)
    tensor = UniformTensor(
        torch.ones(1, 8, dtype=torch.uint8), torch.full((1, 1), 3e38), zero, 4, -1
    )
    packed = formats.pack(tensor)
    assert packed.bcq_bits is None
    assert torch.equal(packed.dequantize(), torch.full((1, 8), 3e38))
