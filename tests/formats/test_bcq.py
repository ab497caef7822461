"""Bit planes: the drawn words, exact round trips, Eq. 5's coefficients, sizes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.weights import bcq_tensor
from tests.quantizers.weights import assert_same, exact

from lutlab.base.errors import LutlabError
from lutlab.base.tensors import BCQTensor, UniformTensor
from lutlab.formats import bcq


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


@settings(max_examples=40)
@given(st.builds(
    bcq_tensor, st.integers(1, 5), st.integers(1, 100), st.integers(1, 8), st.sampled_from([-1, 8, 13, 32, 128]),
    alpha=st.sampled_from(["f16", "f32"]), offset=st.sampled_from([None, "f16", "f32"]), ordered=st.booleans(),
    seed=st.integers(0, 2**31),
))  # fmt: skip
def test_round_trip_is_bit_exact_and_dequantize_is_the_sum(tensor):
    packed = bcq.pack(tensor)
    back = bcq.unpack(packed)
    assert_same(vars(back), vars(tensor))
    assert back.alpha is tensor.alpha
    assert back.offset is tensor.offset
    assert_same(packed.dequantize(), exact(tensor).float())


def uniform(scale: float, dtype: torch.dtype = torch.float16, zero: int = 8) -> UniformTensor:
    codes, scale = torch.arange(8, dtype=torch.uint8)[None], torch.tensor([[scale]], dtype=dtype)
    return UniformTensor(codes, scale, torch.full((1, 1), zero, dtype=torch.int16), 4, -1)


def test_eq5_coefficients():
    tensor = bcq.from_uniform(uniform(0.5))
    assert tensor.alpha.flatten().tolist() == [0.25, 0.5, 1.0, 2.0]
    assert tensor.offset.item() == 0.5 * (7.5 - 8)


@pytest.mark.parametrize(("scale", "dtype", "zero", "alpha_dtype", "offset_dtype"), [
    (0.1, torch.float16, 8, torch.float16, torch.float32),
    (0.1, torch.float16, 30000, torch.float16, torch.float64),  # a far zero
    (2.0**-24, torch.float16, 8, torch.float32, torch.float64),  # subnormal
    (30000.0, torch.float16, 8, torch.float32, torch.float64),  # overflow
    (0.1, torch.float32, 8, torch.float32, torch.float64),
])  # fmt: skip
def test_widths_by_the_documented_rule(scale, dtype, zero, alpha_dtype, offset_dtype):
    tensor = bcq.from_uniform(uniform(scale, dtype, zero))
    assert (tensor.alpha.dtype, tensor.offset.dtype) == (alpha_dtype, offset_dtype)


@pytest.mark.parametrize(("value", "message"), [
    (float("inf"), "1 of 1 scales are inf or nan"), (float("nan"), "1 of 1 scales are inf or nan"),
    (3e38, "exponents"), (1.5e-45, "exponents"),  # float32 cannot double or halve them
])  # fmt: skip
def test_scales_without_an_eq5_are_refused(value, message):
    with pytest.raises(LutlabError, match=message):
        bcq.from_uniform(uniform(value, torch.float32))


@pytest.mark.parametrize(("formula", "g", "expected"), [
    ("lut-gemm-eq7", 128, 3 * (1 + 16 / 128)), ("lut-gemm-table6", 128, 3 + 16 / 128),
    ("nuqmm", 128, 3 * (1 + 32 / 128)), ("lut-gemm-eq7", -1, 3 * (1 + 16 / 4096)),
])  # fmt: skip
def test_paper_sizes(formula, g, expected):
    assert bcq.bits_paper(3, g, 4096, formula) == expected


@pytest.mark.parametrize(("q", "g", "size_gb"), [(4, 32, 97.9), (3, 128, 67.9)])
def test_table6_formula_is_that_of_347_9_gb_in_fp16(q, g, size_gb):
    bits = bcq.bits_paper(q, g, 12288, "lut-gemm-table6")
    assert 347.9 * bits / 16 == pytest.approx(size_gb, rel=0.01)


def test_fewer_bits_may_take_more_memory_as_the_papers_example_counts():
    """LUT-GEMM v3 and ICLR Figure 6: 4 x 8 weights, (g, q) = (2, 3) and (4, 4), scales of 16 bits."""
    bits = [32 * bcq.PAPER_SIZES["lut-gemm-eq7"](q, g) for g, q in ((2, 3), (4, 4))]
    assert bits == [864, 640] == [4 * 4 * 3 * 16 + 4 * 8 * 3, 4 * 2 * 4 * 16 + 4 * 8 * 4]


def test_stored_sizes_are_the_papers_eq7_and_count_padding_and_offsets():
    packed = bcq.pack(bcq_tensor(4, 256, 3, 128))
    assert packed.bits_per_weight == bcq.bits_paper(3, 128, 256, "lut-gemm-eq7")
    packed = bcq.pack(bcq_tensor(3, 40, 2, 8, offset="f32"))
    assert packed.bits_stored == 2 * 3 * 64 + 2 * 3 * 5 * 16 + 3 * 5 * 32


def test_unknown_size_formula_suggests():
    with pytest.raises(LutlabError, match="did you mean 'lut-gemm-eq7'"):
        bcq.bits_paper(3, 128, 4096, "lutgemm-eq7")


def test_in_row_chunks_it_is_the_same(monkeypatch):
    def made():
        packed = bcq.pack(bcq_tensor(7, 50, 3, 16, alpha="f32", offset="f32"))
        return packed.planes, bcq.unpack(packed).codes, packed.dequantize()

    whole = made()
    monkeypatch.setattr(bcq, "CHUNK_WEIGHTS", 100)
    assert_same(made(), whole)
