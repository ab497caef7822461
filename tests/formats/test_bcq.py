"""Bit planes: the drawn words, exact round trips, Eq. 5 to the last bit, sizes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lutlab import formats
from lutlab.base.errors import LutlabError
from lutlab.base.groups import group_count
from lutlab.base.tensors import BCQTensor, DenseTensor, UniformTensor
from lutlab.formats import bcq

SIZES = {
    "q": st.integers(1, 8),
    "rows": st.integers(1, 5),
    "in_features": st.integers(1, 100),
    "g": st.sampled_from([-1, 8, 13, 32, 128]),
    "dtype": st.sampled_from([torch.float16, torch.float32]),
    "seed": st.integers(0, 2**31),
}


def group_of(columns: int, g: int) -> list[int]:
    return [0 if g == -1 else k // g for k in range(columns)]


def random_codes(q, rows, in_features, generator):
    return torch.randint(0, 2**q, (rows, in_features), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("k", [0, 1, 30, 31, 32, 39])
@pytest.mark.parametrize("b", [0, 2])
def test_a_sign_is_bit_k_mod_32_of_word_k_div_32_and_padding_is_zero(b, k):
    codes = torch.zeros(2, 40, dtype=torch.uint8)
    codes[1, k] = 1 << b
    planes = bcq.pack(BCQTensor(codes, torch.ones(3, 2, 1), None, 3, -1)).planes
    expected = torch.zeros(3, 2, 2, dtype=torch.int64)
    expected[b, 1, k // 32] = 1 << (k % 32)
    assert planes.dtype == torch.int32
    assert torch.equal(planes.long() & 0xFFFFFFFF, expected)


@settings(deadline=None, max_examples=40)
@given(**SIZES, with_offset=st.booleans())
def test_round_trip_is_bit_exact_and_dequantize_is_the_sum(
    q, rows, in_features, g, dtype, seed, with_offset
):
    generator = torch.Generator().manual_seed(seed)
    groups = group_count(g, in_features)
    codes = random_codes(q, rows, in_features, generator)
    alpha = torch.randn(q, rows, groups, generator=generator).to(dtype)
    offset = torch.randn(rows, groups, generator=generator).to(dtype) if with_offset else None
    packed = bcq.pack(BCQTensor(codes, alpha, offset, q, g))
    back = bcq.unpack(packed)
    assert torch.equal(back.codes, codes)
    assert back.alpha is alpha
    assert back.offset is offset
    assert (back.bits, back.group_size) == (q, g)
    assert torch.equal(bcq.pack(back).planes, packed.planes)

    expected = torch.zeros(rows, in_features, dtype=torch.float64)
    column = group_of(in_features, g)
    if with_offset:
        expected += offset.double()[:, column]
    for b in range(q):
        expected += (2.0 * ((codes >> b) & 1).double() - 1) * alpha[b].double()[:, column]
    assert torch.equal(packed.dequantize(), expected.float())


@settings(deadline=None, max_examples=40)
@given(**SIZES, exponent=st.integers(-30, 12), far=st.booleans())
def test_uniform_becomes_bcq_to_the_last_bit(q, rows, in_features, g, dtype, seed, exponent, far):
    """Scales go down to float16's subnormals, and up beyond what 2^(q-2) s leaves in float16; zeros beyond 0..2^q-1."""
    generator = torch.Generator().manual_seed(seed)
    shape = rows, group_count(g, in_features)
    codes = random_codes(q, rows, in_features, generator)
    scale = (torch.rand(shape, generator=generator) * 2.0**exponent).to(dtype)
    low, high = (-(2**15), 2**15) if far else (0, 2**q)
    zero_point = torch.randint(low, high, shape, generator=generator).to(torch.int16)
    tensor = UniformTensor(codes, scale, zero_point, q, g)
    column = group_of(in_features, g)
    exact = scale.double()[:, column] * (codes.double() - zero_point.double()[:, column])
    assert torch.equal(bcq.pack(bcq.from_uniform(tensor)).dequantize(), exact.float())
    assert torch.equal(formats.dequantize(tensor), exact.float())


def uniform(scale: torch.Tensor, q: int = 4, zero: int = 8) -> UniformTensor:
    codes = torch.arange(8, dtype=torch.uint8).repeat(len(scale), 1)
    return UniformTensor(codes, scale, torch.full_like(scale, zero, dtype=torch.int16), q, -1)


def test_eq5_coefficients():
    tensor = bcq.from_uniform(uniform(torch.tensor([[0.5]], dtype=torch.float16)))
    assert tensor.alpha.flatten().tolist() == [0.25, 0.5, 1.0, 2.0]
    assert tensor.offset.item() == 0.5 * (7.5 - 8)


@pytest.mark.parametrize(
    ("scale", "zero", "alpha_dtype", "offset_dtype"),
    [
        (torch.tensor([[0.1]], dtype=torch.float16), 8, torch.float16, torch.float32),
        (torch.tensor([[0.1]], dtype=torch.float16), 30000, torch.float16, torch.float64),
        (torch.tensor([[2.0**-24]], dtype=torch.float16), 8, torch.float32, torch.float64),
        (torch.tensor([[30000.0]], dtype=torch.float16), 8, torch.float32, torch.float64),
        (torch.tensor([[0.1]]), 8, torch.float32, torch.float64),
    ],
    ids=["usual", "far zero", "subnormal", "overflow", "float32"],
)
def test_widths_by_the_documented_rule(scale, zero, alpha_dtype, offset_dtype):
    tensor = bcq.from_uniform(uniform(scale, zero=zero))
    assert tensor.alpha.dtype == alpha_dtype
    assert tensor.offset.dtype == offset_dtype


