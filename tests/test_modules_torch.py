"""QuantLinear in torch's hands: compiled, converted, moved, differentiated, copied, printed."""

import copy
import io

import pytest
import torch
from tests.quant_layers import (
    METHODS,
    N,
    assert_multiplies,
    layer,
    x,
)
from torch import nn


def test_the_product_is_one_operation_for_torch_compile():
    module = layer(method="bcq")
    module(x())
    graphs = []

    def look(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(module, backend=look, fullgraph=True)
    assert torch.equal(compiled(x()), module(x()))
    assert "packed_linear" in graphs[0].code
    execution = module._execution
    number = execution.number_tensor
    for operation, arguments in (
        (torch.ops.lutlab.packed_linear, (x(), module.bias.data, number, N)),
        (torch.ops.lutlab.packed_dense, (number, *execution.rows.shape)),
    ):
        torch.library.opcheck(
            operation.default, arguments, test_utils=("test_schema", "test_faketensor")
        )


def test_layers_that_are_alike_share_a_compiled_graph():
    layers, graphs = [layer(method="bcq") for _ in range(3)], []

    def look(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda module, x: module(x), backend=look, fullgraph=True)
    for module in layers:
        module(x())
    for module in layers:
        assert torch.equal(compiled(module, x()), module(x()))
    assert len(graphs) == 1


def test_many_rows_and_gradients_are_operations_too():
    module = layer(method="bcq")
    module(x())
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    many = x().repeat(1, 80, 1)
    assert torch.equal(compiled(many), module(many))
    inputs = x().requires_grad_()
    compiled(inputs).sum().backward()
    expected = module.packed.dequantize().sum(0).expand_as(inputs)
    assert torch.allclose(inputs.grad, expected, atol=1e-5)


def test_without_a_kernel_the_product_is_one_operation_too(no_compiler):
    module = layer(method="bcq")
    module(x())
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x()), module(x()))
    torch.library.opcheck(
        torch.ops.lutlab.packed_linear.default,
        (x(), module.bias.data, module._execution.number_tensor, N),
        test_utils=("test_schema", "test_faketensor"),
    )


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
    assert_multiplies(module, x(dtype))


def test_moving_to_another_device_forgets_the_execution():
    module = layer()
    module(x())
    module.to("meta")
    assert module._execution is None
    assert {buffer.device.type for buffer in module.buffers()} == {"meta"}
    assert module(x().to("meta")).device.type == "meta"


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
    module = layer(method="bcq")
    y = module(x())
    copied = again(module)
    assert copied._execution is None
    copied.planes.zero_()
    assert torch.equal(module.packed.dequantize(), layer(method="bcq").packed.dequantize())
    copied = again(module)
    assert torch.equal(copied(x()), y)


def test_prints_what_it_is():
    said = "out_features=24, in_features=40, q=3, g=16, has_order=False"
    assert repr(layer()) == (
        f"QuantLinear(format=uniform, {said}, scale_dtype=float16, packed_zeros=True, bias=True)"
    )
