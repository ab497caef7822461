"""Bit planes of BPDQ and AnyBCQ by naive writers: a weight is their formula, rounded once; damage is named."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.base.refusals import refused
from tests.checkpoint import naive_layouts as naive
from tests.checkpoint.readers import read

from lutlab.base.groups import group_length

PLANES = {
    "rows": st.sampled_from([24, 32]), "columns": st.sampled_from([32, 96, 160]), "g": st.sampled_from([32, -1]),
    "dtype": st.sampled_from([torch.float16, torch.bfloat16, torch.float32]), "seed": st.integers(0, 2**31),
}  # fmt: skip


def drawn_planes(q, rows, columns, g, seed, dtype):
    """Codes, alpha [q, N, G], z [N, G], and the group of each channel."""
    generator = torch.Generator().manual_seed(seed)
    length = group_length(g, columns)
    codes = torch.randint(0, 2**q, (rows, columns), generator=generator).tolist()
    alpha, z = torch.randn(2, q, rows, -(-columns // length), generator=generator).to(dtype)
    return codes, alpha, z[0], [k // length for k in range(columns)]


def binary(codes, alpha, z, group, low):
    """W [N, K] float32, rounded once: z + sum_b alpha_b (1 where bit b is set, else `low`), in float64."""
    bits = torch.tensor(codes) >> torch.arange(len(alpha))[:, None, None] & 1
    signs = torch.where(bits == 1, 1, low).double()
    return (z.double()[:, group] + (signs * alpha.double()[:, :, group]).sum(0)).float()


@settings(max_examples=20)
@given(**PLANES, q=st.integers(1, 8), stated=st.sampled_from(["meta", "config", "nowhere"]))
def test_bpdq(q, rows, columns, g, seed, dtype, stated):
    codes, alpha, z, group = drawn_planes(q, rows, columns, g, seed, dtype)
    of_method = {"bpdq": {"msbits": q, "n_iters": 10, "alpha": 1e-4}}
    config = naive.BPDQ | {"group_size": g}
    config |= {"meta": {"meta": of_method}, "config": of_method, "nowhere": {}}[stated]
    packed = read(config, naive.bpdq(codes, alpha, z), rows, columns)
    assert torch.equal(packed.dequantize(), binary(codes, alpha, z, group, low=0))
    assert packed.bits == q


def test_half_of_the_least_float16_is_kept():
    """And nothing that float16 holds is stored wider, but for the offset, a sum."""
    codes, alpha, z, group = drawn_planes(2, 32, 64, 32, seed=0, dtype=torch.float16)
    assert read(naive.BPDQ, naive.bpdq(codes, alpha, z), 32, 64).alpha.dtype == torch.float16
    alpha[1, 5, 1] = 2.0**-24
    packed = read(naive.BPDQ, naive.bpdq(codes, alpha, z), 32, 64)
    assert (packed.alpha.dtype, packed.offset.dtype) == (torch.float32, torch.float64)
    assert torch.equal(packed.dequantize(), binary(codes, alpha, z, group, low=0))


@settings(max_examples=20)
@given(**PLANES, q=st.integers(2, 4))
def test_anybcq_in_each_of_its_precisions(q, rows, columns, g, seed, dtype):
    """The first q of 4 planes with coefficients of their own."""
    drawn = {p: drawn_planes(p, rows, columns, g, seed + p, dtype) for p in (2, 3, 4)}
    codes, group = drawn[4][0], drawn[4][3]
    alphas, betas = ({p: parts[at] for p, parts in drawn.items()} for at in (1, 2))
    tensors = naive.anybcq(codes, alphas, betas, 4)
    config = {"quant_method": "anybcq", "seed_precision": 2, "parent_precision": q, "group_size": g}
    packed = read(config, tensors, rows, columns)
    assert torch.equal(packed.dequantize(), binary(codes, alphas[q], betas[q], group, low=-1))
    assert packed.bits == q
    if dtype == torch.float16:
        assert (packed.alpha.dtype, packed.offset.dtype) == (torch.float16, torch.float16)


def damaged(change):
    """A layer of 2 planes, [N, K] = [32, 64], with a change to its tensors."""
    codes, alpha, z, _ = drawn_planes(2, 32, 64, 32, seed=0, dtype=torch.float16)
    tensors = naive.bpdq(codes, alpha, z) | naive.anybcq(codes, {2: alpha}, {2: z}, 2)
    return tensors | {name: edit(tensors[name]) for name, edit in change.items()}


@pytest.mark.parametrize(("config", "change", "message"), [
    (naive.BPDQ, {"B": lambda b: b[:1]}, r"B of \[1, 2, 32\] and c .* are not .*damaged"),
    (naive.BPDQ, {"B": lambda b: b[:, 0]}, r"B of \[2, 32\]"),
    (naive.BPDQ, {"c": lambda c: c[:, :2]}, r"c of \[2, 2, 32\]"),
    (naive.BPDQ, {"c": lambda c: c[0, 0, 0]}, r"c of \[\] "),
    (naive.BPDQ, {"c": lambda c: c.repeat(3, 1, 1)}, "6 groups of K = 64 columns"),
    (naive.BPDQ, {"c": lambda c: c * torch.inf}, "c holds NaN or infinite"),
    (naive.BPDQ, {"c": lambda c: c.double()}, "c is torch.float64"),
    (naive.BPDQ, {"c": lambda c: c.float() * 2.0**-140}, "is no float32"),
    (naive.BPDQ, {"B": lambda b: b.long()}, "B is torch.int64"),
    (naive.BPDQ | {"bpdq": {"msbits": 3}}, {}, r"with q of 3 planes"),
    (naive.BPDQ | {"bpdq": {"msbits": 9}}, {}, "msbits=9 .* 1 to 8"),
    (naive.BPDQ | {"meta": {"bpdq": {"msbits": "2"}}}, {}, "msbits='2'"),
    (naive.ANYBCQ, {"qweight": lambda w: w[:, :1]}, r"qweight of \[2, 1, 32\] .*at least 2"),
    (naive.ANYBCQ, {"alpha_2": lambda a: a[:, :1]}, r"alpha_2 of \[2, 1, 32\]"),
    (naive.ANYBCQ, {"alpha_2": lambda a: a[0, 0, 0]}, r"alpha_2 of \[\]"),
    (naive.ANYBCQ, {"beta_2": lambda b: b[:1]}, r"beta_2 is \[1, 32\] instead of \[2, 32\]"),
    (naive.ANYBCQ, {"beta_2": lambda b: b / 0}, "beta_2 holds NaN"),
    (naive.ANYBCQ | {"parent_precision": None}, {}, "parent_precision=None"),
    (naive.ANYBCQ | {"seed_precision": 3}, {}, "seed_precision=3 and parent_precision=2"),
    (naive.ANYBCQ | {"parent_precision": True}, {}, "parent_precision=True"),
])  # fmt: skip
def test_damage_is_named(config, change, message):
    refused(message, read, config, damaged(change), 32, 64)
