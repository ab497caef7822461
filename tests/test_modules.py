"""QuantLinear: y = x W^T + b with the packed weight, by the kernel that it names."""

import dataclasses

import pytest
import torch
from tests.kernels.checks import refused
from tests.quant_layers import LIMIT, METHODS, K, N, assert_multiplies, layer, weight, x
from torch.nn import functional

from lutlab import modules
from lutlab.api import quantize_tensor
from lutlab.kernels import ran
from lutlab.kernels.codegen.isa import detect
from lutlab.modules import QuantLinear


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("options", METHODS)
def test_forward_multiplies_with_the_dequantized_weight(options, bias):
    module = layer(bias, **options)
    for dtype in LIMIT:
        assert_multiplies(module, x(dtype))
    assert torch.equal(module(x()), module(x()))
    assert module(x()[0, 0]).shape == (N,)
    assert module._execution.replaces, "a kernel needs no other weight"
    assert module.prepare(8) is module._execution, "and is ready for any rows"


def test_many_rows_are_multiplied_by_torch_and_nothing_dense_is_kept():
    module, many = layer(), x().repeat(1, 80, 1)
    for dtype in LIMIT:
        assert_multiplies(module, many.to(dtype))  # the bias has another
    for dtype in (torch.float32, torch.bfloat16):
        module.to(dtype)
        operands = many.to(dtype), module.packed.dequantize().to(dtype), module.bias
        assert torch.equal(module(operands[0]), functional.linear(*operands))
    assert module._execution.replaces
    assert module.describe(800, torch.float32).startswith("dequantize every call (bcq lut")


def test_the_kernel_is_named_with_instruction_set_and_threads():
    module = layer(method="bcq")
    ran.take()
    assert module.describe(10, torch.float32).startswith("bcq lut, ")
    assert ran.take() == [], "nothing has run yet"
    module(x())
    name = f"bcq lut, {detect().name}, {torch.get_num_threads()} threads"
    assert ran.take() == [name] == [module.describe(10, torch.float32)]
    wide = QuantLinear(quantize_tensor(weight(), q=4, g=16, method="rtn"), None)
    wide(x())
    wide(x().repeat(1, 80, 1))
    many, few = ran.take()
    assert few.startswith(("uniform convert, ", "uniform int24, avx2"))
    assert many == f"dequantize every call ({few}), torch matmul"
    assert ran.take() == []


def test_without_a_compiler_torch_multiplies_and_says_so(no_compiler, caplog):
    modules._say_once.cache_clear()
    module = layer(method="bcq")
    ran.take()
    assert_multiplies(module, x())
    (name,) = ran.take()
    assert name == module.describe(1, torch.float32)
    assert name.startswith("dequantize once, torch matmul (no kernel: bcq_gemv: LUTLAB_CC=")
    layer(method="bcq")(x())
    assert [r.levelname for r in caplog.records] == ["WARNING"], "said once"
    for dtype in LIMIT:
        assert_multiplies(module.to(dtype), x(dtype))


@pytest.mark.parametrize("prepared", [True, False])
@pytest.mark.parametrize(("wrong", "message"), [
    (lambda x: x.long(), "x is torch.int64: expected float16"),
    (lambda x: x.to(torch.complex64), "x is torch.complex64"),
    (lambda x: x.to(torch.float8_e4m3fn), "x is torch.float8_e4m3fn"),
    (lambda x: x.to_sparse(), "layout torch.sparse_coo: expected a dense tensor"),
    (lambda x: x[..., 1:], rf"expected \[\.\.\., K\] with K = {K}"),
    (lambda x: x.sum(), r"x has shape \(\)"),
    (lambda x: x.numpy(), "x is ndarray: expected a tensor"),
])  # fmt: skip
def test_what_is_no_x_is_refused(wrong, message, prepared):
    """Integers were multiplied by weights cut off to integers, where the layer was called for the first time."""
    used = layer()
    if prepared:
        used(x())
    refused(message, used, wrong(x()))


def test_on_meta_there_are_shapes_only():
    used = layer()
    for _ in range(2):  # not called before, and called
        assert used(x().to("meta")).shape == used(x()).shape
    refused("meta device", layer().to("meta"), x())


def test_order_puts_the_channels_back():
    module = layer(bias=False)
    order = torch.randperm(K, generator=torch.Generator().manual_seed(3)).int()
    shuffled = QuantLinear(dataclasses.replace(module.packed, order=order), None)
    assert torch.allclose(shuffled(x()), module(x()[..., order]), atol=1e-5)
    assert not torch.allclose(shuffled(x()), module(x()), atol=1e-5)
    assert shuffled.packed.bits_stored == module.packed.bits_stored + 32 * K


@pytest.mark.gpu
def test_cuda():
    on_gpu = layer().cuda()(x().cuda())
    torch.testing.assert_close(on_gpu.cpu(), layer()(x()), rtol=1e-5, atol=1e-5)
