"""Groups of several widths: the paper's equations against naive versions, its averages to the digit, and its limits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.quantizers.naive_gptq import correlated, naive_gptq

from lutlab import formats
from lutlab.base.errors import LutlabError
from lutlab.base.tensors import CalibStats
from lutlab.formats import mixed
from lutlab.quantizers import mixed_books
from lutlab.quantizers.contract import make_method


def weight(rows=32, columns=128, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def stats(columns, seed=0):
    return CalibStats(correlated(columns, seed), torch.ones(columns), 1)


def quantized(w, q=2.5, g=16, name="mixed_2_4_16", **options):
    method = make_method(name, **options)
    return method.quantize(w, q, g, method.prepare(stats(w.shape[1])))


def output_error(w, tensor, hessian):
    error = formats.dequantize(tensor).double() - w.double()
    return float(((error @ hessian.double()) * error).sum())


def test_average_bits_are_the_printed_ones():
    """Tables 1, 2, 4; those that no natural reading gives are errata (docs/errata.md)."""
    assert round(mixed.average(0.75, 16, 16), 2) == 2.84  # Table 1, Our
    # The same with zeros padded from 4 bits to 8.
    assert round(mixed.average(0.75, 16, 16) + 12 / 1024, 2) == 2.85
    assert round(mixed.average(0.75, 16, 16, 0.002), 2) == 2.90  # where Table 1 prints 2.91
    assert round(mixed.average(1, 8, 16), 2) == 2.91  # Greenbit: 2 bits, g1 = 8
    assert round(mixed.average(231 / 256, 16, 16), 2) == 2.60  # Table 4: 25 of 256 groups
    assert round(mixed.average(0.9, 16, 16), 2) == 2.61


@pytest.mark.parametrize(("q", "printed"), [(2.5, 2.84), (2.2, 2.60)])
def test_a_weight_of_the_papers_size_has_the_printed_average(q, printed):
    method = make_method("mixed_2_4_16", sensitivity="last")
    w = torch.zeros(16, 4096)
    widths = method.choose(w, q, 16, None)
    assert (widths == 4).sum() == int(256 * (q - 2) / 2)
    packed = formats.pack(method.round_to(w, widths, 16))
    assert round(packed.bits_average, 2) == printed
    assert packed.aligned == (q == 2.5)


@pytest.mark.parametrize("sensitivity", ["cholesky", "inverse", "diagonal", "range"])
def test_sensitivities_are_their_equations(sensitivity):
    w, h = weight(), stats(128).hessian
    damped = h.double() + 0.01 * h.double().diagonal().mean() * torch.eye(128)
    inverse = torch.linalg.inv(damped)
    upper = torch.linalg.cholesky(inverse, upper=True)
    matters = {
        "cholesky": upper.diagonal() ** -2,
        "inverse": inverse.diagonal() ** -2,
        "diagonal": h.double().diagonal(),
    }
    if sensitivity == "range":
        of_groups = w.double().view(32, 8, 16)
        expected = (of_groups.amax(2) - of_groups.amin(2)).square().sum(0)
    else:
        expected = (w.double().square() * matters[sensitivity]).sum(0).view(8, 16).sum(1)
    method = make_method("mixed_2_4_16", sensitivity=sensitivity)
    found = method.sensitivities(w, 16, method.prepare(stats(128)))
    assert torch.allclose(found.double(), expected, rtol=1e-3)


def naive_books(widths):
    """Grids of the naive sweep: first- and second-order rounding as the equations have it, in float64."""
    of_groups = iter(widths.tolist())

    def book(values):
        bits = next(of_groups)
        low, high = values.double().amin(1).clamp(max=0), values.double().amax(1).clamp(min=0)
        scale = (high - low) / (2**bits - 1)
        decoded = torch.empty_like(scale)
        for first in range(0, len(scale), 16):
            some = scale[first : first + 16]
            step = max((some.max() - some.min()) / 15, some.max() / 30).half().double()
            zero = (some.min() / step).round().clamp(0, 15)
            code = ((some / step).round() - zero).clamp(0, 15)
            decoded[first : first + 16] = step * (code + zero)
        zero = (-low / decoded).round().clamp(0, 2**bits - 1)

        def nearest(column):
            ratio = column / decoded
            level = ratio.round().clamp(-zero, 2**bits - 1 - zero)
            margin = (0.5 - (ratio - ratio.round()).abs()).abs()
            return (level + zero).to(torch.uint8), level * decoded, margin

        return nearest

    return book


@pytest.mark.parametrize("q", [2, 2.5])
def test_the_sweep_is_naive_gptq_with_second_order_grids(q):
    w = weight(32, 128)
    method = make_method("mixed_2_4_16", sensitivity="last", wide_scale="group")
    tensor = method.quantize(w, q, 16, method.prepare(stats(128)))
    naive = naive_gptq(w, stats(128).hessian, 16, naive_books(tensor.widths))
    equal = (tensor.codes == naive.codes).all(dim=1)
    # Rows that part do so at a tie, or for a scale at one.
    for row in (~equal).nonzero().flatten().tolist():
        first = int((tensor.codes[row] != naive.codes[row]).nonzero()[0])
        assert naive.margin[row, first] < 1e-3
    assert equal.float().mean() > 0.8


def test_a_search_never_errs_more_than_min_max():
    values = weight(64, 16).t()
    for bits in (2, 3, 4):
        low, high = mixed_books.low_high(values)
        error = []
        for ranges in ((low, high), mixed_books.searched(values, bits)):
            scale = (ranges[1] - ranges[0]) / (2**bits - 1)
            zero = (-ranges[0] / scale).round().clamp(0, 2**bits - 1)
            hat = mixed_books.levels(values, scale, zero, 2**bits - 1) * scale
            error.append((hat - values).square().sum(0))
        assert (error[1] <= error[0]).all()
        assert (error[1] < error[0]).any()


def test_searched_grids_never_err_more_than_others_of_their_steps():
    values = weight(40, 16, seed=3).t()
    errors = []
    for search in (False, True):
        scale, zero, code, *second = mixed_books.fit_group(values, 2, 4, 16, search=search)
        hat = mixed_books.levels(values, scale, zero, 3) * scale
        errors.append((hat - values).square().sum())
        least, step = (one.repeat_interleave(16)[:40] for one in second)
        assert torch.equal(scale, step * (code + least))
    assert errors[1] < 0.8 * errors[0]


@given(
    rows=st.integers(1, 40),
    bits=st.sampled_from([2, 3, 4]),
    scale_bits=st.sampled_from([3, 4]),
    spread=st.floats(0, 6),
    seed=st.integers(0, 99),
)
def test_second_order_scales_are_near(rows, bits, scale_bits, spread, seed):
    """Within half a step, and half an ulp of float16 of the step, of the scale itself; codes and zeros in range."""
    draw = torch.Generator().manual_seed(seed)
    high = torch.exp(spread * torch.rand(rows, generator=draw))
    decoded, zero, code, least, step = mixed_books.fit(-0.3 * high, high, bits, scale_bits, 16)
    scale = 1.3 * high / (2**bits - 1)
    step = step.repeat_interleave(16)[:rows]
    assert ((decoded - scale).abs() <= step * (0.5 + 31 * 2**-11 + 1e-5)).all()
    for found, levels in ((code, 2**scale_bits), (least, 16), (zero, 2**bits)):
        assert ((found >= 0) & (found < levels)).all()


@pytest.mark.parametrize("q", [2, 2.5, 3.1, 4])
@pytest.mark.parametrize(
    "options", [{}, {"wide_last": True}, {"wide_scale": "group"}, {"compensate": False}]
)
def test_any_share_and_any_columns_are_packed(q, options):
    w = weight(20, 172)
    tensor = quantized(w, q, **options)
    groups = 11
    expected = 3 if q == 2.5 else int(groups * (q - 2) / 2)
    assert int((tensor.widths == 4).sum()) == expected
    assert tensor.aligned == (q == 2.5 and "wide_scale" not in options)
    packed = formats.pack(tensor)
    assert torch.equal(packed.unpack().codes, tensor.codes)
    h = stats(172).hessian
    assert output_error(w, tensor, h) < 0.5 * float(((w @ h) * w).sum())


def test_groups_of_four_bits_are_rounded_last():
    """The same groups, chosen without merit, err less at the end of the sweep."""
    w, h = weight(64, 512), stats(512).hessian
    errors = [
        output_error(w, quantized(w, sensitivity="random", wide_last=last), h)
        for last in (False, True)
    ]
    assert errors[1] < errors[0]


@pytest.mark.parametrize("compensate", [False, True])
def test_outliers_are_exclusive_exact_and_lower_the_error(compensate):
    w = weight(48, 256)
    w[3, 200], w[7, 30], w[40, 100] = 9.0, -11.0, 8.0
    errors = []
    for share in (0, 0.002, 0.01, 0.05):
        tensor = quantized(w, outliers=share, compensate=compensate, sensitivity="last")
        errors.append(output_error(w, tensor, stats(256).hessian))
        if not share:
            assert tensor.outlier_count is None
            continue
        assert (
            int(tensor.outlier_count.sum()) == int(share * w.numel()) == len(tensor.outlier_value)
        )
        column = tensor.outlier_column.long()
        assert (tensor.widths[column // 16] == 2).all()
        row = torch.arange(48).repeat_interleave(tensor.outlier_count.long())
        assert (tensor.codes[row, column] == tensor.zero_point[row, column // 16]).all()
        if not compensate:
            assert torch.equal(tensor.outlier_value, w[row, column].half())
            narrow = w.abs()[:, : 3 * 64]
            assert (
                w[row, column].abs().min()
                >= narrow.flatten().sort(descending=True).values[len(row) - 1]
            )
    assert errors == sorted(errors, reverse=True)


def test_one_group_of_every_four_neighbours():
    tensor = quantized(weight(16, 512), neighbours=True)
    assert ((tensor.widths == 4).view(-1, 4).sum(1) == 1).all()
    with pytest.raises(LutlabError, match=r"give q=2\.5, not 3"):
        quantized(weight(), 3, neighbours=True)


def test_nothing_is_nothing():
    """All-zero groups, rows and weights decode to zeros; inputs that never come leave no nan."""
    w = weight(32, 128)
    w[:, 16:32], w[5] = 0, 0
    for options in ({}, {"search_ranges": True}, {"compensate": False}):
        tensor = quantized(w, **options)
        out = formats.dequantize(tensor)
        assert torch.isfinite(out).all()
        assert not formats.dequantize(quantized(torch.zeros(32, 128), **options)).any()
    method = make_method("mixed_2_4_16")
    dead = stats(128).hessian
    dead[:40], dead[:, :40] = 0, 0
    prepared = method.prepare(CalibStats(dead, torch.ones(128), 1))
    assert torch.isfinite(formats.dequantize(method.quantize(w, 2.5, 16, prepared))).all()


@pytest.mark.parametrize(
    ("q", "options", "message"),
    [
        (1.9, {}, r"q=1\.9 is no mean"),
        (4.5, {}, r"q=4\.5 is no mean"),
        (2.5, {"outliers": 0.06}, r"of at least 0 and at most 0\.05"),
        (2.5, {"outliers": -0.1}, r"of at least 0 and at most 0\.05"),
        (4, {"outliers": 0.01}, "groups of 2 bits, which alone have outliers, hold 0"),
        (2.5, {"sensitivity": "choleski"}, "did you mean 'cholesky'"),
        (2.5, {"wide_scale": "column"}, "wide_scale"),
        (2.5, {"scale_group": 0}, "scale_group=0"),
    ],
)
def test_refuses_what_has_no_meaning(q, options, message):
    with pytest.raises(LutlabError, match=message):
        quantized(weight(), q, **options)


def test_weights_beyond_float16_are_refused():
    with pytest.raises(LutlabError, match="beyond float16"):
        quantized(weight() * 1e7)
    w = weight()
    w[0, 0] = 1e6
    with pytest.raises(LutlabError, match="outlier_value are inf"):
        formats.pack(quantized(w, outliers=0.01, sensitivity="last", compensate=False))
