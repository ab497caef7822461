"""AWQ against the repository's two searches, written out naively over tokens, and what must hold of any search."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.quantizers.naive_grids import rounded
from tests.quantizers.weights import assert_same, drawn

from lutlab import formats
from lutlab.base.errors import LutlabError
from lutlab.base.tensors import CalibStats
from lutlab.compress.calibrate import stats_of
from lutlab.quantizers.awq import AWQ, channel_scales, group_errors, output_error
from lutlab.quantizers.rtn import RTN


def activations(tokens, in_features, seed=0):
    """[M, K] whose channels differ a hundredfold in size, as those of language models do."""
    mix = drawn(in_features, in_features, seed=seed + 1) / in_features**0.5
    place = torch.randperm(in_features, generator=torch.Generator().manual_seed(seed))
    size = torch.logspace(-1, 1, in_features)[place]
    return drawn(tokens, in_features, seed=seed) @ (torch.eye(in_features) + mix) * size


def naive_scale_errors(weights, widths, x):
    """auto_scale_block with the layers' own outputs: [(scale, error)] of the 20 exponents, over every token."""
    tried, size = [], x.abs().mean(0)
    for step in range(20):
        scale = size.pow(step / 20).clamp(min=1e-4)
        scale = scale / (scale.max() * scale.min()).sqrt()
        error = 0.0
        for weight, (q, g) in zip(weights, widths, strict=True):
            hat = rounded(weight * scale, q, g) / scale
            error += (x.double() @ (hat - weight).double().T).square().sum(1).mean().item()
        tried.append((scale, error))
    return tried


def naive_clipped(weight, q, x):
    """auto_clip_layer for one group of one row: [(error, its weights, limited and rounded)], the best first."""
    tried = []
    for step in range(10):
        limit = weight.abs().max() * (1 - step / 20)
        hat = rounded(weight.clamp(-limit, limit)[None], q)[0]
        error = (x.double() @ (hat - weight).double()).square().mean().item()
        tried.append((error, hat))
    return sorted(tried, key=lambda trial: trial[0])


@settings(max_examples=12)
@given(
    st.lists(st.tuples(st.integers(1, 8), st.sampled_from([-1, 8, 11])), min_size=1, max_size=2),
    st.integers(1, 30),
    st.integers(0, 1000),
)
def test_scales_are_those_of_the_naive_search(widths, in_features, seed):
    x = activations(60, in_features, seed)
    weights = [drawn(2 + i, in_features, seed=seed + i) for i in range(len(widths))]
    scale = AWQ(scale_dtype="fp32").scales(weights, widths, stats_of(x))
    tried = naive_scale_errors(weights, widths, x)
    least = min(error for _, error in tried)
    chosen = [error for naive, error in tried if torch.allclose(naive, scale, rtol=1e-5)]
    assert chosen, "not one of the exponents tried"
    assert min(chosen) <= least * (1 + 1e-4) + 1e-12, "another exponent has less error"


@settings(max_examples=15)
@given(q=st.integers(1, 8), g=st.sampled_from([-1, 8, 13]), seed=st.integers(0, 1000))
def test_scales_never_raise_the_error(q, g, seed):
    stats, weight = stats_of(activations(50, 30, seed)), drawn(5, 30, seed=seed)
    scale = AWQ().scales([weight], [(q, g)], stats)
    assert (scale > 0).all()
    assert scale.dtype == torch.float32
    hats = [formats.dequantize(RTN("awq").quantize(weight * s, q, g)) / s for s in (scale, 1)]
    scaled, plain = (output_error(hat - weight, stats.hessian) for hat in hats)
    assert scaled <= plain * (1 + 1e-5)


def test_one_exponent_is_no_scale():
    stats = stats_of(activations(50, 16))
    assert_same(AWQ(grid=1).scales([drawn(4, 16)], [(3, 8)], stats), torch.ones(16))
    assert_same(channel_scales(stats.mean_abs, 0.0), torch.ones(16))


def test_layers_in_full_precision_have_no_say():
    stats, quantized, kept = stats_of(activations(50, 32)), drawn(4, 32), 100 * drawn(6, 32, seed=1)
    alone = AWQ().scales([quantized], [(3, 16)], stats)
    assert_same(AWQ().scales([kept, quantized], [None, (3, 16)], stats), alone)
    assert_same(AWQ().scales([kept], [None], stats), torch.ones(32))


def test_layers_with_widths_of_their_own_are_searched_with_them():
    """The layer of 2 bits decides: 8 bits leave next to no error."""
    stats, coarse, fine = stats_of(activations(80, 48)), drawn(4, 48), drawn(4, 48, seed=1)
    both = AWQ().scales([fine, coarse], [(8, -1), (2, 16)], stats)
    assert_same(both, AWQ().scales([coarse], [(2, 16)], stats))
    assert not torch.equal(both, AWQ().scales([fine], [(2, -1)], stats))


