"""Products against float64, and what stands beside them; how fast they are, is no test."""

import dataclasses

import pytest
import torch

from lutlab.errors import LutlabError
from lutlab.evaluators import products
from lutlab.formats import pack
from lutlab.kernels import linear
from lutlab.records import BCQTensor, ModelSpec, RunSpec, UniformTensor

OFFSET = (("offset", True),)


def row(shape="96x80", method="bcq", q=3, g=16, **more):
    source = more.pop("source", "product")
    return RunSpec(ModelSpec("p", source, shape), method, q, g, **more)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """A few copies of small weights instead of ten caches full."""
    monkeypatch.setattr(products, "COLD_LIMIT", 20_000)


@pytest.mark.parametrize(("text", "shape"), [("4096x1024", (4096, 1024, 1)), ("3x5x7", (3, 5, 7))])
def test_a_shape(text, shape):
    assert products.shape_of(row(text)) == shape


@pytest.mark.parametrize("text", ["4096", "0x4", "4x", "4x5x6x7", "axb", "-4x5"])
def test_what_is_no_shape_is_refused(text):
    with pytest.raises(LutlabError, match="not the shape of a product"):
        products.shape_of(row(text))


def test_what_cannot_be_measured_says_why():
    assert products.obstacle(row()) == ""
    assert products.obstacle(row(method="none", q=16, g=-1)) == ""
    assert "not of a model" in products.obstacle(row(source="embedded"))
    for kernel, reason in products.ABSENT.items():
        assert products.obstacle(row(kernel=kernel)) == reason
    assert "needs 8 GPUs" in products.obstacle(row(kernel="tensor_parallel_8"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": "otpq"}, "did you mean 'optq'"),
        ({"method": "gptq"}, "weights are drawn"),
        ({"kernel": "optq"}, "set method=rtn q=3"),
        ({"kernel": "optq", "method": "rtn", "q": 5}, "2 to 4 bits"),
        ({"dtype": "float16"}, "timed in float32"),
        ({"device": "spread"}, "one device"),
        ({"shape": "96"}, "not the shape"),
    ],
)
def test_mistakes_are_refused(change, message):
    with pytest.raises(LutlabError, match=message):
        products.obstacle(row(**change))


def test_without_a_compiler_nothing_runs_and_the_reason_is_told(monkeypatch):
    monkeypatch.setenv("LUTLAB_CC", "/nowhere/cc")
    assert "/nowhere/cc" in products.obstacle(row())


def test_drawn_weights_are_the_methods_and_the_seeds():
    bcq = products.draw(row(options=OFFSET), 16)
    assert isinstance(bcq, BCQTensor)
    assert (bcq.codes.shape, bcq.alpha.shape, bcq.offset.shape) == ((96, 80), (3, 96, 5), (96, 5))
    assert bcq.codes.unique().tolist() == list(range(8))
    assert products.draw(row(), 16).offset is None
    uniform = products.draw(row(method="rtn", q=4), -1)
    assert isinstance(uniform, UniformTensor)
    assert uniform.scale.shape == (96, 1)
    assert torch.equal(uniform.codes, products.draw(row(method="rtn", q=4), -1).codes)
    other = products.draw(row(method="rtn", q=4, seed=1), -1)
    assert not torch.equal(uniform.codes, other.codes)


@pytest.mark.parametrize(
    "spec",
    [
        row(),
        row("96x80x5", options=OFFSET),
        row(method="rtn", q=4, g=16),
        row(method="rtn", q=3, g=32, kernel="optq", shape="96x96"),
    ],
    ids=["bcq", "five rows of x", "uniform", "optq"],
)
def test_every_copy_multiplies_by_the_drawn_matrix(spec):
    found = products.entrants(spec)
    _, columns, tokens = products.shape_of(spec)
    x = torch.randn(tokens, columns, generator=torch.Generator().manual_seed(spec.seed + 1))
    weight = pack(products.draw(spec, spec.g)).dequantize().double()
    for one in (found.own, found.fp32):
        assert one.copies >= 2
        for copy in range(one.copies):
            torch.testing.assert_close(
                one.run(copy).double(), x.double() @ weight.t(), rtol=1e-4, atol=1e-4
            )
    rowwise = pack(products.draw(spec, -1)).dequantize().double()
    torch.testing.assert_close(
        found.rowwise.run(0).double(), x.double() @ rowwise.t(), rtol=1e-4, atol=1e-4
    )
    assert found.fp16 is found.fp32, "on a CPU, torch's float32 product stands in for cuBLAS"
    assert found.all() == [found.memory, found.fp32, found.own, found.rowwise]
    assert found.facts["kernel"] == found.own.name != found.fp32.name


def test_a_dense_row_is_its_own_baseline():
    found = products.entrants(row(method="none", q=16, g=-1))
    assert found.own is found.fp16
    assert found.rowwise is None
    assert found.all() == [found.memory, found.fp32]


def test_row_wise_weights_have_nothing_to_be_normalized_by():
    assert products.entrants(row(g=-1)).rowwise is None
    assert products.entrants(row(g=80)).rowwise is None


def test_a_wrong_product_is_not_timed(monkeypatch):
    right = linear.cpu_linear

    def wrong(packed):
        found = right(packed)
        return dataclasses.replace(
            found, packed=dataclasses.replace(found.packed, stream=found.packed.stream.flip(0))
        )

    monkeypatch.setattr(linear, "cpu_linear", wrong)
    with pytest.raises(LutlabError, match="is wrong"):
        products.entrants(row())


def test_relative_error_is_that_of_the_whole_product(monkeypatch):
    monkeypatch.setattr(products, "_CHECKED_WEIGHTS", 3 * 80)  # rows of W three by three
    x, weight = torch.randn(2, 80), torch.randn(10, 80)
    exact = x.double() @ weight.double().t()
    assert products.relative_error(exact, x, weight) < 1e-15
    assert products.relative_error(1.25 * exact, x, weight) == pytest.approx(0.25)
