"""A QuantLinear's weight: stored, made again from its layout, recovered from the kernel's own, replaced, trained."""

import dataclasses
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.quant_layers import (
    K,
    assert_multiplies,
    layer,
    weight,
    x,
)

from lutlab.api import quantize_tensor
from lutlab.base.errors import LutlabError
from lutlab.base.tensors import BCQTensor, UniformTensor
from lutlab.formats.bcq import PackedBCQ, pack
from lutlab.formats.uniform import PackedUniform
from lutlab.modules import QuantLinear


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
    if offset_dtype in (torch.float16, torch.float32) and draw(st.booleans()):
        return PackedUniform.pack(UniformTensor(codes, alpha[0], None, q, g, order, offset))
    if draw(st.booleans()):
        low, high = draw(st.sampled_from([(0, 2**q), (-300, 300)]))
        zero = torch.randint(low, high, (rows, groups), generator=generator).to(torch.int16)
        return PackedUniform.pack(UniformTensor(codes, alpha[0], zero, q, g, order))
    return pack(BCQTensor(codes, alpha, offset, q, g, order))


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


@given(packed_weights())
def test_the_stored_weight_is_recovered_from_the_kernels_own_bit_for_bit(packed):
    before = {name: None if b is None else b.clone() for name, b in packed.buffers.items()}
    module = QuantLinear(packed, None)
    module.prepare()
    module(torch.ones(packed.shape[1]))
    module.prepare(rows=2)  # again, of what is held now
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
