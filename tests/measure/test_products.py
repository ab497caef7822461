"""What may be asked of a product, why it is not measured here, and what it is timed with."""

import pytest
import torch

from lutlab.base.errors import LutlabError
from lutlab.base.specs import ProductRun
from lutlab.base.tensors import BCQTensor, UniformTensor
from lutlab.measure import products

SHAPE = (96, 80, 1)


def row(shape="96x80", method="bcq", q=3, g=16, **more):
    return ProductRun(products.parse_shapes(shape), method, q, g, **more)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("4096x1024", ((4096, 1024, 1),)),
        ("3x5x7", ((3, 5, 7),)),
        ("3x5+5x3", ((3, 5, 1), (5, 3, 1))),
    ],
)
def test_shapes(text, shapes):
    assert products.parse_shapes(text) == shapes


@pytest.mark.parametrize("text", ["4096", "0x4", "4x", "4x5x6x7", "axb", "-4x5", "4x5+"])
def test_what_is_no_shape_is_refused(text):
    with pytest.raises(LutlabError, match="not the shape of a product"):
        products.parse_shapes(text)


def test_what_cannot_be_measured_says_why():
    assert products.obstacle(row()) == ""
    assert products.obstacle(row(method="none", q=16, g=-1)) == ""
    for kernel, reason in products.ABSENT.items():
        assert products.obstacle(row(kernel=kernel)) == reason


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": "otpq"}, "did you mean 'optq'"),
        (
            {"kernel": "small_tables"},
            "did you mean 'lane_tables'.*known: .*bit_planes.*paper",
        ),
        ({"kernel": "r1"}, "unknown kernel 'r1': .*known: .*bit_planes.*paper"),
        ({"method": "gptq"}, "weights are drawn"),
        ({"kernel": "optq"}, "set method=rtn q=3"),
        ({"kernel": "optq", "method": "rtn", "q": 5}, "2 to 4 bits"),
        ({"kernel": "int8", "method": "rtn", "q": 8}, "set method=rtn q=8 g=-1"),
        ({"knobs": (("mu", 4),)}, "kernel=auto has no knob 'mu'"),
        (
            {"knobs": (("mo", 4),), "kernel": "lut_gemm"},
            "paper has no knob 'mo': did you mean 'mu'",
        ),
        ({"kernel": "mixed_sync"}, "take kernel=auto, or one of optq, paper"),
        ({"method": "mixed_2_4_16", "kernel": "r3"}, "or one of mixed_async, mixed_sync"),
        ({"method": "mixed_2_4_16", "kernel": "lut_gemm"}, "multiplies binary codes"),
        ({"dtype": "float16"}, "timed in float32"),
        ({"kernel": "tensor_parallel_8"}, "dense weights only: set method=none"),
        ({"kernel": "tensor_parallel_1"}, "unknown kernel"),
        ({"kernel": "tensor_parallel_08"}, "unknown kernel"),
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
    for kernel in ("paper", "r0"):
        assert products.variant_of(kernel) == "paper"
        assert products.obstacle(row(kernel=kernel, **gpu)) == ""
    assert products.obstacle(row(kernel="paper", knobs=(("luts", 4), ("mu", 2)))) == ""
    assert "no CUDA device" in products.obstacle(row(kernel="lane_tables"))
    with pytest.raises(LutlabError, match="multiplies binary codes: set method=bcq"):
        products.obstacle(row(method="rtn", kernel="paper"))
    knobs = (("luts", 4), ("mu", 4))
    assert products.obstacle(row(kernel="lut_gemm", knobs=knobs, **gpu)) == ""
    assert "paper is a GPU kernel" in products.obstacle(row(kernel="lut_gemm", knobs=knobs))
    assert products.obstacle(row(method="rtn", kernel="optq", **gpu)) == ""
    wide = row(method="rtn", kernel="optq", device="cuda", dtype="float32")
    assert "float16 activations only" in products.obstacle(wide)
    bfloat = {"device": "cuda", "dtype": "bfloat16"}
    assert (
        products.obstacle(row(**bfloat))
        == products.obstacle(row(kernel="bit_planes", **bfloat))
        == ""
    )
    for kernel in ("paper", "lut_gemm"):
        assert "and not in bfloat16" in products.obstacle(row(kernel=kernel, **bfloat))
    assert "of the CPU kernels" in products.obstacle(row(kernel="int16", **gpu))


def test_what_gpus_share_needs_as_many(monkeypatch):
    def dense(gpus=8, **more):
        return row(method="none", q=16, g=-1, kernel=f"tensor_parallel_{gpus}", **more)

    on_gpus = {"device": "cuda", "dtype": "float16"}
    assert products.gpus_of(dense(16)) == 16
    assert products.gpus_of(row(kernel="paper")) == 1
    assert products.obstacle(dense()) == "needs 8 GPUs, and there is no CUDA device"
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    assert products.obstacle(dense(**on_gpus)) == "needs 8 GPUs, this machine has 2"
    assert products.obstacle(dense(2, **on_gpus)) == ""
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert "built without it" in products.obstacle(dense(2, **on_gpus))
    for change, message in (
        ({"device": "cuda:1"}, "takes the first 8 GPUs: set device=cuda"),
        ({"shape": "96x80+20x96"}, "20 rows do not divide by 8"),
        ({"knobs": (("mu", 4),)}, "tensor_parallel_8 has no knob 'mu'"),
    ):
        with pytest.raises(LutlabError, match=message):
            products.obstacle(dense(**change))


def test_drawn_weights_are_the_methods_and_the_seeds():
    bcq = products.draw(row(options=(("offset", True),)), SHAPE, 16)
    assert isinstance(bcq, BCQTensor)
    assert (bcq.codes.shape, bcq.alpha.shape, bcq.offset.shape) == ((96, 80), (3, 96, 5), (96, 5))
    assert bcq.codes.unique().tolist() == list(range(8))
    assert products.draw(row(), SHAPE, 16).offset is None
    assert bcq.alpha.dtype == bcq.offset.dtype == torch.float16
    wide = products.draw(row(options=(("alpha_dtype", "fp32"),)), SHAPE, 16)
    assert wide.alpha.dtype == torch.float32
    uniform = products.draw(row(method="rtn", q=4), SHAPE, -1)
    assert isinstance(uniform, UniformTensor)
    assert uniform.scale.shape == (96, 1)
    assert torch.equal(uniform.codes, products.draw(row(method="rtn", q=4), SHAPE, -1).codes)
    other = products.draw(row(method="rtn", q=4, seed=1), SHAPE, -1)
    assert not torch.equal(uniform.codes, other.codes)


def test_operands_are_the_seeds_and_only_dense_rows_have_a_weight():
    x, weight = products.operands(row(method="none", q=16, g=-1), (96, 80, 2))
    assert (x.shape, weight.shape) == ((2, 80), (96, 80))
    assert torch.equal(x, products.operands(row(), (96, 80, 2))[0])
    assert products.operands(row(), SHAPE)[1] is None


def test_the_exact_product_is_cut_into_rows(monkeypatch):
    monkeypatch.setattr(products, "_CHECKED_WEIGHTS", 3 * 80)  # rows of W three by three
    x, weight = torch.randn(2, 80), torch.randn(10, 80)
    found = products.exact_product(x, weight)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, x.double() @ weight.double().t(), rtol=0, atol=1e-12)
