"""Groups of several widths: the paper's equations against naive versions, its averages to the digit, and its limits."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.quantizers.naive_gptq import agree, naive_gptq
from tests.quantizers.weights import correlated, drawn, output_error, quantize, row_errors, stats_of

from lutlab import formats
from lutlab.base.errors import LutlabError
from lutlab.formats import mixed
from lutlab.quantizers import mixed_books
from lutlab.quantizers.contract import make_method


def quantized(w, q=2.5, hessian=None, **options):
    hessian = correlated(w.shape[1]) if hessian is None else hessian
    return quantize(make_method("mixed_2_4_16", **options), w, q, 16, hessian)


@pytest.mark.parametrize(("shares", "more", "printed"), [
    # Tables 1, 2, 4; those that no natural reading gives are errata (docs/errata.md)
    ((0.75, 16, 16), 0, 2.84),  # Table 1, Our
    ((0.75, 16, 16), 12 / 1024, 2.85),  # The same with zeros padded from 4 bits to 8.
    ((0.75, 16, 16, 0.002), 0, 2.90),  # where Table 1 prints 2.91
    ((1, 8, 16), 0, 2.91),  # Greenbit: 2 bits, g1 = 8
    ((231 / 256, 16, 16), 0, 2.60),  # Table 4: 25 of 256 groups
    ((0.9, 16, 16), 0, 2.61),
])  # fmt: skip
def test_average_bits_are_the_printed_ones(shares, more, printed):
    assert round(mixed.average(*shares) + more, 2) == printed


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
    w, hessian = drawn(32, 128), correlated(128)
    h = hessian.double()
    inverse = torch.linalg.inv(h + 0.01 * h.diagonal().mean() * torch.eye(128))
    matters = {
        "cholesky": torch.linalg.cholesky(inverse, upper=True).diagonal() ** -2,
        "inverse": inverse.diagonal() ** -2,
        "diagonal": h.diagonal(),
    }
    if sensitivity == "range":
        of_groups = w.double().view(32, 8, 16)
        expected = (of_groups.amax(2) - of_groups.amin(2)).square().sum(0)
    else:
        expected = (w.double().square() * matters[sensitivity]).sum(0).view(8, 16).sum(1)
    method = make_method("mixed_2_4_16", sensitivity=sensitivity)
    ours = method.sensitivities(w, 16, method.prepare(stats_of(hessian))).double()
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-8)


def naive_books(widths):
    """Grids of the naive sweep: first- and second-order rounding as the equations have it, in float64."""
    of_groups = iter(widths.tolist())

    def book(values):
        bits = next(of_groups)
        low, high = values.double().amin(1).clamp(max=0), values.double().amax(1).clamp(min=0)
        scale = (high - low) / (2**bits - 1)
        decoded = []
        for some in scale.split(16):
            step = max((some.max() - some.min()) / 15, some.max() / 30).half().double()
            zero = (some.min() / step).round().clamp(0, 15)
            decoded.append(step * (((some / step).round() - zero).clamp(0, 15) + zero))
        decoded = torch.cat(decoded)
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
    tensor = quantized(drawn(32, 128), q, sensitivity="last", wide_scale="group")
    naive = naive_gptq(drawn(32, 128), correlated(128), 16, naive_books(tensor.widths))
    # Rows that part do so at a tie, or for a scale at one.
    assert agree(tensor, naive, tie=1e-3) > 0.8


def test_a_search_never_errs_more_than_min_max():
    values = drawn(64, 16).t()
    for bits in (2, 3, 4):
        errors = []
        for low, high in (mixed_books.low_high(values), mixed_books.searched(values, bits)):
            scale = (high - low) / (2**bits - 1)
            zero = (-low / scale).round().clamp(0, 2**bits - 1)
            hat = mixed_books.levels(values, scale, zero, 2**bits - 1) * scale
            errors.append((hat - values).square().sum(0))
        plain, searched = errors
        assert (searched <= plain).all()
        assert (searched < plain).any()


def test_searched_grids_never_err_more_than_others_of_their_steps():
    values = drawn(40, 16, seed=3).t()
    errors = []
    for search in (False, True):
        scale, zero, code, *second = mixed_books.fit_group(values, 2, 4, 16, search=search)
        hat = mixed_books.levels(values, scale, zero, 3) * scale
        errors.append((hat - values).square().sum())
        least, step = (of_band.repeat_interleave(16)[:40] for of_band in second)
        assert torch.equal(scale, step * (code + least))
    assert errors[1] < 0.8 * errors[0]


@given(
    st.integers(1, 40), st.sampled_from([2, 3, 4]), st.sampled_from([3, 4]), st.floats(0, 6), st.integers(0, 99)
)  # fmt: skip
def test_second_order_scales_are_near(rows, bits, scale_bits, spread, seed):
    """Within half a step, and half an ulp of float16 of the step, of the scale itself; codes and zeros in range."""
    high = torch.exp(spread * torch.rand(rows, generator=torch.Generator().manual_seed(seed)))
    decoded, zero, code, least, step = mixed_books.fit(-0.3 * high, high, bits, scale_bits, 16)
    scale = 1.3 * high / (2**bits - 1)
    step = step.repeat_interleave(16)[:rows]
    assert ((decoded - scale).abs() <= step * (0.5 + 31 * 2**-11 + 1e-5)).all()
    for values, levels in ((code, 2**scale_bits), (least, 16), (zero, 2**bits)):
        assert ((values >= 0) & (values < levels)).all()


@pytest.mark.parametrize("q", [2, 2.5, 3.1, 4])
@pytest.mark.parametrize(
    "options", [{}, {"wide_last": True}, {"wide_scale": "group"}, {"compensate": False}]
)
def test_any_share_and_any_columns_are_packed(q, options):
    w = drawn(20, 172)  # 11 groups
    tensor = quantized(w, q, **options)
    assert int((tensor.widths == 4).sum()) == (3 if q == 2.5 else int(11 * (q - 2) / 2))
    assert tensor.aligned == (q == 2.5 and "wide_scale" not in options)
    assert torch.equal(formats.pack(tensor).unpack().codes, tensor.codes)
    h = correlated(172)
    assert row_errors(w, tensor, h).sum() < 0.5 * ((w @ h) * w).sum()


def test_groups_of_four_bits_are_rounded_last():
    """The same groups, chosen without merit, err less at the end of the sweep."""
    w, h = drawn(64, 512), correlated(512)
    random = [make_method("mixed_2_4_16", sensitivity="random", wide_last=last) for last in (False, True)]  # fmt: skip
    first, last = (output_error(method, w, 2.5, 16, h) for method in random)
    assert last < first


@pytest.mark.parametrize("compensate", [False, True])
def test_outliers_are_exclusive_exact_and_lower_the_error(compensate):
    w = drawn(48, 256)
    w[3, 200], w[7, 30], w[40, 100] = 9.0, -11.0, 8.0
    errors = []
    for share in (0, 0.002, 0.01, 0.05):
        tensor = quantized(w, outliers=share, compensate=compensate, sensitivity="last")
        errors.append(row_errors(w, tensor, correlated(256)).sum().item())
        if not share:
            assert tensor.outlier_count is None
            continue
        count = int(share * w.numel())
        assert int(tensor.outlier_count.sum()) == len(tensor.outlier_value) == count
        column = tensor.outlier_column.long()
        assert (tensor.widths[column // 16] == 2).all()
        row = torch.arange(48).repeat_interleave(tensor.outlier_count.long())
        assert (tensor.codes[row, column] == tensor.zero_point[row, column // 16]).all()
        if not compensate:
            assert torch.equal(tensor.outlier_value, w[row, column].half())
            narrow = w.abs()[:, : 3 * 64].flatten().sort(descending=True).values
            assert w[row, column].abs().min() >= narrow[count - 1]
    assert errors == sorted(errors, reverse=True)


def test_one_group_of_every_four_neighbours():
    tensor = quantized(drawn(16, 512), neighbours=True)
    assert ((tensor.widths == 4).view(-1, 4).sum(1) == 1).all()


def test_nothing_is_nothing():
    """All-zero groups, rows and weights decode to zeros; inputs that never come leave no nan."""
    w, dead = drawn(32, 128), correlated(128)
    w[:, 16:32], w[5] = 0, 0
    for options in ({}, {"search_ranges": True}, {"compensate": False}):
        assert torch.isfinite(formats.dequantize(quantized(w, **options))).all()
        assert not formats.dequantize(quantized(torch.zeros(32, 128), **options)).any()
    dead[:40], dead[:, :40] = 0, 0
    assert torch.isfinite(formats.dequantize(quantized(w, hessian=dead))).all()


@pytest.mark.parametrize(("q", "options", "message"), [
    (1.9, {}, r"q=1\.9 is no mean"),
    (4.5, {}, r"q=4\.5 is no mean"),
    (3, {"neighbours": True}, r"give q=2\.5, not 3"),
    (4, {"outliers": 0.01}, "groups of 2 bits, which alone have outliers, hold 0"),
])  # fmt: skip
def test_refuses_what_has_no_meaning(q, options, message):
    with pytest.raises(LutlabError, match=message):
        quantized(drawn(32, 128), q, **options)


def test_outliers_beyond_float16_are_refused():
    w = drawn(32, 128)
    w[0, 0] = 1e6
    with pytest.raises(LutlabError, match="outlier_value are inf"):
        formats.pack(quantized(w, outliers=0.01, sensitivity="last", compensate=False))
