"""AWQ against the repository's two searches, written out naively over tokens, and what must hold of any search."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.quantizers.test_rtn import awq_quantizer

from lutlab import formats
from lutlab.base.errors import LutlabError
from lutlab.base.tensors import CalibStats
from lutlab.compress.calibrate import stats_of
from lutlab.quantizers.awq import AWQ, channel_scales, group_errors, output_error
from lutlab.quantizers.rtn import RTN


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def activations(tokens, in_features, seed=0):
    """[M, K] whose channels differ a hundredfold in size, as those of language models do."""
    mix = random(in_features, in_features, seed=seed + 1) / in_features**0.5
    size = torch.logspace(-1, 1, in_features)[
        torch.randperm(in_features, generator=torch.Generator().manual_seed(seed))
    ]
    return random(tokens, in_features, seed=seed) @ (torch.eye(in_features) + mix) * size


def naive_rounded(weight, q, g):
    length = weight.shape[1] if g == -1 else g
    pieces = [torch.cat([awq_quantizer(piece, q) for piece in row.split(length)]) for row in weight]
    return torch.stack(pieces)


def naive_scale_errors(weights, widths, x):
    """auto_scale_block with the layers' own outputs: [(scale, error)] of the 20 exponents, over every token."""
    found = []
    size = x.abs().mean(0)
    for step in range(20):
        scale = size.pow(step / 20).clamp(min=1e-4)
        scale = scale / (scale.max() * scale.min()).sqrt()
        error = 0.0
        for weight, (q, g) in zip(weights, widths, strict=True):
            hat = naive_rounded(weight * scale, q, g) / scale
            error += (x.double() @ (hat - weight).double().T).square().sum(1).mean().item()
        found.append((scale, error))
    return found


def naive_clipped(weight, q, x):
    """auto_clip_layer for one group of one row: the limited weights, and by how much the best beats the second best."""
    largest = weight.abs().max()
    found = []
    for step in range(10):
        limit = largest * (1 - step / 20)
        limited = weight.clamp(-limit, limit)
        error = (x.double() @ (awq_quantizer(limited, q) - weight).double()).square().mean().item()
        found.append((error, limited))
    errors = [error for error, _ in found]
    return found[errors.index(min(errors))][1], sorted(errors)


def weighted_error(weight, tensor, stats):
    return output_error(formats.dequantize(tensor) - weight, stats.hessian)


@settings(max_examples=12)
@given(
    widths=st.lists(
        st.tuples(st.integers(1, 8), st.sampled_from([-1, 8, 11])), min_size=1, max_size=2
    ),
    in_features=st.integers(1, 30),
    seed=st.integers(0, 1000),
)
def test_scales_are_those_of_the_naive_search(widths, in_features, seed):
    x = activations(60, in_features, seed)
    weights = [random(2 + i, in_features, seed=seed + i) for i in range(len(widths))]
    scale = AWQ(scale_dtype="fp32").scales(weights, widths, stats_of(x))
    tried = naive_scale_errors(weights, widths, x)
    least = min(error for _, error in tried)
    chosen = [error for naive, error in tried if torch.allclose(naive, scale, rtol=1e-5)]
    assert chosen, "not one of the exponents tried"
    assert min(chosen) <= least * (1 + 1e-4) + 1e-12, "another exponent has less error"


def test_large_channels_are_scaled_up_and_the_error_falls():
    x, weight = activations(300, 64), random(24, 64)
    stats = stats_of(x)
    scale = AWQ().scales([weight], [(3, 32)], stats)
    assert torch.corrcoef(torch.stack([scale.log(), x.abs().mean(0).log()]))[0, 1] > 0.99
    scaled = formats.dequantize(RTN("awq").quantize(weight * scale, 3, 32)) / scale
    plain = weighted_error(weight, RTN("awq").quantize(weight, 3, 32), stats)
    assert output_error(scaled - weight, stats.hessian) < 0.8 * plain


@settings(max_examples=15)
@given(q=st.integers(1, 8), g=st.sampled_from([-1, 8, 13]), seed=st.integers(0, 1000))
def test_scales_never_raise_the_error(q, g, seed):
    stats, weight = stats_of(activations(50, 30, seed)), random(5, 30, seed=seed)
    scale = AWQ().scales([weight], [(q, g)], stats)
    assert (scale > 0).all()
    assert scale.dtype == torch.float32
    scaled = formats.dequantize(RTN("awq").quantize(weight * scale, q, g)) / scale
    plain = weighted_error(weight, RTN("awq").quantize(weight, q, g), stats)
    assert output_error(scaled - weight, stats.hessian) <= plain * (1 + 1e-5)