def test_an_offset_as_wide_as_alpha_would_not_be_exact():
    """The reason for the wider offset: 11 bits of scale times an odd 5-bit half-integer do not fit float16."""
    scale = torch.tensor([[1 + 2.0**-10]], dtype=torch.float16)
    tensor = bcq.from_uniform(uniform(scale, zero=2))
    assert tensor.offset.half().double() != tensor.offset.double()


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_scales_that_are_no_numbers_are_refused(value):
    with pytest.raises(LutlabError, match="1 of 1 scales are inf or nan"):
        bcq.from_uniform(uniform(torch.tensor([[value]])))


@pytest.mark.parametrize("value", [3e38, 1.5e-45])
def test_scales_that_float32_cannot_double_or_halve_are_refused(value):
    with pytest.raises(LutlabError, match="exponents"):
        bcq.from_uniform(uniform(torch.tensor([[value]])))


def test_bits_stored_count_every_buffer_with_padding():
    tensor = BCQTensor(
        torch.zeros(3, 40, dtype=torch.uint8), torch.ones(2, 3, 5).half(), torch.ones(3, 5), 2, 8
    )
    packed = bcq.pack(tensor)
    assert packed.bits_stored == 2 * 3 * 64 + 2 * 3 * 5 * 16 + 3 * 5 * 32
    assert packed.bits_per_weight == packed.bits_stored / 120
    assert packed.shape == (3, 40)


@pytest.mark.parametrize(
    ("formula", "g", "expected"),
    [
        ("lut-gemm-eq7", 128, 3 * (1 + 16 / 128)),
        ("lut-gemm-table6", 128, 3 + 16 / 128),
        ("nuqmm", 128, 3 * (1 + 32 / 128)),
        ("lut-gemm-eq7", -1, 3 * (1 + 16 / 4096)),
    ],
)
def test_paper_sizes(formula, g, expected):
    assert bcq.bits_paper(3, g, 4096, formula) == expected


@pytest.mark.parametrize(("q", "g", "size_gb"), [(4, 32, 97.9), (3, 128, 67.9)])
def test_table6_formula_is_that_of_347_9_gb_in_fp16(q, g, size_gb):
    bits = bcq.bits_paper(q, g, 12288, "lut-gemm-table6")
    assert 347.9 * bits / 16 == pytest.approx(size_gb, rel=0.01)


def test_without_offset_stored_size_is_the_papers_eq7():
    tensor = BCQTensor(
        torch.zeros(4, 256, dtype=torch.uint8), torch.ones(3, 4, 2).half(), None, 3, 128
    )
    assert bcq.pack(tensor).bits_per_weight == bcq.bits_paper(3, 128, 256, "lut-gemm-eq7")


def test_unknown_size_formula_suggests():
    with pytest.raises(LutlabError, match="did you mean 'lut-gemm-eq7'"):
        bcq.bits_paper(3, 128, 4096, "lutgemm-eq7")


def test_dequantize_in_row_chunks_is_the_same(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    tensor = BCQTensor(
        random_codes(3, 7, 50, generator), torch.rand(3, 7, 4), torch.rand(7, 4), 3, 16
    )
    whole = bcq.pack(tensor)
    expected = whole.dequantize()
    monkeypatch.setattr(bcq, "CHUNK_WEIGHTS", 100)
    assert torch.equal(bcq.pack(tensor).planes, whole.planes)
    assert torch.equal(bcq.unpack(whole).codes, tensor.codes)
    assert torch.equal(whole.dequantize(), expected)


def test_dense_keeps_weights_and_counts_their_bits():
    weight = torch.randn(6, 4).half().t()
    packed = formats.pack(DenseTensor(weight))
    assert packed.weight.is_contiguous()
    assert packed.shape == (4, 6)
    assert (packed.bits_stored, packed.bits_per_weight) == (4 * 6 * 16, 16)
    assert torch.equal(packed.dequantize(), weight.float())
    assert torch.equal(packed.unpack().weight, weight)


@pytest.mark.parametrize("g", [-1, 16])
def test_order_puts_columns_back_where_they_were(g):
    """Column j holds channel order[j]; the order travels with codes both ways and is paid for."""
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(50, generator=generator).int()
    groups = group_count(g, 50)
    scale, zero = torch.rand(7, groups).half(), torch.zeros(7, groups, dtype=torch.int16)
    codes = random_codes(3, 7, 50, generator)
    there = formats.pack(UniformTensor(codes, scale, zero, 3, g, order)).to_bcq()
    plain = formats.pack(UniformTensor(codes, scale, zero, 3, g)).to_bcq()
    assert torch.equal(there.dequantize()[:, order.long()], plain.dequantize())
    assert torch.equal(bcq.unpack(there).order, order)
    assert torch.equal(bcq.unpack(there).codes, codes)
    assert there.bits_stored == plain.bits_stored + 32 * 50
