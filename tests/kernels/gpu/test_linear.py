"""The kernel chosen for a weight on a GPU, and the operations torch sees, over the stand-in GPU and on a real one."""

import copy

import pytest
import torch
from tests.kernels.checks import BF16, F16, F32, inputs, one_operation, refused, relative_error
from tests.kernels.gpu import test_lut_gemv
from tests.kernels.weights import (
    bcq_tensor,
    second_order_tensor,
    uniform_second_order_tensor,
    uniform_tensor,
)
from tests.quantizers.weights import assert_same

from lutlab import modules
from lutlab.formats import bcq, pack
from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.uniform import PackedUniform
from lutlab.kernels import ran
from lutlab.kernels.contract import decoded
from lutlab.kernels.gpu import choice
from lutlab.kernels.gpu.dequantize import dequantize
from lutlab.kernels.gpu.linear import LutGemv
from lutlab.kernels.gpu.lut_gemv import launcher
from lutlab.modules import QuantLinear

gpu = test_lut_gemv.gpu
N, K = 40, 96
WEIGHTS = {
    "planes": lambda: bcq.pack(bcq_tensor(N, K, 3, 32, offset="f32", ordered=True)),
    "codes": lambda: PackedUniform.pack(uniform_tensor(N, K, 4, 32, ordered=True)),
    "planes, second order": lambda: pack(second_order_tensor(N, K, 3, 32, ordered=True)),
    "codes, second order": lambda: pack(uniform_second_order_tensor(N, K, 4, 32, ordered=True)),
    "float offset": lambda: PackedUniform.pack(uniform_tensor(N, K, 4, 32, shift="f16")),
}
LIMITS = {F16: 2e-3, BF16: 8e-3, F32: 1e-6}


@pytest.fixture
def named_gpu(gpu, monkeypatch, tmp_path):
    monkeypatch.setattr(choice, "cache_folder", lambda: tmp_path)  # of races; kernels stay built
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a stand-in")
    return gpu


@pytest.fixture
def few_are_two(named_gpu, monkeypatch):
    """Up to two rows of x are multiplied by a kernel, as if a race had shown that."""

    def choose(case, *_):
        return ("lane_tables" if case.m < 3 else choice.DENSE), choice.RACE

    monkeypatch.setattr(choice, "choose", choose)


def gpu_linear(packed, dtype=F32, **options):
    """The execution on the stand-in, whose device is called cpu."""
    return LutGemv().prepare(packed, torch.device("cpu"), 1, dtype, **options)


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_multiplies_few_rows_and_many(few_are_two, kind, dtype):
    packed = WEIGHTS[kind]()
    linear, bias = gpu_linear(packed, dtype), torch.ones(N, dtype=dtype)
    ran.take()
    for rows in (1, 2, 3, 40):
        x = inputs(rows, K, dtype)
        y = linear(x, bias)
        assert ran.take() == [linear.describe(rows, dtype)]
        assert y.dtype == dtype
        assert relative_error(y.double() - 1, x, packed.dequantize()) < LIMITS[dtype]
    assert list(linear.products) == [(dtype, "lane_tables")]
    race = "chosen by a race on this machine"
    assert linear.describe(2, dtype).endswith(f", {str(dtype)[6:]} x, {race}")
    assert linear.describe(3, dtype) == f"dequantize every call, cuBLAS ({race})"
    assert torch.equal(linear.dense(), packed.dequantize())
    assert_same(linear.packed.buffers, packed.buffers)
    planes = decoded(packed)[0].to_bcq()
    plain = planes.planes.nbytes + planes.alpha.nbytes + planes.offset.nbytes
    assert linear.bytes_read(3, dtype) == plain
    assert linear.bytes_read(1, dtype) > 0


