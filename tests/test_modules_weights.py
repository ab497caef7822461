"""A QuantLinear's weight: stored, made again from its layout, recovered from the kernel's own, replaced, trained."""

import dataclasses
import json

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tests.kernels.checks import refused
from tests.kernels.weights import bcq_tensor, uniform_tensor
from tests.quant_layers import K, assert_multiplies, layer, weight, x

from lutlab.api import quantize_tensor
from lutlab.formats import pack
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


@st.composite
def packed_weights(draw):
    """Binary and uniform codes: q, ragged groups and words, with and without an offset and an order."""
    q, rows, columns = draw(st.integers(1, 8)), draw(st.integers(1, 5)), draw(st.integers(1, 70))
    g, scale = draw(st.sampled_from([-1, 8, 13, 32, 100])), draw(st.sampled_from(["f16", "f32"]))
    how = {"ordered": draw(st.booleans()), "seed": draw(st.integers(0, 99))}
    if draw(st.booleans()):
        kinds = {"zeros": (0, 2**q)}, {"zeros": (-300, 300)}, {"shift": "f16"}, {"shift": "f32"}
        kind = draw(st.sampled_from(kinds))
        tensor = uniform_tensor(rows, columns, q, g, scale=scale, **kind, **how)
        tensor.scale[::2] *= -1
        return pack(tensor)
    offset = draw(st.sampled_from([None, "f16", "f32", "f64"]))
    return pack(bcq_tensor(rows, columns, q, g, alpha=scale, offset=offset, **how))


@example(pack(uniform_tensor(3, 40, 4, 16, zeros=(-300, 300))), None)
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
    def as_bytes(buffers):
        return {name: b.numpy().tobytes() for name, b in buffers.items() if b is not None}

    before, module = as_bytes(packed.buffers), QuantLinear(packed, None)
    module.prepare()
    module(torch.ones(packed.shape[1]))
    module.prepare(rows=2)  # again, of what is held now
    assert list(module.buffers()) == [] or not module._execution.replaces
    again = module.packed
    assert again.layout() == packed.layout()
    assert as_bytes(again.buffers) == before


@pytest.mark.parametrize("replace", [
    lambda module, other: module.load_state_dict(other.state_dict()),
    lambda module, other: module.repack(other.packed),
])  # fmt: skip
def test_another_weight_is_multiplied_by(replace):
    module, other = layer(seed=0), layer(seed=1)
    before = module(x())
    replace(module, other)
    assert torch.equal(module(x()), other(x()))
    assert not torch.equal(module(x()), before)
    replace(module, layer(seed=2))
    assert torch.equal(module.packed.dequantize(), layer(seed=2).packed.dequantize())
    for another in (layer(method="bcq").packed, quantize_tensor(weight(), method="rtn", q=4, g=16)):
        refused("make a QuantLinear of its own of another layout", module.repack, another)


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


@pytest.mark.parametrize("order", [None, torch.arange(K).roll(7).int()])
def test_a_step_of_training_of_alpha_and_offset_is_followed_by_the_kernel(order):
    packed = layer(method="bcq", offset=True, bias=False).packed
    module = QuantLinear(dataclasses.replace(packed, order=order), None)
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
    if order is not None:
        per_weight = per_weight[:, order.long()]
    codes = packed.unpack().codes
    signs = [2.0 * (codes >> b & 1) - 1 for b in range(3)]
    for gradient, sign in zip((*alpha.grad, offset.grad), (*signs, 1), strict=True):
        groups = [part.sum(1) for part in (per_weight * sign).split(16, dim=1)]
        torch.testing.assert_close(gradient, torch.stack(groups, dim=1), atol=1e-6, rtol=1e-4)
    with torch.no_grad():
        stepped = {
            name: (value - 0.5 * value.grad).to(getattr(packed, name).dtype)
            for name, value in (("alpha", alpha), ("offset", offset))
        }
    module.repack(packed.with_buffers(stepped))
    after = module(x())
    assert_multiplies(module, x())
    assert (after - target).square().mean() < (before - target).square().mean()
    assert torch.equal(module.packed.alpha, stepped["alpha"])


@pytest.mark.parametrize(("field", "value", "message"), [
    *((field, value, f"{field}={value!r}") for field, value in (
        ("q", 9), ("g", 3), ("out_features", 0), ("in_features", "40"), ("scale_dtype", "int8"),
        ("scale_dtype", None), ("packed_zeros", 1), ("bias_dtype", "int8"), ("has_order", "no"),
    )),
    ("format", "unifrom", "unknown format 'unifrom': did you mean 'uniform'"),
    ("format", "bcq", "lacks 'alpha_dtype'"),
    ("bits", 3, "unknown 'bits'"),
])  # fmt: skip
def test_a_damaged_layout_is_explained(field, value, message):
    refused(message, QuantLinear.from_layout, layer().layout() | {field: value})


def test_an_incomplete_layout_is_explained():
    for key in layer().layout():
        layout = layer().layout()
        del layout[key]
        refused(f"lacks '{key}'", QuantLinear.from_layout, layout)