def test_one_exponent_is_no_scale():
    stats = stats_of(activations(50, 16))
    assert torch.equal(AWQ(grid=1).scales([random(4, 16)], [(3, 8)], stats), torch.ones(16))
    assert torch.equal(channel_scales(stats.mean_abs, 0.0), torch.ones(16))


@pytest.mark.parametrize("exponent", [0.05, 0.5, 0.95])
def test_largest_and_smallest_scale_are_each_others_inverse(exponent):
    size = random(40).abs()
    scale = channel_scales(size, exponent)
    assert scale.max().item() * scale.min().item() == pytest.approx(1, rel=1e-5)
    assert torch.equal(scale.argsort(), size.argsort())


def test_layers_in_full_precision_have_no_say():
    stats, quantized, kept = (
        stats_of(activations(50, 32)),
        random(4, 32),
        100 * random(6, 32, seed=1),
    )
    alone = AWQ().scales([quantized], [(3, 16)], stats)
    assert torch.equal(AWQ().scales([kept, quantized], [None, (3, 16)], stats), alone)
    assert torch.equal(AWQ().scales([kept], [None], stats), torch.ones(32))


def test_layers_with_widths_of_their_own_are_searched_with_them():
    """The layer of 2 bits decides: 8 bits leave next to no error."""
    stats, coarse, fine = stats_of(activations(80, 48)), random(4, 48), random(4, 48, seed=1)
    both = AWQ().scales([fine, coarse], [(8, -1), (2, 16)], stats)
    assert torch.equal(both, AWQ().scales([coarse], [(2, 16)], stats))
    assert not torch.equal(both, AWQ().scales([fine], [(2, -1)], stats))


@given(
    q=st.integers(1, 8),
    g=st.sampled_from([-1, 8, 11]),
    in_features=st.integers(1, 40),
    seed=st.integers(0, 1000),
)
def test_clipping_is_that_of_the_naive_search(q, g, in_features, seed):
    x, weight = activations(40, in_features, seed), random(3, in_features, seed=seed)
    method = AWQ(scale_dtype="fp32")
    tensor = method.quantize(weight, q, g, method.prepare(stats_of(x)))
    out = formats.dequantize(tensor)
    length = in_features if g == -1 else g
    for start in range(0, in_features, length):
        at = slice(start, start + length)
        for row in range(3):
            naive, errors = naive_clipped(weight[row, at], q, x[:, at])
            if errors[1] > errors[0] * (1 + 1e-3):  # else float32 may prefer another limit
                assert torch.equal(out[row, at], awq_quantizer(naive, q))
            error = (x[:, at].double() @ (out[row, at] - weight[row, at]).double()).square().mean()
            assert error.item() <= errors[0] * (1 + 1e-3) + 1e-12


@pytest.mark.parametrize(("q", "g"), [(1, 8), (2, -1), (2, 32), (3, 24), (4, 8), (8, 32)])
def test_clipping_raises_the_error_of_no_group(q, g):
    stats, weight = stats_of(activations(200, 50)), random(20, 50)
    before = formats.dequantize(AWQ(clip=False).quantize(weight, q, g, stats)) - weight
    after = formats.dequantize(AWQ().quantize(weight, q, g, stats)) - weight
    least, most = (group_errors(rows, stats.hessian, g) for rows in (after, before))
    assert (least <= most * (1 + 1e-5)).all()
    assert q == 8 or least.sum() < 0.98 * most.sum()


@pytest.mark.parametrize("g", [-1, 8, 24])
def test_without_clipping_it_is_round_to_nearest(g):
    weight = random(5, 45)
    tensor = AWQ(clip=False).quantize(weight, 3, g, stats_of(activations(50, 45)))
    expected = RTN("awq").quantize(weight, 3, g)
    for field in ("codes", "scale", "zero_point"):
        assert torch.equal(getattr(tensor, field), getattr(expected, field))