@pytest.mark.parametrize("rows", [1, 40])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_copies_share_no_weights(few_are_two, kind, rows):
    packed, x = WEIGHTS[kind](), inputs(rows, K)
    first = gpu_linear(packed).ready(rows, F32)
    expected = first(x)
    second = first.copy()
    plain = rows > 3 and not kind.startswith("planes")
    read = [w.planes if plain else next(iter(w.weights.values())) for w in (first, second)]
    ours, theirs = (weight.buffers["planes"] for weight in read)
    assert ours.data_ptr() != theirs.data_ptr()
    ours.zero_()
    assert torch.equal(second(x), expected)
    assert not torch.equal(first(x), expected)


def test_a_named_variant_takes_every_x_with_its_knobs(named_gpu):
    packed, x = WEIGHTS["codes"](), inputs(1, K, F16)
    linear = gpu_linear(packed, F16, variant="paper", knobs={"mu": 4})
    assert linear.describe(1, F16).startswith("lut_gemv paper (")
    assert "mu=4" in linear.describe(40, F16)
    assert relative_error(linear(x), x, packed.dequantize()) < 2e-3
    refused("knobs .* belong to a variant", gpu_linear, packed, knobs={"mu": 4})
    refused("lut_gemv has no option 'variants'", gpu_linear, packed, variants="paper")
    for kind in ("planes", "float offset"):
        message = "no uniform codes with one scale a group"
        refused(message, gpu_linear, WEIGHTS[kind](), F16, variant="uniform_mma")


@pytest.mark.parametrize("g", [8, 40])
def test_bfloat16_with_groups_that_only_r0_takes(named_gpu, g):
    packed = bcq.pack(bcq_tensor(N, K, 3, g, offset="f32"))
    linear, x = gpu_linear(packed, BF16), inputs(1, K, BF16)
    y = linear(x)
    assert y.dtype == BF16
    assert relative_error(y, x, packed.dequantize()) < LIMITS[BF16]
    assert "lut_gemv paper (" in linear.describe(1, BF16)
    assert "float32 x" in linear.describe(1, BF16)


def test_the_variant_goes_by_format_type_and_rows(named_gpu):
    codes, planes = (gpu_linear(WEIGHTS[kind](), F16) for kind in ("codes", "planes"))
    for linear in (codes, planes):
        for dtype in (F16, BF16, F32):
            for rows in (1, 16):
                linear(inputs(rows, K, dtype))
    mma = [(F16, "uniform_mma"), (BF16, "uniform_mma")]
    assert list(codes.products) == [*mma, (F32, "bit_planes")]
    assert list(planes.products) == [(dtype, "bit_planes") for dtype in (F16, BF16, F32)]
    assert "lut_gemv uniform_mma (" in codes.describe(1, F16)
    assert codes.describe(1, F16).endswith("chosen by a model of bytes")
    assert codes.describe(4096, F32).startswith("dequantize every call, cuBLAS (chosen by a model")


def test_a_graph_is_not_captured_with_what_was_never_called(named_gpu, monkeypatch):
    linear = gpu_linear(WEIGHTS["planes"]())
    linear(inputs(1, K))
    monkeypatch.setattr(launcher, "capturing", lambda: True)
    linear(inputs(1, K))
    message = "a graph is being captured, and bit_planes has not multiplied"
    refused(message, linear, inputs(1, K, F16))


def test_views_that_a_kernel_cannot_read_are_copied(named_gpu):
    packed = WEIGHTS["codes"]()
    linear, wide = gpu_linear(packed), inputs(2, K, F16).repeat(1, 2)
    for x in (wide[:, :K], wide.flatten()[1 : K + 1], wide[:, ::2]):
        assert relative_error(linear(x), x, packed.dequantize()) < 2e-3


def test_what_it_cannot_take_is_refused(named_gpu):
    linear = gpu_linear(WEIGHTS["planes"]())
    refused("x is torch.float64: the GPU kernels take", linear, inputs(1, K).double())
    refused("x is on meta, the weight on cpu: move one", linear, inputs(1, K).to("meta"))
    fixed, message = torch.ops.lutlab.packed_linear.fixed, "another process, or of a layer that is"
    refused(message, fixed, inputs(1, K), None, 10**6, N)


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("rows", [2, 40])
def test_torch_sees_one_operation_with_the_shape_it_says(few_are_two, kind, rows):
    linear, x = gpu_linear(WEIGHTS[kind]()), inputs(rows, K)
    operation = torch.ops.lutlab.packed_linear.fixed
    one_operation(linear, x, operation, x, torch.ones(N), linear.number, N)


