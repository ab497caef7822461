"""QuantLinear: y = x W^T + b with the packed weight, whatever is done to the module around it."""

import copy
import dataclasses
import io
import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from lutlab.api import quantize_tensor
from lutlab.errors import LutlabError
from lutlab.formats.bcq import pack
from lutlab.modules import QuantLinear
from lutlab.records import BCQTensor

N, K = 24, 40
METHODS = [{"method": "rtn"}, {"method": "bcq"}, {"method": "bcq", "offset": True}]


def weight(seed=0):
    return torch.randn(N, K, generator=torch.Generator().manual_seed(seed))


def layer(bias=True, seed=0, **options):
    packed = quantize_tensor(weight(seed), q=3, g=16, **options or METHODS[0])
    return QuantLinear(packed, torch.linspace(-1, 1, N) if bias else None)


def x(dtype=torch.float32):
    return torch.randn(2, 5, K, generator=torch.Generator().manual_seed(7)).to(dtype)


def expected(module, inputs):
    bias = None if module.bias is None else module.bias.to(inputs.dtype)
    return functional.linear(inputs, module.packed.dequantize().to(inputs.dtype), bias)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("options", METHODS)
def test_forward_multiplies_with_the_dequantized_weight(options, bias):
    module = layer(bias, **options)
    assert torch.equal(module(x()), expected(module, x()))
    assert torch.equal(module(x()), expected(module, x())), "the second call reads the cache"
    assert module(x()[0, 0]).shape == (N,)


def test_forward_follows_the_dtype_of_its_input():
    module = layer(bias=False)
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float32):
        out = module(x(dtype))
        assert out.dtype == dtype
        assert torch.equal(out, expected(module, x(dtype)))


