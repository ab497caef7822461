"""What a product is timed with, and the product against which it is checked."""

import torch

from lutlab.measure import drawn
from lutlab.specs import ProductRun
from lutlab.tensors import BCQTensor, UniformTensor

SHAPE = (96, 80, 1)


def row(method="bcq", q=3, g=16, **more):
    return ProductRun(((96, 80, 1),), method, q, g, **more)


def test_drawn_weights_are_the_methods_and_the_seeds():
    bcq = drawn.draw(row(options=(("offset", True),)), SHAPE, 16)
    assert isinstance(bcq, BCQTensor)
    assert (bcq.codes.shape, bcq.alpha.shape, bcq.offset.shape) == ((96, 80), (3, 96, 5), (96, 5))
    assert bcq.codes.unique().tolist() == list(range(8))
    assert drawn.draw(row(), SHAPE, 16).offset is None
    assert bcq.alpha.dtype == bcq.offset.dtype == torch.float16
    wide = drawn.draw(row(options=(("alpha_dtype", "fp32"),)), SHAPE, 16)
    assert wide.alpha.dtype == torch.float32
    uniform = drawn.draw(row(method="rtn", q=4), SHAPE, -1)
    assert isinstance(uniform, UniformTensor)
    assert uniform.scale.shape == (96, 1)
    assert torch.equal(uniform.codes, drawn.draw(row(method="rtn", q=4), SHAPE, -1).codes)
    other = drawn.draw(row(method="rtn", q=4, seed=1), SHAPE, -1)
    assert not torch.equal(uniform.codes, other.codes)


def test_operands_are_the_seeds_and_only_dense_rows_have_a_weight():
    x, weight = drawn.operands(row("none", 16, -1), (96, 80, 2))
    assert (x.shape, weight.shape) == ((2, 80), (96, 80))
    assert torch.equal(x, drawn.operands(row(), (96, 80, 2))[0])
    assert drawn.operands(row(), SHAPE)[1] is None


def test_the_exact_product_is_cut_into_rows(monkeypatch):
    monkeypatch.setattr(drawn, "_CHECKED_WEIGHTS", 3 * 80)  # rows of W three by three
    x, weight = torch.randn(2, 80), torch.randn(10, 80)
    found = drawn.exact_product(x, weight)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, x.double() @ weight.double().t(), rtol=0, atol=1e-12)
