"""Weights of any scale lose no more than the same weights at scale 1, or are refused; usual ones are left alone."""

from __future__ import annotations

import pytest
import torch
from tests.models.architectures import uniform
from tests.quantizers.weights import assert_same, drawn, prepared
from tests.tiny_models import tiny_opt

from lutlab import modules
from lutlab.base.errors import LutlabError
from lutlab.compress.calibrate import stats_of
from lutlab.compress.driver import quantize_model
from lutlab.formats import dequantize, pack
from lutlab.models.families import linear_layers
from lutlab.quantizers.coefficients import LARGE, SMALL, exponent, quantized
from lutlab.quantizers.contract import make_method

UNIFORM = [("rtn", {}), ("rtn", {"variant": "awq"}), ("gptq", {"act_order": True}), ("awq", {})]
BINARY = [("bcq", {}), ("bcq", {"offset": True}), ("bcq", {"solver": "greedy"}), ("gptq_bcq", {})]
SCALES = (1e-30, 1e-8, 1e6, 1e30)


def at(weight: torch.Tensor, name: str, options: dict, q: float, g: int):
    method = make_method(name, **options)
    hessian = stats_of(drawn(96, weight.shape[1], seed=1)).hessian
    return quantized(method, weight, q, g, *prepared(method, hessian))


def relative_error(weight: torch.Tensor, tensor: object) -> float:
    return float((dequantize(tensor).double() - weight).norm() / weight.double().norm())


@pytest.mark.parametrize(("name", "options"), [*UNIFORM, *BINARY])
@pytest.mark.parametrize(("q", "g"), [(1, -1), (3, 16), (8, 16)])
def test_every_scale_loses_what_scale_1_loses(name, options, q, g):
    weight, x = drawn(8, 40), drawn(2, 40, seed=2)
    usual = at(weight, name, options, q, g)[0]
    for scale in SCALES:
        # a power of two rounds no weight: what is quantized at scale 1 has the very same digits
        exact = weight * 2.0 ** torch.tensor(scale).log2().round().item()
        tensor, widened = at(exact, name, options, q, g)
        loss = relative_error(exact, tensor)
        assert loss == pytest.approx(relative_error(weight, usual), rel=0.01)
        packed = pack(tensor)
        assert widened == (packed.bits_stored > pack(usual).bits_stored)
        assert type(tensor) is type(usual)
        dense = x.double() @ packed.dequantize().double().T
        y = modules.QuantLinear(packed, None)(x).double()
        torch.testing.assert_close(y, dense, rtol=0, atol=1e-5 * dense.abs().max().item())


@pytest.mark.parametrize("scale", [1e-40, *SCALES])
def test_full_precision_keeps_every_weight(scale):
    weight = drawn(4, 16) * scale
    assert_same(dequantize(at(weight, "none", {}, 16, -1)[0]), weight)


@pytest.mark.parametrize("name", ["mixed_2_4_16", "group_widths"])
@pytest.mark.parametrize("scale", SCALES)
def test_groups_of_several_widths_are_refused_where_float16_is_too_narrow(name, scale):
    message = r"float16.*(groups of several widths|rescale the weights)"
    with pytest.raises(LutlabError, match=message):
        at(drawn(16, 32) * scale, name, {}, 2.5, 16)


@pytest.mark.parametrize("scale", [1e-42, 1e-36, 5e37])
@pytest.mark.parametrize("name", ["rtn", "bcq"])
def test_what_float32_cannot_hold_is_refused(name, scale):
    with pytest.raises(LutlabError, match="multiply the weights, whose largest should be between"):
        at(drawn(4, 16) * scale, name, {}, 3, 16)


@pytest.mark.parametrize("name", ["rtn", "bcq", "awq", "none"])
def test_usual_weights_are_quantized_as_they_are(name, caplog):
    weight, method = drawn(6, 32), make_method(name)
    weight[1], weight[:, :16] = 1e-9, weight[:, :16] * 1e-7  # a dead row, and half of all groups
    more = prepared(method, stats_of(drawn(64, 32)).hessian)
    for scale in (1.0, 0.01, 2.0**-10, 1e4):
        tensor, widened = quantized(method, weight * scale, 3, 16, *more)
        assert not widened
        assert_same(vars(tensor), vars(method.quantize(weight * scale, 3, 16, *more)))
    assert not caplog.records


def test_the_edges_need_no_second_try():
    ones = torch.ones(2, 8)
    assert exponent(ones * SMALL) == exponent(ones * LARGE) == exponent(0 * ones) == 0
    assert exponent(ones * SMALL * 0.99) == -8
    assert exponent(ones * LARGE * 1.01) == 16


@pytest.mark.parametrize("name", ["rtn", "awq"])
def test_a_model_says_which_layers_were_widened(name, caplog):
    usual, tiny = tiny_opt().eval(), tiny_opt().eval()
    layer = "model.decoder.layers.1.self_attn.q_proj"  # whose inputs are the same in both
    later = {path: module for path, module in linear_layers(tiny) if "layers.1" in path}
    with torch.no_grad():
        for module in later.values():  # AWQ scales layers that share an input together
            module.weight.mul_(2.0**-30)
    windows = torch.randint(0, 260, (4, 16), generator=torch.Generator().manual_seed(0))
    before, after = (
        {s.name: s for s in quantize_model(m, make_method(name), uniform(m, 4, 16), windows)}
        for m in (usual, tiny)
    )
    assert [stats.name for stats in after.values() if stats.widened] == list(later)
    assert not any(stats.widened for stats in before.values())
    assert f"{layer}: weights of at most" in caplog.text
    for error, norm in (("squared_error", "squared_norm"), ("output_error", "output_norm")):
        small, large = (getattr(s[layer], error) / getattr(s[layer], norm) for s in (after, before))
        assert small == pytest.approx(large, rel=0.1)
    assert after[layer].bits_stored > before[layer].bits_stored
