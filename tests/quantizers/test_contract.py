"""What every registered method keeps to, found by name."""

import dataclasses
import subprocess
import sys

import pytest
import torch
from tests.quantizers.weights import assert_same, drawn, quantize, stats_of

import lutlab
from lutlab import formats
from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.tensors import BCQTensor, UniformSecondOrderTensor, UniformTensor
from lutlab.compress import calibrate
from lutlab.quantizers.compensation import factor
from lutlab.quantizers.contract import Calibrated
from lutlab.quantizers.mixed import Mixed
from lutlab.quantizers.stored import STORED

# All that make a tensor of a weight: `stored` reads what others made. Those by code of others are in test_ggml.py.
METHODS = {
    name: cls
    for name, cls in registry.classes("method").items()
    if name != STORED and not cls.libraries
}
QUANTIZING = {name: cls for name, cls in METHODS.items() if cls.quantizes}
# One width of whole bits for all groups; tests/quantizers/test_mixed.py has the others.
OF_ONE_WIDTH = {name: cls for name, cls in QUANTIZING.items() if not issubclass(cls, Mixed)}
CALIBRATED = {name: cls for name, cls in METHODS.items() if issubclass(cls, Calibrated)}


def hessian(in_features=45, independent=False):
    """Of inputs of different size, each mixed with its neighbour unless independent."""
    x = drawn(4 * in_features, in_features, seed=1) * torch.linspace(0.5, 2, in_features)
    x[:, 1:] += 0.7 * x[:, :-1]
    h = x.t() @ x / len(x)
    return torch.diag(h.diagonal()) if independent else h


def quantized(method, w, q, g, independent=False):
    return quantize(method, w, q, g, hessian(w.shape[1], independent))


def dequantized(*arguments, **options):
    return formats.dequantize(quantized(*arguments, **options))


def test_listing_methods_does_not_import_torch():
    program = "import sys; from lutlab.base import registry; registry.classes('method')"
    program += "; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", METHODS)
def test_is_a_frozen_dataclass_with_defaults(name):
    method = METHODS[name]()
    assert "q" not in {field.name for field in dataclasses.fields(method)}
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.anything = 1
    if name in CALIBRATED:
        assert method.inputs in ("quantized", "full")
        assert isinstance(method.true_sequential, bool)


@pytest.mark.parametrize(("q", "g"), [(q, (-1, 8, 32)[q % 3]) for q in range(1, 9)])
@pytest.mark.parametrize("name", OF_ONE_WIDTH)
def test_returns_a_tensor_a_format_packs(name, q, g):
    w = drawn(5, 45)
    tensor = quantized(METHODS[name](), w, q, g)
    assert torch.equal(w, drawn(5, 45)), "the weight was changed in place"
    if isinstance(tensor, UniformSecondOrderTensor):
        tensor = tensor.uniform()
    assert isinstance(tensor, (UniformTensor, BCQTensor))
    assert (tensor.bits, tensor.group_size, tensor.codes.dtype) == (q, g, torch.uint8)
    assert int(tensor.codes.max()) < 2**q
    sizes = tensor.scale if isinstance(tensor, UniformTensor) else tensor.alpha
    assert sizes.shape[-2:] == (5, {-1: 1, 8: 6, 32: 2}[g])
    packed = formats.pack(tensor)
    out = packed.dequantize()
    assert (out.dtype, out.shape, packed.shape) == (torch.float32, w.shape, w.shape)
    assert torch.isfinite(out).all()
    # A method that looks at inputs lets weights stray where outputs gain from it.
    h = hessian() if name in CALIBRATED else torch.eye(45)
    error = out - w
    assert ((error @ h) * error).sum() < ((w @ h) * w).sum(), "worse than no weights at all"


@pytest.mark.parametrize("name", [*OF_ONE_WIDTH, "none"])
def test_groups_lie_along_in_features(name):
    """Changing column 0 may change the columns of its group in its row, and nothing else."""
    changed = drawn(4, 64)
    changed[2, 0] = 10.0
    method = METHODS[name](
        **{"scale_bits": 16} if name == "hessian_uniform" else {}
    )  # no grid a row
    before, after = (
        dequantized(method, w, 3, 16, independent=True) for w in (drawn(4, 64), changed)
    )
    rows, columns = (before != after).nonzero(as_tuple=True)
    assert set(rows.tolist()) == {2}
    assert columns.max() < 16


@pytest.mark.parametrize("name", CALIBRATED)
def test_preparing_leaves_the_statistics_alone(name):
    """One shared input serves several methods, layers and widths."""
    stats, method = stats_of(hessian()), CALIBRATED[name]()
    prepared = method.prepare(stats)
    first = method.quantize(drawn(5, 45), 3, 16, prepared)
    method.quantize(drawn(5, 45, seed=1), 4, -1, prepared)
    assert_same(vars(method.quantize(drawn(5, 45), 3, 16, prepared)), vars(first))
    assert_same(vars(stats), vars(stats_of(hessian())))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", METHODS)
def test_takes_parameters_of_any_float_type(name, dtype):
    w = torch.nn.Parameter(drawn(5, 45).to(dtype))
    out = dequantized(METHODS[name](), w, 4, 16)
    assert_same(out, dequantized(METHODS[name](), w.detach().float(), 4, 16))
    assert not out.requires_grad


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", METHODS)
def test_refuses_weights_that_are_no_numbers(name, bad):
    w = drawn(5, 45)
    w[1, 2] = bad
    with pytest.raises(LutlabError, match=r"1 of 225 weights are inf(,| or) nan"):
        quantized(METHODS[name](), w, 4, 16)


