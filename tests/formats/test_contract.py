"""What every registered format keeps to, found by name."""

import json

import pytest
import torch
from tests.formats.layouts import made_again
from tests.kernels.weights import (
    bcq_tensor,
    second_order_tensor,
    uniform_second_order_tensor,
    uniform_tensor,
)
from tests.mixed_weights import mixed_tensor
from tests.quantizers.weights import assert_same, drawn

import gguf
from lutlab import formats
from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.tensors import (
    BCQTensor,
    BlocksTensor,
    DenseTensor,
    MixedTensor,
    SecondOrderTensor,
    UniformSecondOrderTensor,
    UniformTensor,
)
from lutlab.formats.contract import Format


def blocks_tensor(kind):
    """[5, 96] in one of ggml's types that gguf itself rounds to."""
    blocks = gguf.quants.quantize(drawn(5, 96).numpy(), gguf.GGMLQuantizationType[kind])
    return BlocksTensor(torch.from_numpy(blocks), kind, 96)


FORMATS = registry.classes("format")
EXAMPLES = {
    UniformTensor: [
        uniform_tensor(5, 45, 3, 16, ordered=True),
        uniform_tensor(4, 64, 4, -1, scale="f32"),
        uniform_tensor(5, 45, 4, 16, shift="f16", ordered=True),
        uniform_tensor(3, 8, 2, -1, zeros=(-5, -4)),
    ],
    UniformSecondOrderTensor: [
        uniform_second_order_tensor(5, 45, 3, 16, ordered=True),
        uniform_second_order_tensor(4, 64, 4, -1, scale_bits=5, zeros=(-5, 20)),
    ],
    BCQTensor: [
        bcq_tensor(5, 45, 3, 16, ordered=True),
        bcq_tensor(4, 64, 4, -1, alpha="f32", offset="f32"),
    ],
    SecondOrderTensor: [
        second_order_tensor(5, 45, 3, 16, ordered=True),
        second_order_tensor(4, 64, 2, -1, scale_bits=5, offset=False),
    ],
    MixedTensor: [
        mixed_tensor(18, 70, outliers=5, aligned=True),
        mixed_tensor(5, 45, 8, (2, 3, 4), by_row=False),
    ],
    DenseTensor: [DenseTensor(drawn(3, 7)), DenseTensor(drawn(7, 3).half().t())],
    BlocksTensor: [blocks_tensor("Q4_0"), blocks_tensor("Q8_0")],
}
WEIGHTS = [(name, tensor) for name, cls in FORMATS.items() for tensor in EXAMPLES[cls.tensor]]


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
    fields, again = ({"type": None} | vars(each) for each in (tensor, packed.unpack()))
    assert fields.pop("type") == again.pop("type")
    assert_same(again, fields)
    dense = packed.dequantize()
    assert (dense.dtype, tuple(dense.shape)) == (torch.float32, packed.shape)


@pytest.mark.parametrize(("name", "tensor"), WEIGHTS)
def test_buffers_are_all_that_is_stored(name, tensor):
    packed = formats.pack(tensor)
    assert packed.bits_stored == sum(8 * b.nbytes for b in packed.buffers.values() if b is not None)
    assert packed.bits_per_weight == packed.bits_stored / (packed.shape[0] * packed.shape[1])
    held = {k: v for k, v in vars(packed).items() if isinstance(v, torch.Tensor)}
    assert all(buffer.is_contiguous() for buffer in held.values())
    assert held.keys() == {name for name, b in packed.buffers.items() if b is not None}
    if name != "dense":  # a layer keeps these names for itself, and stays as it is in format dense
        assert packed.buffers.keys().isdisjoint({"weight", "bias"})


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(("name", "tensor"), WEIGHTS)
def test_is_made_again_from_its_layout_and_its_buffers(name, tensor, device):
    packed = formats.pack(tensor)
    assert json.loads(json.dumps(packed.layout())) == packed.layout()
    empty = made_again(packed, device)
    assert {b.device.type for b in empty.buffers.values() if b is not None} == {device}
    assert torch.equal(empty.with_buffers(packed.buffers).dequantize(), packed.dequantize())
    assert packed.to("meta").buffers.keys() == packed.buffers.keys()


@pytest.mark.parametrize(("name", "tensor"), WEIGHTS)
def test_a_damaged_layout_is_explained(name, tensor):
    layout, cls = formats.pack(tensor).layout(), FORMATS[name]
    for key in layout:
        with pytest.raises(LutlabError, match=f"lacks '{key}'"):
            cls.from_layout({k: v for k, v in layout.items() if k != key})
        with pytest.raises(LutlabError, match=f"{key}="):
            cls.from_layout(layout | {key: "nonsense"})
    with pytest.raises(LutlabError, match="has unknown 'colour'"):
        cls.from_layout(layout | {"colour": "red"})


@pytest.mark.parametrize("tensor", EXAMPLES[UniformTensor] + EXAMPLES[BCQTensor])
def test_the_binary_form_is_counted_without_being_made(tensor):
    packed = formats.pack(tensor)
    assert packed.bcq_bits == packed.to_bcq().bits_stored
