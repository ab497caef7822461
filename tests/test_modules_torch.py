"""QuantLinear in torch's hands: compiled, converted, moved, differentiated, copied, printed."""

import copy
import io

import pytest
import torch
from tests.kernels.checks import check_operation, compiled, one_operation
from tests.quant_layers import METHODS, N, assert_multiplies, layer, x
from torch import nn


@pytest.mark.parametrize("kernel", [True, False])
def test_the_product_is_one_operation_for_torch_compile(kernel, request):
    if not kernel:
        request.getfixturevalue("no_compiler")
    module, operations = layer(method="bcq"), torch.ops.lutlab
    module(x())
    number = module._execution.number_tensor
    arguments = (x(), module.bias.data, number, N)
    one_operation(module, x(), operations.packed_linear.default, *arguments)
    if kernel:
        check_operation(operations.packed_dense.default, number, *module._execution.rows.shape)


def test_layers_that_are_alike_share_a_compiled_graph():
    layers = [layer(method="bcq") for _ in range(3)]
    multiply, graphs = compiled(lambda module, x: module(x))
    for module in layers:
        module(x())
    for module in layers:
        assert torch.equal(multiply(module, x()), module(x()))
    assert len(graphs) == 1


def assert_passes_gradients(module, multiply):
    inputs = x().requires_grad_()
    multiply(inputs).sum().backward()
    expected = module.packed.dequantize().sum(0).expand_as(inputs)
    torch.testing.assert_close(inputs.grad, expected, rtol=1e-5, atol=1e-5)


def test_many_rows_and_gradients_are_operations_too():
    module, many = layer(method="bcq"), x().repeat(1, 80, 1)
    module(x())
    multiply, _ = compiled(module)
    assert torch.equal(multiply(many), module(many))
    assert_passes_gradients(module, multiply)


@pytest.mark.parametrize("options", METHODS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_conversion_of_the_model_keeps_the_scales(dtype, options):
    """A model is turned to half precision around the layer; its scales must not be rounded with it."""
    module = layer(**options)
    before = module.packed.dequantize()
    dtypes = {name: buffer.dtype for name, buffer in module.named_buffers()}
    module(x())
    nn.Sequential(module, nn.Linear(N, 2)).to(dtype)
    assert {name: buffer.dtype for name, buffer in module.named_buffers()} == dtypes
    assert torch.equal(module.packed.dequantize(), before)
    assert module.bias.dtype == dtype
    assert_multiplies(module, x(dtype))


def test_moving_to_another_device_forgets_the_execution():
    module = layer()
    module(x())
    module.to("meta")
    assert module._execution is None
    assert {buffer.device.type for buffer in module.buffers()} == {"meta"}
    assert module(x().to("meta")).device.type == "meta"


@pytest.mark.parametrize("used", [False, True])
def test_needs_no_gradient_but_passes_it_on(used):
    module = layer()
    assert not any(parameter.requires_grad for parameter in module.parameters())
    with torch.inference_mode():
        _ = used and module(x())
    assert_passes_gradients(module, module)


def pickled(module):
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize("again", [copy.deepcopy, pickled])
def test_copies_are_equal_and_carry_no_dense_weight(again):
    module = layer(method="bcq")
    y = module(x())
    copied = again(module)
    assert copied._execution is None
    copied.planes.zero_()
    assert torch.equal(module.packed.dequantize(), layer(method="bcq").packed.dequantize())
    assert torch.equal(again(module)(x()), y)


def test_prints_what_it_is():
    sizes = "out_features=24, in_features=40, q=3, g=16, has_order=False"
    layout = f"format=uniform, {sizes}, scale_dtype=float16, packed_zeros=True, bias=True"
    assert repr(layer()) == f"QuantLinear({layout})"