def test_an_outlier_is_clipped_where_inputs_do_not_need_it():
    """One weight of 10 among many below 1, on a channel that is nearly silent: down to 0.55 of it, no further."""
    x, weight = random(400, 32), random(1, 32).clamp(-1, 1)
    weight[0, 5], x[:, 5] = 10.0, x[:, 5] * 1e-3
    out = formats.dequantize(AWQ().quantize(weight, 3, -1, stats_of(x)))
    assert out[0, 5].item() == pytest.approx(10 * 0.55, rel=0.1)
    x[:, 5] *= 1e6
    out = formats.dequantize(AWQ().quantize(weight, 3, -1, stats_of(x)))
    assert out[0, 5].item() == pytest.approx(10, rel=0.1)


def test_group_errors_are_those_of_outputs_from_that_group_alone():
    x, rows = activations(90, 29), random(4, 29, seed=7)
    found = group_errors(rows, stats_of(x).hessian, 8)
    for group, at in enumerate([slice(0, 8), slice(8, 16), slice(16, 24), slice(24, 29)]):
        expected = (x[:, at] @ rows[:, at].T).square().mean(0)
        assert torch.allclose(found[:, group], expected, rtol=1e-4)


def test_output_error_is_the_mean_over_tokens():
    x, rows = activations(90, 29), random(4, 29, seed=7)
    expected = (x @ rows.T).square().sum(1).mean().item()
    assert output_error(rows, stats_of(x).hessian) == pytest.approx(expected, rel=1e-5)


def test_inputs_that_are_all_zero_change_nothing():
    stats, weight = stats_of(torch.zeros(5, 16)), random(3, 16)
    assert torch.allclose(AWQ().scales([weight], [(3, 8)], stats), torch.ones(16))
    expected = RTN("awq").quantize(weight, 3, 8)
    assert torch.equal(AWQ().quantize(weight, 3, 8, stats).codes, expected.codes)


@pytest.mark.parametrize("scale_dtype", ["fp16", "fp32"])
def test_becomes_binary_codes_bit_for_bit(scale_dtype):
    """LUT-GEMM Eq. 5: packed, the weights are the float32 nearest to scale * (codes - zero_point)."""
    weight = random(8, 70)
    tensor = AWQ(scale_dtype=scale_dtype).quantize(weight, 3, 16, stats_of(activations(90, 70)))
    group = torch.arange(70) // 16
    scale, zero = tensor.scale.double()[:, group], tensor.zero_point.double()[:, group]
    exact = (scale * (tensor.codes.double() - zero)).float()
    assert torch.equal(formats.pack(tensor).dequantize(), exact)


def test_leaves_what_it_is_given_alone():
    stats, weight = stats_of(activations(50, 32)), random(4, 32)
    kept = weight.clone(), stats.hessian.clone(), stats.mean_abs.clone()
    AWQ().scales([weight], [(3, 8)], stats)
    AWQ().quantize(weight, 3, 8, stats)
    given_back = weight, stats.hessian, stats.mean_abs
    assert all(torch.equal(a, b) for a, b in zip(kept, given_back, strict=True))


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_refuses_weights_that_are_no_numbers(bad, clip):
    stats, weight = stats_of(activations(50, 32)), random(4, 32)
    weight[1, 2] = bad
    with pytest.raises(LutlabError, match="1 of 128 weights are inf or nan"):
        AWQ(clip=clip).quantize(weight, 3, 8, stats)
    with pytest.raises(LutlabError, match="1 of 128 weights are inf or nan"):
        AWQ(clip=clip).scales([weight], [(3, 8)], stats)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("field", ["hessian", "mean_abs"])
def test_refuses_inputs_that_are_no_numbers(field, bad):
    stats = {"hessian": torch.eye(16), "mean_abs": torch.ones(16)}
    stats[field][3] = bad
    with pytest.raises(LutlabError, match="inputs are inf or nan"):
        AWQ().prepare(CalibStats(**stats, tokens=1))
    with pytest.raises(LutlabError, match="inputs are inf or nan"):
        AWQ().scales([random(2, 16)], [(3, 8)], CalibStats(**stats, tokens=1))


def test_refuses_options_out_of_range():
    with pytest.raises(LutlabError, match="grid=0"):
        AWQ(grid=0)
    with pytest.raises(LutlabError, match="inputs=quantized"):
        AWQ(true_sequential=True)


@pytest.mark.parametrize(("q", "g", "message"), [(9, 16, "q=9"), (0, 16, "q=0"), (4, 7, "g=7")])
@pytest.mark.parametrize("clip", [False, True])
def test_refuses_bits_and_groups_out_of_range(q, g, message, clip):
    with pytest.raises(LutlabError, match=message):
        AWQ(clip=clip).quantize(random(2, 32), q, g, stats_of(activations(50, 32)))
