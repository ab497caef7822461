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

from lutlab import modules
from lutlab.api import quantize_tensor
from lutlab.errors import LutlabError
from lutlab.formats.bcq import pack
from lutlab.kernels.codegen.isa import detect
from lutlab.kernels.cpu import linear
from lutlab.modules import QuantLinear
from lutlab.tensors import BCQTensor

N, K = 24, 40
METHODS = [{"method": "rtn"}, {"method": "bcq"}, {"method": "bcq", "offset": True}]


def weight(seed=0):
    return torch.randn(N, K, generator=torch.Generator().manual_seed(seed))


def layer(bias=True, seed=0, **options):
    packed = quantize_tensor(weight(seed), q=3, g=16, **options or METHODS[0])
    return QuantLinear(packed, torch.linspace(-1, 1, N) if bias else None)


def x(dtype=torch.float32):
    return torch.randn(2, 5, K, generator=torch.Generator().manual_seed(7)).to(dtype)


# Relative L2 error of outputs: float32 sums, or the rounding of the output (and in the torch path of the weight).
LIMIT = {torch.float64: 1e-7, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def assert_multiplies(module, inputs):
    y = module(inputs)
    bias = None if module.bias is None else module.bias.double()
    exact = functional.linear(inputs.double(), module.packed.dequantize().double(), bias)
    assert y.dtype == inputs.dtype
    assert y.shape == exact.shape
    assert (y - exact).norm() <= LIMIT[inputs.dtype] * exact.norm()


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("LUTLAB_CC", str(tmp_path / "none"))
    linear._kernel.cache_clear()
    yield
    linear._kernel.cache_clear()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("options", METHODS)
def test_forward_multiplies_with_the_dequantized_weight(options, bias):
    module = layer(bias, **options)
    assert_multiplies(module, x())
    assert torch.equal(module(x()), module(x()))
    assert module(x()[0, 0]).shape == (N,)
    assert module._dense is None, "a kernel needs no dense weight"


def test_many_rows_are_multiplied_by_torch_and_nothing_dense_is_kept():
    module = layer()
    many = x().repeat(1, 80, 1)
    for dtype in (torch.float32, torch.bfloat16):
        module.to(dtype)
        weight = module.packed.dequantize().to(dtype)
        expected = functional.linear(many.to(dtype), weight, module.bias)
        assert torch.equal(module(many.to(dtype)), expected)
    assert module._dense is None
    assert module.kernel.startswith("dequantize every call (bcq lut")


def test_the_kernel_is_named_with_instruction_set_and_threads():
    module = layer(method="bcq")
    assert module.kernel == "nothing yet"
    module(x())
    assert module.kernel == f"bcq lut, {detect().name}, {torch.get_num_threads()} threads"
    wide = QuantLinear(quantize_tensor(weight(), q=4, g=16, method="rtn"), None)
    wide(x())
    assert wide.kernel.startswith("uniform convert, ")


def test_without_a_compiler_torch_multiplies_and_says_so(no_compiler, caplog):
    modules._say_once.cache_clear()
    module = layer()
    assert_multiplies(module, x())
    assert module.kernel.startswith("dequantize once, torch matmul (no kernel: LUTLAB_CC=")
    layer()(x())
    assert [r.levelname for r in caplog.records] == ["WARNING"], "said once"


def test_a_group_size_without_a_kernel_is_named():
    module = QuantLinear(quantize_tensor(weight(), q=3, g=13, method="bcq"), None)
    assert_multiplies(module, x())
    assert "13" in module.kernel


def test_forward_follows_the_dtype_of_its_input():
    module = layer(bias=False)
    for dtype in LIMIT:
        assert_multiplies(module, x(dtype))


def test_the_product_is_one_operation_for_torch_compile():
    module = layer(method="bcq")
    module(x())
    graphs = []

    def look(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(module, backend=look, fullgraph=True)
    assert torch.equal(compiled(x()), module(x()))
    assert "rows_gemv" in graphs[0].code
    torch.library.opcheck(
        torch.ops.lutlab.rows_gemv.default,
        (x(), module._linear.packed.stream, module._linear.packed.channels, module._linear.layout),
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
    assert copied._dense is copied._linear is None
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
