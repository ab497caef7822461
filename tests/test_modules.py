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
from lutlab.formats.bcq import PackedBCQ, pack
from lutlab.formats.uniform import PackedUniform
from lutlab.kernels import ran
from lutlab.kernels.codegen.isa import detect
from lutlab.kernels.cpu import rows_ops
from lutlab.modules import QuantLinear
from lutlab.tensors import BCQTensor, UniformTensor

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
    rows_ops.kernel_of.cache_clear()
    yield
    rows_ops.kernel_of.cache_clear()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("options", METHODS)
def test_forward_multiplies_with_the_dequantized_weight(options, bias):
    module = layer(bias, **options)
    assert_multiplies(module, x())
    assert torch.equal(module(x()), module(x()))
    assert module(x()[0, 0]).shape == (N,)
    assert module._execution.replaces, "a kernel needs no other weight"
    assert module.prepare(8) is module._execution, "and is ready for any rows"


def test_many_rows_are_multiplied_by_torch_and_nothing_dense_is_kept():
    module = layer()
    many = x().repeat(1, 80, 1)
    for dtype in (torch.float32, torch.bfloat16):
        module.to(dtype)
        weight = module.packed.dequantize().to(dtype)
        expected = functional.linear(many.to(dtype), weight, module.bias)
        assert torch.equal(module(many.to(dtype)), expected)
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


def test_a_group_size_without_a_kernel_is_named():
    module = QuantLinear(quantize_tensor(weight(), q=3, g=13, method="bcq"), None)
    assert_multiplies(module, x())
    assert "bcq_gemv: g=13 is not a group size" in module.describe(1, torch.float32)


def test_forward_follows_the_dtype_of_its_input():
    module = layer(bias=False)
    for dtype in LIMIT:
        assert_multiplies(module, x(dtype))


@pytest.mark.parametrize("prepared", [True, False])
def test_what_is_no_x_is_refused(prepared):
    """Integers were multiplied by weights cut off to integers, where the layer was called for the first time."""
    used = layer()
    if prepared:
        used(x())
    for wrong, message in (
        (x().long(), "x is torch.int64: expected float16"),
        (x().to(torch.complex64), "x is torch.complex64"),
        (x().to(torch.float8_e4m3fn), "x is torch.float8_e4m3fn"),
        (x().to_sparse(), "layout torch.sparse_coo: expected a dense tensor"),
        (x()[..., 1:], rf"expected \[\.\.\., K\] with K = {K}"),
        (x().sum(), r"x has shape \(\)"),
        (x().numpy(), "x is ndarray: expected a tensor"),
    ):
        with pytest.raises(LutlabError, match=message):
            used(wrong)
    assert used(x().to("meta")).shape == used(x()).shape
    with pytest.raises(LutlabError, match="meta device"):
        layer().to("meta")(x())


@pytest.mark.parametrize("rows", [1, 800])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_bias_of_another_dtype_is_added_in_that_of_x(dtype, rows):
    y = layer(bias=True)(torch.ones(rows, K, dtype=dtype))
    assert y.dtype == dtype
    expected = layer(bias=False)(torch.ones(rows, K, dtype=dtype)) + layer().bias.to(dtype)
    torch.testing.assert_close(y, expected, rtol=1e-2, atol=1e-2)


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
    execution = module._execution
    weight = (execution.rows.stream, execution.channels, execution.layout)
    for operation, arguments in (
        (torch.ops.lutlab.rows_gemv, (x(), module.bias.data, *weight)),
        (torch.ops.lutlab.rows_dense, weight),
    ):
        torch.library.opcheck(
            operation.default, arguments, test_utils=("test_schema", "test_faketensor")
        )


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
        torch.ops.lutlab.dense_linear.default,
        (x(), module._execution.weight, module.bias.data, "torch"),
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


@pytest.mark.gpu
def test_cuda():
    module = layer()
    on_cpu = module(x())
    module.cuda()
    assert torch.allclose(module(x().cuda()).cpu(), on_cpu, atol=1e-5)


def test_state_dict_holds_the_packed_weight_and_nothing_else():
    for module, names in (
        (layer(method="bcq", offset=True), {"planes", "alpha", "offset", "bias"}),
        (layer(bias=False, method="bcq"), {"planes", "alpha"}),
        (layer(), {"qweight", "scale", "qzero", "bias"}),
    ):
        before = module.state_dict()
        assert set(before) == names
        module(x())
        after = module.state_dict()
        assert list(after) == list(before)
        assert all(torch.equal(after[name], before[name]) for name in names)


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
    module = layer(method="bcq")
    y = module(x())
    copied = again(module)
    assert copied._execution is None
    copied.planes.zero_()
    assert torch.equal(module.packed.dequantize(), layer(method="bcq").packed.dequantize())
    copied = again(module)
    assert torch.equal(copied(x()), y)


@st.composite
def packed_weights(draw):
    """Binary and uniform codes: q, ragged groups and words, with and without an offset and an order."""
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
    if draw(st.booleans()):
        low, high = draw(st.sampled_from([(0, 2**q), (-300, 300)]))
        zero = torch.randint(low, high, (rows, groups), generator=generator).to(torch.int16)
        return PackedUniform.pack(UniformTensor(codes, alpha[0], zero, q, g, order))
    return pack(BCQTensor(codes, alpha, offset, q, g, order))


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