@pytest.mark.parametrize("name", QUANTIZING)
@pytest.mark.parametrize(("q", "g", "message"), [(9, 16, "q=9"), (0, 16, "q=0"), (4, 7, "g=7")])
def test_refuses_bits_and_groups_out_of_range(name, q, g, message):
    with pytest.raises(LutlabError, match=message):
        quantized(METHODS[name](), drawn(5, 45), q, g)


@pytest.mark.parametrize(("name", "options", "message"), [
    ("rtn", {"variant": "gtpq"}, "did you mean 'gptq'"),
    ("bcq", {"rounds": 0}, "rounds=0: give a whole number of at least 1"),
    ("bcq", {"solver": "greedy", "offset": True}, "solver=alternating with offset=true"),
    ("gptq", {"inputs": "full", "true_sequential": True}, "inputs=quantized"),
    ("gptq", {"target": "outputs", "inputs": "full"}, "errors of the layers before, which inputs=full"),
    ("gptq", {"first_token": 50.0, "inputs": "full"}, "inputs=quantized, or first_token=1"),
    ("gptq", {"first_token": 0.5}, "first_token=0.5: give"),
    ("gptq", {"target": "outputs"}, "give true_sequential=true"),
    ("gptq", {"hessian": "gradients", "inputs": "full"}, "use inputs=quantized"),
    ("gptq", {"hessian": "gradients", "act_order": True}, "drop one of them"),
    ("gptq", {"output_groups": 0}, "output_groups=0"), ("gptq", {"damp": -0.1}, "damp=-0.1"),
    ("gptq", {"block_size": 0}, "block_size=0"), ("hessian_bcq", {"joint": "no"}, "joint='no'"),
    *((name, {"sweeps": bad}, f"sweeps={bad}") for name in ("gptq", "hessian_bcq") for bad in (-1, 1.5, True)),
    ("gptq_bcq", {"rounds": 0}, "of at least"), ("gptq_bcq", {"damp": -1}, "of at least"),
    ("awq", {"grid": 0}, "grid=0"), ("awq", {"true_sequential": True}, "inputs=quantized"),
    ("mixed_2_4_16", {"outliers": 0.06}, r"of at least 0 and at most 0\.05"),
    ("mixed_2_4_16", {"outliers": -0.1}, r"of at least 0 and at most 0\.05"),
    ("mixed_2_4_16", {"sensitivity": "choleski"}, "did you mean 'cholesky'"),
    ("mixed_2_4_16", {"wide_scale": "column"}, "wide_scale"), ("mixed_2_4_16", {"scale_group": 0}, "scale_group=0"),
])  # fmt: skip
def test_refuses_options_out_of_range(name, options, message):
    with pytest.raises(LutlabError, match=message):
        METHODS[name](**options)


@pytest.mark.parametrize(("name", "options", "q", "size", "message"), [
    ("none", {}, 16, 7e4, "65504"), ("rtn", {}, 2, 1e7, "beyond fp16"),
    ("rtn", {"scale_dtype": "fp32"}, 2, 3e38, "beyond fp32"), ("bcq", {}, 2, 1e6, "alpha_dtype=fp32"),
    ("bcq", {"solver": "greedy"}, 2, 1e6, "alpha_dtype=fp32"), ("gptq_bcq", {}, 2, 1e6, "alpha_dtype=fp32"),
    ("mixed_2_4_16", {}, 2, 1e7, "beyond float16"), ("mixed_2_4_16", {}, 4, 1e7, "a row span .* beyond float16"),
])  # fmt: skip
def test_refuses_coefficients_beyond_the_stored_type(name, options, q, size, message):
    w = size * torch.tensor([1.0, -1.0]).repeat(16, 16)
    with pytest.raises(LutlabError, match=message):
        quantized(METHODS[name](**options), w, q, 16)


# AWQ's rule has no grid for a group of equal weights: its range is 1e-5 and its zero point is clamped.
@pytest.mark.parametrize("name", [name for name in QUANTIZING if name != "awq"])
@pytest.mark.parametrize("value", [0.0, 0.75])
def test_constant_weights_are_kept(name, value):
    w = torch.full((2, 16), value)
    out = dequantized(METHODS[name](), w, 4, 8)
    torch.testing.assert_close(out, w, rtol=1e-3, atol=0)


def test_none_keeps_float16():
    assert_same(METHODS["none"]().quantize(drawn(5, 45), 16, -1).weight, drawn(5, 45).half())


@pytest.mark.parametrize("method", QUANTIZING)
def test_threads_change_nothing(method, on_threads):
    def stored():
        inputs = drawn(700, 512)
        return lutlab.quantize_tensor(drawn(96, 512), method, q=3, g=128, inputs=inputs).buffers

    assert_same(on_threads(1, stored), on_threads(2, stored))


def test_threads_do_not_change_second_moments_and_their_factor(on_threads):
    def made():
        stats = calibrate.stats_of(drawn(1100, 512))
        factored = factor(stats.hessian, 0.01)
        return stats.hessian, factored.feedback, factored.pivots

    assert_same(on_threads(1, made), on_threads(2, made))
