"""QuantLinear: y = x W^T + b with the packed weight, whatever is done to the module around it."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn import functional

from lutlab.api import quantize_tensor
from lutlab.modules import QuantLinear

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


def test_prints_what_it_is():
    assert repr(layer()) == "QuantLinear(in_features=40, out_features=24, q=3, g=16, bias=True)"
