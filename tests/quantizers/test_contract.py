"""What every registered method keeps to, found by name."""

import dataclasses
import subprocess
import sys

import pytest
import torch

from lutlab import formats
from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.tensors import BCQTensor, CalibStats, DenseTensor, UniformTensor
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


def weight(rows=5, in_features=45, seed=0):
    return torch.randn(rows, in_features, generator=torch.Generator().manual_seed(seed))


def statistics(in_features, independent=False):
    """What calibration saw: inputs of different size, each mixed with its neighbour unless independent."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(4 * in_features, in_features, generator=generator)
    x *= torch.linspace(0.5, 2, in_features)
    x[:, 1:] += 0.7 * x[:, :-1]
    hessian = x.t() @ x / len(x)
    if independent:
        hessian = torch.diag(hessian.diagonal())
    return CalibStats(hessian, x.abs().mean(dim=0), len(x))


def quantized(method, w, q, g, independent=False):
    """`method.quantize`, after what it asks for first: this is all that the driver knows of a method."""
    if not isinstance(method, Calibrated):
        return method.quantize(w, q, g)
    return method.quantize(w, q, g, method.prepare(statistics(w.shape[1], independent)))


def fields_of(tensor):
    return [getattr(tensor, field.name) for field in dataclasses.fields(tensor)]


def same(a, b):
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def test_the_methods_of_this_version_are_there():
    assert {"none", "rtn", "bcq", "gptq", "gptq_bcq", "hessian_bcq"} <= set(METHODS)


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


@pytest.mark.parametrize(("q", "g"), [(q, (-1, 8, 32)[q % 3]) for q in range(1, 9)])
@pytest.mark.parametrize("name", OF_ONE_WIDTH)
def test_returns_a_tensor_a_format_packs(name, q, g):
    w = weight()
    before = w.clone()
    tensor = quantized(METHODS[name](), w, q, g)
    assert torch.equal(w, before), "the weight was changed in place"
    assert isinstance(tensor, (DenseTensor, UniformTensor, BCQTensor))
    assert (tensor.bits, tensor.group_size) == (q, g)
    assert tensor.codes.dtype == torch.uint8
    assert int(tensor.codes.max()) < 2**q
    groups = {-1: 1, 8: 6, 32: 2}[g]
    sizes = tensor.scale if isinstance(tensor, UniformTensor) else tensor.alpha
    assert sizes.shape[-2:] == (5, groups)
    packed = formats.pack(tensor)
    out = packed.dequantize()
    assert out.dtype == torch.float32
    assert out.shape == w.shape == packed.shape
    assert torch.isfinite(out).all()
    # A method that looks at inputs lets weights stray where outputs gain from it.
    h = statistics(45).hessian if name in CALIBRATED else torch.eye(45)
    error = out - w
    assert ((error @ h) * error).sum() < ((w @ h) * w).sum(), "worse than no weights at all"


@pytest.mark.parametrize("name", METHODS)
def test_is_deterministic(name):
    first = quantized(METHODS[name](), weight(), 3, 16)
    second = quantized(METHODS[name](), weight(), 3, 16)
    assert all(same(a, b) for a, b in zip(fields_of(first), fields_of(second), strict=True))


@pytest.mark.parametrize(
    "name", [name for name in METHODS if name in OF_ONE_WIDTH or name == "none"]
)
def test_groups_lie_along_in_features(name):
    """Changing column 0 may change the columns of its group in its row, and nothing else."""
    w = weight(4, 64)
    changed = w.clone()
    changed[2, 0] = 10.0
    method = METHODS[name]()
    before = formats.dequantize(quantized(method, w, 3, 16, independent=True))
    after = formats.dequantize(quantized(method, changed, 3, 16, independent=True))
    differs = (before != after).nonzero()
    assert len(differs)
    assert set(differs[:, 0].tolist()) == {2}
    assert differs[:, 1].max() < 16


@pytest.mark.parametrize("name", CALIBRATED)
def test_calibrated_methods_say_what_they_look_at(name):
    method = CALIBRATED[name]()
    assert method.inputs in ("quantized", "full")
    assert isinstance(method.true_sequential, bool)


@pytest.mark.parametrize("name", CALIBRATED)
def test_preparing_leaves_the_statistics_alone(name):
    """One shared input serves several methods, layers and widths."""
    stats, again = statistics(45), statistics(45)
    method = CALIBRATED[name]()
    prepared = method.prepare(stats)
    first = method.quantize(weight(), 3, 16, prepared)
    method.quantize(weight(seed=1), 4, -1, prepared)
    second = method.quantize(weight(), 3, 16, prepared)
    assert all(same(a, b) for a, b in zip(fields_of(first), fields_of(second), strict=True))
    assert torch.equal(stats.hessian, again.hessian)
    assert torch.equal(stats.mean_abs, again.mean_abs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", METHODS)
def test_takes_parameters_of_any_float_type(name, dtype):
    w = torch.nn.Parameter(weight().to(dtype))
    out = formats.dequantize(quantized(METHODS[name](), w, 4, 16))
    again = formats.dequantize(quantized(METHODS[name](), w.detach().float(), 4, 16))
    assert torch.equal(out, again)
    assert not out.requires_grad


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", METHODS)
def test_refuses_weights_that_are_no_numbers(name, bad):
    w = weight()
    w[1, 2] = bad
    with pytest.raises(LutlabError, match=r"1 of 225 weights are inf(,| or) nan"):
        quantized(METHODS[name](), w, 4, 16)


@pytest.mark.parametrize("name", QUANTIZING)
@pytest.mark.parametrize(("q", "g", "message"), [(9, 16, "q=9"), (0, 16, "q=0"), (4, 7, "g=7")])
def test_refuses_bits_and_groups_out_of_range(name, q, g, message):
    with pytest.raises(LutlabError, match=message):
        quantized(METHODS[name](), weight(), q, g)


# AWQ's rule has no grid for a group of equal weights: its range is 1e-5 and its zero point is clamped.
@pytest.mark.parametrize("name", [name for name in QUANTIZING if name != "awq"])
@pytest.mark.parametrize("value", [0.0, 0.75])
def test_constant_weights_are_kept(name, value):
    out = formats.dequantize(quantized(METHODS[name](), torch.full((2, 16), value), 4, 8))
    assert torch.allclose(out, torch.full((2, 16), value), rtol=1e-3, atol=0)


def test_none_keeps_float16_and_refuses_what_overflows():
    method = METHODS["none"]()
    assert torch.equal(method.quantize(weight(), 16, -1).weight, weight().half())
    with pytest.raises(LutlabError, match="65504"):
        method.quantize(torch.full((1, 8), 70000.0), 16, -1)
