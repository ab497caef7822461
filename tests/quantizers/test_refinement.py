"""hessian_bcq and sweeps of gptq: a row's output error never rises, and falls as far as the equations say."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.quantizers.naive_grids import planes_of
from tests.quantizers.naive_refinement import naive_refinement
from tests.quantizers.weights import correlated, drawn, exact, output_error, quantize, row_errors

from lutlab import formats
from lutlab.base.specs import ModelSpec, TextSpec
from lutlab.compress.calibrate import capture, observe
from lutlab.data import calibration_inputs, load_text
from lutlab.models.families import decoder_blocks, family_of, weight_of
from lutlab.models.load import load_model
from lutlab.quantizers.gptq import GPTQ
from lutlab.quantizers.hessian_bcq import HessianBCQ

METHOD = st.sampled_from([HessianBCQ, GPTQ])
DAMP = st.sampled_from([0.0, 1.0])
SEED = st.integers(0, 2**31)


def damped(hessian, damp):
    hessian = hessian.double()
    return hessian + damp * hessian.diagonal().mean() * torch.eye(len(hessian))


@given(
    method=METHOD, q=st.integers(1, 4), g=st.sampled_from([-1, 8, 13, 32]), rows=st.sampled_from([1, 5]),
    in_features=st.sampled_from([1, 8, 45, 150]), tokens=st.sampled_from([3, 40, 500]), dead=st.integers(0, 3),
    outlier=st.sampled_from([1.0, 1e3]), size=st.sampled_from([1e-2, 1.0, 300.0]),
    order=st.fixed_dictionaries({"act_order": st.booleans(), "static_groups": st.booleans()}),
    damp=DAMP, seed=SEED,
)  # fmt: skip
def test_no_rows_error_ever_rises(
    method, q, g, rows, in_features, tokens, dead, outlier, size, order, damp, seed
):
    weight = size * drawn(rows, in_features, seed=seed)
    scale = torch.ones(in_features)
    scale[:1], scale[in_features - dead :] = outlier, 0.0
    hessian = correlated(in_features, seed, tokens) * scale * scale[:, None]
    ways = [{"sweeps": 0}, {"sweeps": 1}, {"sweeps": 3}]
    ways += [{"sweeps": 1, "joint": True}] if method is HessianBCQ else []
    errors, terms = [], []
    for way in ways:
        tensor = quantize(method(**way, **order, sweep_damp=damp), weight, q, g, hessian)
        left, h = weight.double() * (scale > 0) - exact(tensor), damped(hessian, damp)
        errors.append(((left @ h) * left).sum(1))
        terms.append(((left.abs() @ h.abs()) * left.abs()).sum(1))
    for before, after in ((0, 1), (1, 2), (1, 3))[: len(ways) - 1]:
        rounding = 1e-14 * (terms[before] + terms[after])  # of float64, here
        assert (errors[after] <= errors[before] + rounding).all()


def binary(q):
    def fitted(codes, hessian, wanted, _):
        b = planes_of(codes, q, True)
        normal = b.t() @ hessian @ b
        assume(torch.linalg.matrix_rank(normal) == len(normal))  # else no solution is the only one
        return torch.linalg.solve(normal, b.t() @ wanted).half().double()

    return (lambda a: planes_of(range(2**q), q, True) @ a), fitted


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
@given(METHOD, st.integers(1, 3), st.sampled_from([-1, 8, 16]), st.integers(1, 2), DAMP, SEED)
def test_errors_are_those_of_the_equations(method, q, g, sweeps, damp, seed):
    """In most rows equal; a row that parts from the naive one at a tie or at float32's last bit ends near it."""
    weight, hessian = drawn(4, 24, seed=seed), correlated(24, seed)
    one = {"sweep_damp": damp} | ({"starts": "fitted"} if method is HessianBCQ else {})
    start, refined = (quantize(method(sweeps=n, **one), weight, q, g, hessian) for n in (0, sweeps))
    h = damped(hessian, damp)
    ours = row_errors(weight, refined, h)
    words, fitted = (binary if method is HessianBCQ else uniform)(q)
    naive, length = [], 24 if g == -1 else g
    for row, w in enumerate(weight.double()):
        if method is GPTQ:
            of_groups = torch.stack((start.scale[row].double(), start.zero_point[row].double()), 1)
        else:
            of_groups = torch.cat((start.alpha[:, row].double(), start.offset[row : row + 1])).t()
        codes, coefficients = naive_refinement(
            w, h, start.codes[row].tolist(), list(of_groups), words, fitted, length, sweeps
        )
        values = [words(coefficients[j // length])[code] for j, code in enumerate(codes)]
        left = w - torch.stack(values)
        naive.append(left @ h @ left)
    naive = torch.stack(naive)
    assert ((ours - naive).abs() <= 1e-4 * naive).float().mean() >= 0.5
    assert ours.sum() == pytest.approx(float(naive.sum()), rel=0.1)


@pytest.mark.parametrize(
    ("q", "g", "order"), [(2, 16, {}), (3, 20, {"act_order": True}), (4, -1, {})]
)
def test_a_row_errs_no_more_than_from_either_start_nor_than_by_gptq(q, g, order):
    """Rows whose outputs rest on few large weights are better from GPTQ's grid."""
    weight, hessian = drawn(24, 96), correlated(96)
    weight[:12, ::16] *= 6
    strong = torch.ones(96)
    strong[::16] = 30
    hessian *= strong * strong[:, None]
    options = {"alpha_dtype": "fp32", "sweeps": 1, **order}
    methods = HessianBCQ(**options), HessianBCQ(starts="fitted", **options), GPTQ(**order)
    best, fitted, gptq = (
        row_errors(weight, quantize(method, weight, q, g, hessian), hessian) for method in methods
    )
    assert (best <= (1 + 1e-9) * fitted).all()
    assert (best <= (1 + 1e-6) * gptq).all(), "in binary form, in float32"
    assert (best < 0.9 * fitted).any()


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("fp32", torch.float32)])
def test_binary_codes_are_of_gptq_bcqs_form(name, dtype):
    method = HessianBCQ(alpha_dtype=name, offset=False)
    tensor = quantize(method, drawn(8, 96), 3, 40, correlated(96))
    assert (tensor.offset, tensor.alpha.dtype) == (None, dtype)
    assert (tensor.alpha >= 0).all()
    assert (tensor.alpha.diff(dim=0) <= 0).all()


@pytest.mark.parametrize(("q", "g", "offset"), [(2, 16, True), (3, 20, False)])
def test_joint_least_squares_are_those_of_float64(q, g, offset):
    """No coefficients of a row err less with its codes, but for what float16 takes of them."""
    weight, hessian = drawn(6, 72), correlated(72)
    method = HessianBCQ(joint=True, sweeps=1, offset=offset, alpha_dtype="fp32")
    tensor, h = quantize(method, weight, q, g, hessian), hessian.double()
    ours = row_errors(weight, tensor, hessian)
    for row, w in enumerate(weight.double()):
        b = torch.block_diag(*planes_of(tensor.codes[row], q, offset).split(g))
        left = w - b @ torch.linalg.solve(b.t() @ h @ b, b.t() @ h @ w)
        assert float(ours[row]) == pytest.approx(float(left @ h @ left), rel=1e-3)


def test_uniform_codes_take_no_more_bits():
    """A zero point outside of the codes would be stored in 16 bits."""
    weight, hessian = drawn(16, 96) + 0.5, correlated(96)
    refined, plain = (quantize(GPTQ(sweeps=n), weight, 2, 32, hessian) for n in (3, 0))
    assert formats.pack(refined).bits_stored == formats.pack(plain).bits_stored
    assert set(refined.zero_point.unique().tolist()) <= {0, 1, 2, 3}
    assert (refined.scale > 0).all()


@torch.no_grad()
def test_one_group_a_row_beats_gptq_and_gptq_bcq_at_2_bits():
    """On the layers of a block of an embedded model, which read Python's documentation."""
    model = ModelSpec("opt-embedded-s", "embedded", "opt-embedded-s")
    loaded = load_model(model, torch.float32, "cpu", 0)
    text = load_text(TextSpec("pydocs-train", "embedded"))
    windows = calibration_inputs("causal_lm", text, loaded.tokenizer, 8, 128, seed=0)
    block, family = decoder_blocks(loaded.model)[0], family_of(loaded.model.config)
    seen = observe(block, capture(loaded.model, windows), family.inputs)
    for shared in family.inputs:
        weight = weight_of(block.get_submodule(shared.layers[0])).detach()
        hessian = seen[shared].hessian
        methods = HessianBCQ(), HessianBCQ(sweeps=0), GPTQ()
        refined, bcq, gptq = (output_error(method, weight, 2, -1, hessian) for method in methods)
        assert refined < 0.9 * min(bcq, gptq), shared


@pytest.mark.parametrize(
    "method", [HessianBCQ(joint=True), HessianBCQ(alpha_bits=4), GPTQ(sweeps=2)]
)
def test_blocks_of_rows_change_nothing(method, monkeypatch):
    def out():
        return formats.dequantize(quantize(method, drawn(7, 40), 2, 16, correlated(40)))

    whole = out()
    monkeypatch.setattr("lutlab.quantizers.refinement.BLOCK_FLOATS", 3 * 8 * 16)
    torch.testing.assert_close(out(), whole, rtol=1e-3, atol=1e-6)