@given(st.integers(1, 8), st.sampled_from([-1, 8, 11]), st.integers(1, 40), st.integers(0, 1000))
def test_clipping_is_that_of_the_naive_search(q, g, in_features, seed):
    x, weight = activations(40, in_features, seed), drawn(3, in_features, seed=seed)
    method = AWQ(scale_dtype="fp32")
    out = formats.dequantize(method.quantize(weight, q, g, method.prepare(stats_of(x))))
    length = in_features if g == -1 else g
    for inputs, *rows in zip(
        *(each.split(length, dim=1) for each in (x, weight, out)), strict=True
    ):
        for group, ours in zip(*rows, strict=True):
            (least, hat), (second, _), *_ = naive_clipped(group, q, inputs)
            if second > least * (1 + 1e-3):  # else float32 may prefer another limit
                assert torch.equal(ours, hat)
            error = (inputs.double() @ (ours - group).double()).square().mean()
            assert error.item() <= least * (1 + 1e-3) + 1e-12


@pytest.mark.parametrize(("q", "g"), [(1, 8), (2, -1), (2, 32), (3, 24), (4, 8), (8, 32)])
def test_clipping_raises_the_error_of_no_group(q, g):
    stats, weight = stats_of(activations(200, 50)), drawn(20, 50)
    least, most = (
        group_errors(formats.dequantize(method.quantize(weight, q, g, stats)) - weight, stats.hessian, g)
        for method in (AWQ(), AWQ(clip=False))
    )  # fmt: skip
    assert (least <= most * (1 + 1e-5)).all()
    assert q == 8 or least.sum() < 0.98 * most.sum()


@pytest.mark.parametrize("g", [-1, 8, 24])
def test_without_clipping_it_is_round_to_nearest(g):
    tensor = AWQ(clip=False).quantize(drawn(5, 45), 3, g, stats_of(activations(50, 45)))
    assert_same(vars(tensor), vars(RTN("awq").quantize(drawn(5, 45), 3, g)))


def test_an_outlier_is_clipped_where_inputs_do_not_need_it():
    """One weight of 10 among many below 1, on a channel that is nearly silent: down to 0.55 of it, no further."""
    x, weight = drawn(400, 32), drawn(1, 32).clamp(-1, 1)
    weight[0, 5] = 10.0
    for loudness, kept in ((1e-3, 10 * 0.55), (1e6, 10)):
        x[:, 5] *= loudness
        out = formats.dequantize(AWQ().quantize(weight, 3, -1, stats_of(x)))
        assert out[0, 5].item() == pytest.approx(kept, rel=0.1)


def test_errors_are_means_over_tokens_of_all_groups_and_of_each_alone():
    x, rows = activations(90, 29), drawn(4, 29, seed=7)
    hessian = stats_of(x).hessian
    parts = zip(x.split(8, dim=1), rows.split(8, dim=1), strict=True)
    groups = torch.stack([(inputs @ part.T).square().mean(0) for inputs, part in parts], 1)
    torch.testing.assert_close(group_errors(rows, hessian, 8), groups, rtol=1e-4, atol=1e-8)
    expected = (x @ rows.T).square().sum(1).mean().item()
    assert output_error(rows, hessian) == pytest.approx(expected, rel=1e-5)


def test_inputs_that_are_all_zero_change_nothing():
    stats, weight = stats_of(torch.zeros(5, 16)), drawn(3, 16)
    scale = AWQ().scales([weight], [(3, 8)], stats)
    torch.testing.assert_close(scale, torch.ones(16), rtol=1e-5, atol=0)
    expected = RTN("awq").quantize(weight, 3, 8)
    assert torch.equal(AWQ().quantize(weight, 3, 8, stats).codes, expected.codes)


def test_leaves_what_it_is_given_alone():
    stats, weight = stats_of(activations(50, 32)), drawn(4, 32)
    AWQ().scales([weight], [(3, 8)], stats)
    AWQ().quantize(weight, 3, 8, stats)
    assert_same((vars(stats), weight), (vars(stats_of(activations(50, 32))), drawn(4, 32)))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("field", ["hessian", "mean_abs"])
def test_refuses_inputs_that_are_no_numbers(field, bad):
    stats = CalibStats(torch.eye(16), torch.ones(16), tokens=1)
    getattr(stats, field)[3] = bad
    for search in (AWQ().prepare, lambda stats: AWQ().scales([drawn(2, 16)], [(3, 8)], stats)):
        with pytest.raises(LutlabError, match="inputs are inf or nan"):
            search(stats)
