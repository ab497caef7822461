"""What may be asked of a product, and why it is not measured here."""

import pytest

from lutlab.errors import LutlabError
from lutlab.evaluators import products
from lutlab.records import ModelSpec, RunSpec


def row(shape="96x80", method="bcq", q=3, g=16, **more):
    source = more.pop("source", "product")
    return RunSpec(ModelSpec("p", source, shape), method, q, g, **more)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("4096x1024", [(4096, 1024, 1)]),
        ("3x5x7", [(3, 5, 7)]),
        ("3x5+5x3", [(3, 5, 1), (5, 3, 1)]),
    ],
)
def test_shapes(text, shapes):
    assert products.shapes_of(row(text)) == shapes


@pytest.mark.parametrize("text", ["4096", "0x4", "4x", "4x5x6x7", "axb", "-4x5", "4x5+"])
def test_what_is_no_shape_is_refused(text):
    with pytest.raises(LutlabError, match="not the shape of a product"):
        products.shapes_of(row(text))


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
        ({"kernel": "int8", "method": "rtn", "q": 8}, "set method=rtn q=8 g=-1"),
        ({"knobs": (("mu", 4),)}, "kernel=auto has no knob 'mu'"),
        ({"knobs": (("mo", 4),), "kernel": "lut_gemm"}, "r0 has no knob 'mo': did you mean 'mu'"),
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


def test_gpu_kernels_are_known_by_the_names_of_their_variants():
    gpu = {"device": "cuda", "dtype": "float16"}
    assert products.obstacle(row(**gpu)) == ""
    assert products.obstacle(row(kernel="r0", **gpu)) == ""
    assert "no CUDA device" in products.obstacle(row(kernel="r0"))
    knobs = (("luts", 4), ("mu", 4))
    assert products.obstacle(row(kernel="lut_gemm", knobs=knobs, **gpu)) == ""
    assert "r0 is a GPU kernel" in products.obstacle(row(kernel="lut_gemm", knobs=knobs))
    assert products.obstacle(row(method="rtn", kernel="optq", **gpu)) == ""
    wide = row(method="rtn", kernel="optq", device="cuda", dtype="float32")
    assert "float16 activations only" in products.obstacle(wide)
    assert "of the CPU kernels" in products.obstacle(row(kernel="int16", **gpu))