@settings(deadline=None, max_examples=60)
@given(packed_weights())
def test_the_stored_weight_is_recovered_from_the_kernels_own_bit_for_bit(packed):
    before = {name: None if b is None else b.clone() for name, b in packed.buffers.items()}
    module = QuantLinear(packed, None)
    module.prepare()
    module(torch.ones(packed.shape[1]))
    assert list(module.buffers()) == [] or not module._execution.replaces
    again = module.packed
    assert again.layout() == packed.layout()
    for name, buffer in again.buffers.items():
        assert (buffer is None) == (before[name] is None), name
        if buffer is not None:
            kind = (
                torch.int64
                if buffer.itemsize == 8
                else torch.int32
                if buffer.itemsize == 4
                else torch.int16
            )
            assert torch.equal(buffer.view(kind), before[name].view(kind)), name


def test_order_puts_the_channels_back():
    module = layer(bias=False)
    order = torch.randperm(K, generator=torch.Generator().manual_seed(3)).int()
    shuffled = QuantLinear(dataclasses.replace(module.packed, order=order), None)
    assert torch.allclose(shuffled(x()), module(x()[..., order]), atol=1e-5)
    assert not torch.allclose(shuffled(x()), module(x()), atol=1e-5)
    assert shuffled.packed.bits_stored == module.packed.bits_stored + 32 * K


# ---- another weight in the place of the stored one ----


def test_another_weight_is_multiplied_by():
    module, other = layer(seed=0), layer(seed=1)
    module(x())
    module.repack(other.packed)
    assert torch.equal(module(x()), other(x()))
    other(x())
    module.repack(layer(seed=2).packed)
    assert torch.equal(module.packed.dequantize(), layer(seed=2).packed.dequantize())
    with pytest.raises(LutlabError, match="make a QuantLinear of its own of another layout"):
        module.repack(layer(method="bcq").packed)
    with pytest.raises(LutlabError, match="make a QuantLinear"):
        module.repack(quantize_tensor(weight(), method="rtn", q=4, g=16))


@pytest.mark.parametrize("called", [False, True])
def test_an_assigned_buffer_is_the_weights(called):
    module = layer(method="bcq", offset=True)
    if called:
        module(x())
    packed = module.packed
    module.alpha = 2 * packed.alpha
    assert torch.equal(module.packed.alpha, 2 * packed.alpha)
    assert torch.equal(module.packed.offset, packed.offset)
    assert_multiplies(module, x())


@pytest.mark.parametrize("order", [False, True])
def test_a_step_of_training_of_alpha_and_offset_is_followed_by_the_kernel(order):
    module = layer(method="bcq", offset=True, bias=False)
    if order:
        channels = torch.randperm(K, generator=torch.Generator().manual_seed(3)).int()
        module = QuantLinear(dataclasses.replace(module.packed, order=channels), None)
    before = module(x())
    packed = module.packed
    alpha, offset = (t.float().requires_grad_() for t in (packed.alpha, packed.offset))
    dense = packed.with_buffers({"alpha": alpha, "offset": offset}).dequantize()
    target = x() @ weight().T
    loss = (x() @ dense.T - target).square().mean()
    loss.backward()
    # dL/dW, summed by group with the sign of each plane, is what alpha's gradient has to be.
    upstream = (2 * (x() @ dense.detach().T - target) / target.numel()).flatten(0, 1)
    per_weight = upstream.T @ x().flatten(0, 1)
    if order:
        per_weight = per_weight[:, channels.long()]
    codes = packed.unpack().codes
    for b in range(3):
        signed = per_weight * (2.0 * (codes >> b & 1) - 1)
        groups = torch.stack([part.sum(1) for part in signed.split(16, dim=1)], dim=1)
        torch.testing.assert_close(alpha.grad[b], groups, atol=1e-6, rtol=1e-4)
    groups = torch.stack([part.sum(1) for part in per_weight.split(16, dim=1)], dim=1)
    torch.testing.assert_close(offset.grad, groups, atol=1e-6, rtol=1e-4)
    with torch.no_grad():
        stepped = {
            name: (value - 0.5 * value.grad).to(getattr(packed, name).dtype)
            for name, value in (("alpha", alpha), ("offset", offset))
        }
    module.repack(packed.with_buffers(stepped))
    after = module(x())
    assert_multiplies(module, x())
    assert (after - target).square().mean() < (before - target).square().mean()
    assert isinstance(module.packed, PackedBCQ)
    assert torch.equal(module.packed.alpha, stepped["alpha"])


# ---- layouts ----


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": 9}, "q=9"),
        ({"g": 3}, "g=3"),
        ({"out_features": 0}, "out_features=0"),
        ({"in_features": "40"}, "in_features='40'"),
        ({"scale_dtype": "int8"}, "scale_dtype='int8'"),
        ({"scale_dtype": None}, "scale_dtype=None"),
        ({"packed_zeros": 1}, "packed_zeros=1"),
        ({"bias_dtype": "int8"}, "bias_dtype='int8'"),
        ({"format": "unifrom"}, "unknown format 'unifrom': did you mean 'uniform'"),
        ({"format": "bcq"}, "lacks 'alpha_dtype'"),
        ({"has_order": "no"}, "has_order='no'"),
        ({"bits": 3}, "unknown 'bits'"),
    ],
)
def test_a_damaged_layout_is_explained(change, message):
    with pytest.raises(LutlabError, match=message):
        QuantLinear.from_layout(layer().layout() | change)


def test_an_incomplete_layout_is_explained():
    for key in layer().layout():
        layout = layer().layout()
        del layout[key]
        with pytest.raises(LutlabError, match=f"lacks '{key}'"):
            QuantLinear.from_layout(layout)


def test_prints_what_it_is():
    said = "out_features=24, in_features=40, q=3, g=16, has_order=False"
    assert repr(layer()) == (
        f"QuantLinear(format=uniform, {said}, scale_dtype=float16, packed_zeros=True, bias=True)"
    )
