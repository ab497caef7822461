"""hessian_bcq and sweeps of gptq: a row's output error never rises, and falls as far as the equations say."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.quantizers.naive_gptq import correlated
from tests.quantizers.naive_refinement import naive_refinement
from tests.quantizers.test_gptq import quantize, random_weight

from lutlab import formats
from lutlab.base.errors import LutlabError
from lutlab.base.specs import ModelSpec, TextSpec
from lutlab.base.tensors import BCQTensor
from lutlab.compress.calibrate import capture, observe
from lutlab.data import calibration_inputs, load_text
from lutlab.models.families import decoder_blocks, family_of, weight_of
from lutlab.models.load import load_model
from lutlab.quantizers.gptq import GPTQ
from lutlab.quantizers.hessian_bcq import HessianBCQ


def row_errors(weight, tensor, hessian):
    """(W - W_hat) H (W - W_hat)^T of each row, float64."""
    error = formats.dequantize(tensor).double() - weight.double()
    return ((error @ hessian.double()) * error).sum(dim=1)


def exact(tensor):
    """W_hat [N, K] in float64, which no code and coefficient is rounded for."""
    columns = tensor.codes.shape[1]
    length = columns if tensor.group_size == -1 else tensor.group_size

    def spread(of_groups):
        return of_groups.double().repeat_interleave(length, -1)[..., :columns]

    if isinstance(tensor, BCQTensor):
        signs = torch.stack([2.0 * (tensor.codes >> b & 1) - 1 for b in range(tensor.bits)])
        value = (spread(tensor.alpha) * signs).sum(0) + spread(tensor.offset)
    else:
        value = spread(tensor.scale) * (tensor.codes - spread(tensor.zero_point))
    order = torch.arange(columns) if tensor.order is None else tensor.order.long()
    return torch.empty_like(value).index_copy_(1, order, value)


def refining(method, sweeps, **options):
    return (HessianBCQ if method == "hessian_bcq" else GPTQ)(sweeps=sweeps, **options)


@given(
    method=st.sampled_from(["hessian_bcq", "gptq"]),
    q=st.integers(1, 4),
    g=st.sampled_from([-1, 8, 13, 32]),
    rows=st.sampled_from([1, 5]),
    in_features=st.sampled_from([1, 8, 45, 150]),
    tokens=st.sampled_from([3, 40, 500]),
    dead=st.integers(0, 3),
    outlier=st.sampled_from([1.0, 1e3]),
    size=st.sampled_from([1e-2, 1.0, 300.0]),
    act_order=st.booleans(),
    static_groups=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_no_rows_error_ever_rises(
    method, q, g, rows, in_features, tokens, dead, outlier, size, act_order, static_groups, seed
):
    weight = size * random_weight(rows, in_features, seed)
    hessian = correlated(in_features, seed, tokens)
    scale = torch.ones(in_features)
    scale[:1], scale[in_features - dead :] = outlier, 0.0
    hessian = hessian * scale * scale[:, None]
    options = {"act_order": act_order, "static_groups": static_groups}
    found = [quantize(refining(method, n, **options), weight, q, g, hessian) for n in (0, 1, 3)]
    if method == "hessian_bcq":
        found.append(quantize(refining(method, 1, joint=True, **options), weight, q, g, hessian))
    errors, terms = [], []
    for tensor in found:
        left, h = weight.double() * (scale > 0) - exact(tensor), hessian.double()
        errors.append(((left @ h) * left).sum(1))
        terms.append(((left.abs() @ h.abs()) * left.abs()).sum(1))
    for before, after in ((0, 1), (1, 2), (1, 3))[: len(found) - 1]:
        rounding = 1e-14 * (terms[before] + terms[after])  # of float64, here
        assert (errors[after] <= errors[before] + rounding).all()


def signs(codes, q):
    return torch.tensor([[2.0 * (code >> b & 1) - 1 for b in range(q)] for code in codes]).double()


def binary(q):
    def planes(codes):
        return torch.cat((signs(codes, q), torch.ones(len(codes), 1)), dim=1).double()

    def fitted(codes, hessian, wanted, _):
        b = planes(codes)
        normal = b.t() @ hessian @ b
        assume(torch.linalg.matrix_rank(normal) == len(normal))  # else no solution is the only one
        return torch.linalg.solve(normal, b.t() @ wanted).half().double()

    return (lambda a: planes(range(2**q)) @ a), fitted


def uniform(q):
    def words(a):
        return a[0] * (torch.arange(2**q) - a[1])

    def fitted(codes, hessian, wanted, now):
        tried = []
        for zero in range(2**q):
            u = torch.tensor(codes).double() - zero
            if not u.any():
                continue  # any scale is as good; nan would be the least of all
            scale = max(float((u @ wanted) / (u @ hessian @ u)), 1e-4)
            scale = torch.tensor(scale).half().double()
            v = scale * u
            tried.append((float(v @ hessian @ v - 2 * v @ wanted), float(scale), zero))
        return torch.tensor(min(tried)[1:]).double()

    return words, fitted


@settings(max_examples=6)
@given(
    method=st.sampled_from(["hessian_bcq", "gptq"]),
    q=st.integers(1, 3),
    g=st.sampled_from([-1, 8, 16]),
    sweeps=st.integers(1, 2),
    seed=st.integers(0, 2**31),
)
def test_errors_are_those_of_the_equations(method, q, g, sweeps, seed):
    """In most rows equal; a row that parts from the naive one at a tie or at float32's last bit ends near it."""
    weight, hessian = random_weight(4, 24, seed), correlated(24, seed)
    start = quantize(refining(method, 0), weight, q, g, hessian)
    ours = row_errors(weight, quantize(refining(method, sweeps), weight, q, g, hessian), hessian)
    words, fitted = (binary if method == "hessian_bcq" else uniform)(q)
    naive, length = [], 24 if g == -1 else g
    for row, w in enumerate(weight.double()):
        if method == "gptq":
            of_groups = torch.stack((start.scale[row].double(), start.zero_point[row].double()), 1)
        else:
            of_groups = torch.cat((start.alpha[:, row].double(), start.offset[row : row + 1])).t()
        h = hessian.double()
        codes = start.codes[row].tolist()
        codes, found = naive_refinement(w, h, codes, list(of_groups), words, fitted, length, sweeps)
        left = w - torch.stack([words(found[j // length])[code] for j, code in enumerate(codes)])
        naive.append(left @ h @ left)
    naive = torch.stack(naive)
    assert ((ours - naive).abs() <= 1e-4 * naive).float().mean() >= 0.5
    assert ours.sum() == pytest.approx(float(naive.sum()), rel=0.1)


@pytest.mark.parametrize("alpha_dtype", ["fp16", "fp32"])
def test_binary_codes_are_of_gptq_bcqs_form(alpha_dtype):
    weight, hessian = random_weight(8, 96), correlated(96)
    method = HessianBCQ(alpha_dtype=alpha_dtype, offset=False)
    tensor = quantize(method, weight, 3, 40, hessian)
    assert tensor.offset is None
    assert tensor.alpha.dtype == (torch.float16 if alpha_dtype == "fp16" else torch.float32)
    assert (tensor.alpha >= 0).all()
    assert (tensor.alpha.diff(dim=0) <= 0).all()


@pytest.mark.parametrize(("q", "g", "offset"), [(2, 16, True), (3, 20, False)])
def test_joint_least_squares_are_those_of_float64(q, g, offset):
    """No coefficients of a row err less with its codes, but for what float16 takes of them."""
    weight, hessian = random_weight(6, 72), correlated(72)
    method = HessianBCQ(joint=True, sweeps=1, offset=offset, alpha_dtype="fp32")
    tensor = quantize(method, weight, q, g, hessian)
    ours = row_errors(weight, tensor, hessian)
    for row, w in enumerate(weight.double()):
        planes = signs(tensor.codes[row].tolist(), q)
        planes = torch.cat((planes, torch.ones(72, 1).double()), 1) if offset else planes
        b = torch.block_diag(*planes.split(g))
        a = torch.linalg.solve(b.t() @ hessian.double() @ b, b.t() @ hessian.double() @ w)
        assert float(ours[row]) == pytest.approx(
            float((w - b @ a) @ hessian.double() @ (w - b @ a)), rel=1e-3
        )


def test_uniform_codes_take_no_more_bits():
    """A zero point outside of the codes would be stored in 16 bits."""
    weight, hessian = random_weight(16, 96) + 0.5, correlated(96)
    refined, plain = (quantize(GPTQ(sweeps=n), weight, 2, 32, hessian) for n in (3, 0))
    assert formats.pack(refined).bits_stored == formats.pack(plain).bits_stored
    assert (refined.zero_point >= 0).all()
    assert (refined.zero_point <= 3).all()
    assert (refined.scale > 0).all()


@torch.no_grad()
def test_one_group_a_row_beats_gptq_and_gptq_bcq_at_2_bits():
    """On the layers of a block of an embedded model, which read Python's documentation."""
    loaded = load_model(
        ModelSpec("opt-embedded-s", "embedded", "opt-embedded-s"), torch.float32, "cpu", 0
    )
    text = load_text(TextSpec("pydocs-train", "embedded"))
    windows = calibration_inputs("causal_lm", text, loaded.tokenizer, 8, 128, seed=0)
    block, family = decoder_blocks(loaded.model)[0], family_of(loaded.model.config)
    seen = observe(block, capture(loaded.model, windows), family.inputs)
    for shared in family.inputs:
        weight = weight_of(block.get_submodule(shared.layers[0])).detach()
        hessian = seen[shared].hessian
        refined, bcq, gptq = (
            float(row_errors(weight, quantize(method, weight, 2, -1, hessian), hessian).sum())
            for method in (HessianBCQ(), HessianBCQ(sweeps=0), GPTQ())
        )
        assert refined < 0.9 * min(bcq, gptq), shared


def test_blocks_of_rows_change_nothing(monkeypatch):
    weight, hessian = random_weight(7, 40), correlated(40)
    for method in (HessianBCQ(joint=True), GPTQ(sweeps=2)):
        whole = formats.dequantize(quantize(method, weight, 2, 16, hessian))
        with monkeypatch.context() as patched:
            patched.setattr("lutlab.quantizers.refinement.BLOCK_FLOATS", 3 * 8 * 16)
            cut = formats.dequantize(quantize(method, weight, 2, 16, hessian))
        assert torch.allclose(whole, cut, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("sweeps", [-1, 1.5, True])
def test_refuses_sweeps_out_of_range(sweeps):
    for method in (HessianBCQ, GPTQ):
        with pytest.raises(LutlabError, match=f"sweeps={sweeps}"):
            method(sweeps=sweeps)
    with pytest.raises(LutlabError, match="joint='no'"):
        HessianBCQ(joint="no")