@pytest.mark.parametrize("options", METHODS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_conversion_of_the_model_keeps_the_scales(dtype, options):
    """A model is turned to half precision around the layer; its scales must not be rounded with it."""
    module = layer(**options)
    before = module.packed.dequantize()
    dtypes = {name: buffer.dtype for name, buffer in module.named_buffers()}
    model = nn.Sequential(module, nn.Linear(N, 2))
    module(x())
    model.to(dtype)
    assert {name: buffer.dtype for name, buffer in module.named_buffers()} == dtypes
    assert torch.equal(module.packed.dequantize(), before)
    assert module.bias.dtype == dtype
    assert torch.equal(module(x(dtype)), expected(module, x(dtype)))


def test_moving_to_another_device_forgets_the_dense_weight():
    module = layer()
    module(x())
    module.to("meta")
    assert {buffer.device.type for buffer in module.buffers()} == {"meta"}
    assert module(x().to("meta")).device.type == "meta"


@pytest.mark.gpu
def test_cuda():
    module = layer()
    on_cpu = module(x())
    module.cuda()
    assert torch.allclose(module(x().cuda()).cpu(), on_cpu, atol=1e-5)


def test_state_dict_holds_the_packed_weight_and_nothing_dense():
    module = layer(method="bcq", offset=True)
    module(x())
    assert set(module.state_dict()) == {"planes", "alpha", "offset", "bias"}
    assert set(layer(bias=False, method="bcq").state_dict()) == {"planes", "alpha"}


def test_loaded_weights_replace_the_cached_ones():
    module, other = layer(seed=0), layer(seed=1)
    module(x())
    module.load_state_dict(other.state_dict())
    assert torch.equal(module(x()), other(x()))
    assert not torch.equal(module(x()), layer(seed=0)(x()))


def test_needs_no_gradient_but_passes_it_on():
    module = layer()
    assert not any(parameter.requires_grad for parameter in module.parameters())
    inputs = x().requires_grad_()
    module(inputs).sum().backward()
    dense = module.packed.dequantize()
    assert torch.allclose(inputs.grad, dense.sum(0).expand_as(inputs), atol=1e-5)


def test_a_weight_first_used_in_inference_mode_still_passes_gradients():
    module = layer()
    with torch.inference_mode():
        module(x())
    module(x().requires_grad_()).sum().backward()


def pickled(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("again", [copy.deepcopy, pickled])
def test_copies_are_equal_and_carry_no_dense_weight(again):
    module = layer()
    y = module(x())
    copied = again(module)
    assert copied._dense is None
    assert torch.equal(copied(x()), y)
    copied.planes.zero_()
    assert torch.equal(module.packed.dequantize(), layer().packed.dequantize())


@st.composite
def packed_weights(draw):
    """Any PackedBCQ: q, ragged groups and words, with and without an offset and an order."""
    q, rows, columns = draw(st.integers(1, 8)), draw(st.integers(1, 5)), draw(st.integers(1, 70))
    g = draw(st.sampled_from([-1, 8, 13, 32, 100]))
    alpha_dtype = draw(st.sampled_from([torch.float16, torch.float32]))
    offset_dtype = draw(st.sampled_from([None, torch.float16, torch.float32, torch.float64]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    groups = 1 if g == -1 else -(-columns // g)
    codes = torch.randint(2**q, (rows, columns), generator=generator, dtype=torch.uint8)
    alpha = torch.randn(q, rows, groups, generator=generator).to(alpha_dtype)
    offset = offset_dtype and torch.randn(rows, groups, generator=generator).to(offset_dtype)
    order = torch.randperm(columns, generator=generator).int() if draw(st.booleans()) else None
    packed = pack(BCQTensor(codes, alpha, offset, q, g))
    return dataclasses.replace(packed, order=order)


@settings(deadline=None, max_examples=40)
@given(packed_weights(), st.sampled_from([None, torch.float16, torch.bfloat16, torch.float32]))
def test_a_layer_is_made_again_from_its_layout_and_its_buffers(packed, bias_dtype):
    bias = None if bias_dtype is None else torch.ones(packed.shape[0], dtype=bias_dtype)
    module = QuantLinear(packed, bias)
    layout = json.loads(json.dumps(module.layout()))
    again = QuantLinear.from_layout(layout)
    again.load_state_dict(module.state_dict(), strict=True)
    assert again.layout() == layout
    assert torch.equal(again.packed.dequantize(), module.packed.dequantize())
    for name, stored in module.state_dict().items():
        assert again.state_dict()[name].dtype == stored.dtype
    assert {b.device.type for b in QuantLinear.from_layout(layout, "meta").buffers()} == {"meta"}


def test_order_puts_the_channels_back():
    module = layer(bias=False)
    order = torch.randperm(K, generator=torch.Generator().manual_seed(3)).int()
    shuffled = QuantLinear(dataclasses.replace(module.packed, order=order), None)
    assert torch.allclose(shuffled(x()), module(x()[..., order]), atol=1e-5)
    assert not torch.allclose(shuffled(x()), module(x()), atol=1e-5)
    assert shuffled.packed.bits_stored == module.packed.bits_stored + 32 * K


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": 9}, "q=9"),
        ({"g": 3}, "g=3"),
        ({"out_features": 0}, "out_features=0"),
        ({"in_features": "40"}, "in_features='40'"),
        ({"alpha_dtype": "int8"}, "alpha_dtype='int8'"),
        ({"alpha_dtype": None}, "alpha_dtype=None"),
        ({"has_order": "no"}, "has_order='no'"),
        ({"bits": 3}, "unknown 'bits'"),
    ],
)
def test_a_damaged_layout_is_explained(change, message):
    with pytest.raises(LutlabError, match=message):
        QuantLinear.from_layout(layer().layout() | change)


def test_an_incomplete_layout_is_explained():
    layout = layer().layout()
    del layout["alpha_dtype"]
    with pytest.raises(LutlabError, match="lacks 'alpha_dtype'"):
        QuantLinear.from_layout(layout)


def test_prints_what_it_is():
    assert repr(layer()) == "QuantLinear(in_features=40, out_features=24, q=3, g=16, bias=True)"