def test_a_layer_on_a_gpu_takes_it(named_gpu, monkeypatch):
    monkeypatch.setattr(PackedUniform, "kernels", {"cpu": ("lut_gemv",)})
    packed, x = WEIGHTS["codes"](), inputs(2, K)
    layer = QuantLinear(packed, torch.ones(N))
    ran.take()
    assert relative_error(layer(x).double() - 1, x, packed.dequantize()) < 1e-6
    assert ran.take()[0].startswith("lut_gemv bit_planes")
    assert layer.packed.qweight is packed.qweight, "the stored form of uniform codes stays"
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    ran.take()
    assert layer.half()(x.half()).dtype == F16
    assert ran.take()[0].startswith("lut_gemv uniform_mma")


def test_binary_codes_are_held_once(few_are_two, monkeypatch):
    monkeypatch.setattr(PackedBCQ, "kernels", {"cpu": ("lut_gemv",)})
    packed = WEIGHTS["planes"]()
    wide = packed.with_buffers({"offset": packed.offset.double()})  # the layout has float32 for it
    for stored, held in ((packed, 3), (wide, 7)):
        layer = QuantLinear(stored, None)
        execution = layer.prepare(1)
        assert execution.replaces == (list(layer.buffers()) == []) == (held == 3)
        assert len(execution.buffers) == held
        if execution.replaces:  # it stays, and is made ready for other rows
            assert layer.prepare(2) is layer.prepare(2, torch.float64) is execution
            assert execution.products[F32, "lane_tables"].rows == (1, 2)
        for again in (layer.packed, copy.deepcopy(layer).packed, execution.copy().packed):
            assert again.layout() == stored.layout()
            assert all(torch.equal(b, stored.buffers[name]) for name, b in again.buffers.items())
        for rows in (1, 40):
            x = inputs(rows, K)
            assert relative_error(layer(x), x, packed.dequantize()) < 1e-6
        read = [b.nbytes for name, b in stored.buffers.items() if name != "order"]
        assert execution.bytes_read(40, F32) == sum(read)


def test_a_layer_without_a_kernel_says_so(monkeypatch, caplog):
    modules._say_once.cache_clear()
    monkeypatch.setattr(PackedUniform, "kernels", {"cpu": ("lut_gemv",)})
    packed = WEIGHTS["codes"]()
    layer, x = QuantLinear(packed, None), inputs(1, K)
    assert relative_error(layer(x), x, packed.dequantize()) < 1e-6
    name = layer.describe(1, F32)
    assert name.startswith("dequantize once, torch matmul (no kernel: lut_gemv: device=cpu: these")
    assert name in caplog.text


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_a_layer_on_a_real_gpu(kind, dtype):
    packed = WEIGHTS[kind]()
    layer = QuantLinear(packed, None).cuda()
    ran.take()
    for rows in (1, 5, 400):
        x = inputs(rows, K, dtype)
        assert relative_error(layer(x.cuda()).cpu(), x, packed.dequantize()) < LIMITS[dtype]
    dense, *variants = ran.take()
    assert dense.startswith("dequantize every call, cuBLAS")
    assert all(name.startswith("lut_gemv") for name in variants)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_dequantized_on_a_real_gpu_to_the_last_bit(dtype):
    for q in range(1, 9):
        for rows, columns, g in ((1, 33, -1), (129, 1056, 40), (1024, 4096, 128)):
            packed = bcq.pack(bcq_tensor(rows, columns, q, g, offset="f16"))
            dense = dequantize(packed.to("cuda"), dtype).cpu()
            assert torch.equal(dense, packed.dequantize().to(dtype))
