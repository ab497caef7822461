"""The kernel chosen for a weight on a GPU, and the operations torch sees, over the stand-in GPU and on a real one."""

import copy

import pytest
import torch
from tests.kernels.gpu import test_lut_gemv
from tests.kernels.weights import bcq_tensor, relative_error, uniform_tensor

from lutlab import modules
from lutlab.errors import LutlabError
from lutlab.formats import bcq
from lutlab.kernels.gpu import choice
from lutlab.kernels.gpu.linear import gpu_linear
from lutlab.kernels.gpu.lut_gemv import launcher
from lutlab.modules import QuantLinear

gpu = test_lut_gemv.gpu
F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
N, K = 40, 96
WEIGHTS = {
    "planes": lambda: bcq.pack(bcq_tensor(N, K, 3, 32, offset="f32", ordered=True)),
    "codes": lambda: bcq.pack(bcq.from_uniform(uniform_tensor(N, K, 4, 32, ordered=True))),
}
LIMITS = {F16: 2e-3, BF16: 8e-3, F32: 1e-6}


@pytest.fixture
def named_gpu(gpu, monkeypatch, tmp_path):
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a stand-in")
    return gpu


def inputs(rows, dtype=F32):
    return torch.randn(rows, K, generator=torch.Generator().manual_seed(5)).to(dtype)


@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_multiplies_few_rows_and_many(named_gpu, monkeypatch, kind, dtype):
    def few_are_two(case, gpu, name):
        return ("float_sums" if case.m < 3 else choice.DENSE), choice.RACE

    monkeypatch.setattr(choice, "choose", few_are_two)
    packed = WEIGHTS[kind]()
    linear, bias = gpu_linear(packed), torch.ones(N, dtype=dtype)
    for rows in (1, 2, 3, 40):
        x = inputs(rows, dtype)
        assert linear.few(x) == (rows < 3)
        y = linear(x, bias)
        assert y.dtype == dtype
        assert relative_error(y.double() - 1, x, packed.dequantize()) < LIMITS[dtype]
    assert list(linear.products) == [(dtype, "float_sums")]
    assert linear.describe(few=True).endswith(
        f", {str(dtype)[6:]} x, chosen by a race on this machine"
    )
    assert (
        linear.describe(few=False)
        == "dequantize every call, cuBLAS (chosen by a race on this machine)"
    )


@pytest.mark.parametrize("g", [8, 40])
def test_bfloat16_with_groups_that_only_r0_takes(named_gpu, g):
    packed = bcq.pack(bcq_tensor(N, K, 3, g, offset="f32"))
    linear, x = gpu_linear(packed), inputs(1, BF16)
    y = linear(x)
    assert y.dtype == BF16
    assert relative_error(y, x, packed.dequantize()) < LIMITS[BF16]
    assert "lut_gemv paper (" in linear.describe(few=True)
    assert "float32 x" in linear.describe(few=True)


def test_the_variant_goes_by_format_type_and_rows(named_gpu):
    codes, planes = (gpu_linear(WEIGHTS[kind]()) for kind in ("codes", "planes"))
    for linear in (codes, planes):
        for dtype in (F16, BF16, F32):
            for rows in (1, 16):
                linear(inputs(rows, dtype))
    assert list(codes.products) == [
        (F16, "uniform_mma"),
        (BF16, "uniform_mma"),
        (F32, "bit_planes"),
        (F32, "half_bits"),
    ]
    assert list(planes.products) == [
        (d, v) for d in (F16, BF16, F32) for v in ("bit_planes", "half_bits")
    ]
    assert len(planes.weights) == 1, "bit_planes and half_bits read the same layout"
    assert "lut_gemv uniform_mma (" in codes.describe(few=True)
    assert codes.describe(few=True).endswith("chosen by a model of bytes")
    assert not codes.few(inputs(4096))
    assert codes.describe(few=False).startswith("dequantize every call, cuBLAS (chosen by a model")


def test_a_graph_is_not_captured_with_what_was_never_called(named_gpu, monkeypatch):
    linear = gpu_linear(WEIGHTS["planes"]())
    linear(inputs(1))
    monkeypatch.setattr(launcher, "capturing", lambda: True)
    linear(inputs(1))
    with pytest.raises(
        LutlabError, match="a graph is being captured, and bit_planes has not multiplied"
    ):
        linear(inputs(1, F16))


def test_views_that_a_kernel_cannot_read_are_copied(named_gpu):
    packed = WEIGHTS["codes"]()
    linear = gpu_linear(packed)
    wide = inputs(2, F16).repeat(1, 2)
    for x in (wide[:, :K], wide.flatten()[1 : K + 1], wide[:, ::2]):
        assert relative_error(linear(x), x, packed.dequantize()) < 2e-3


def test_what_it_cannot_take_is_refused(named_gpu):
    linear = gpu_linear(WEIGHTS["planes"]())
    with pytest.raises(LutlabError, match=r"x is torch.float64: the GPU kernels take"):
        linear(inputs(1, torch.float64))
    with pytest.raises(LutlabError, match="x is on meta, the weight on cpu: move one"):
        linear(inputs(1).to("meta"))
    with pytest.raises(LutlabError, match="of another process, or of a layer that is gone"):
        torch.ops.lutlab.lut_gemv(inputs(1), 10**6, N)


def test_without_a_gpu_it_says_so():
    with pytest.raises(LutlabError, match="device=cpu: these kernels run on CUDA devices"):
        gpu_linear(WEIGHTS["planes"]())


@pytest.mark.parametrize("kind", WEIGHTS)
def test_torch_sees_operations_with_the_shapes_they_say(named_gpu, kind):
    linear, graphs = gpu_linear(WEIGHTS[kind]()), []
    linear(inputs(2))

    def look(graph, _):
        graphs.append(graph)
        return graph.forward

    (_, number), *_ = linear.products.values()
    packed = linear.packed
    rest = (packed.alpha, packed.offset, K, packed.group_size, F16)
    for operation, arguments in (
        (torch.ops.lutlab.lut_gemv, (inputs(2), number, N)),
        (torch.ops.lutlab.dequantize_bcq, (packed.planes, *rest)),
    ):
        compiled = torch.compile(lambda *a, f=operation: f(*a), backend=look, fullgraph=True)
        assert torch.equal(compiled(*arguments), operation(*arguments))
        torch.library.opcheck(
            operation.default, arguments, test_utils=("test_schema", "test_faketensor")
        )
    assert "lut_gemv" in graphs[0].code
    assert "dequantize_bcq" in graphs[1].code


def test_a_layer_on_a_gpu_takes_it(named_gpu, monkeypatch):
    monkeypatch.setattr(modules, "KERNELS", {"cpu": gpu_linear})
    packed = WEIGHTS["codes"]()
    layer = QuantLinear(packed, torch.ones(N))
    x = inputs(2)
    assert relative_error(layer(x).double() - 1, x, packed.dequantize()) < 1e-6
    assert layer.kernel.startswith("lut_gemv half_bits")
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))
    assert layer.half()(x.half()).dtype == F16
    assert layer.kernel.startswith("lut_gemv uniform_mma")


def test_a_layer_without_a_kernel_says_so(named_gpu, monkeypatch, caplog):
    def none(packed):
        raise LutlabError("no CuPy here")

    monkeypatch.setattr(modules, "KERNELS", {"cpu": none})
    packed = WEIGHTS["codes"]()
    layer, x = QuantLinear(packed, None), inputs(1)
    assert relative_error(layer(x), x, packed.dequantize()) < 1e-6
    assert layer.kernel == "dequantize once, torch matmul (no kernel: no CuPy here)"
    assert "no CuPy here" in caplog.text


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("kind", WEIGHTS)
def test_a_layer_on_a_real_gpu(kind, dtype):
    packed = WEIGHTS[kind]()
    layer = QuantLinear(packed, None).cuda()
    for rows in (1, 5, 400):
        x = inputs(rows, dtype)
        y = layer(x.cuda()).cpu()
        assert relative_error(y, x, packed.dequantize()) < LIMITS[dtype]
    assert "lut_gemv" in layer.kernel
    assert "dequantize every call, cuBLAS" in layer.kernel


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_dequantized_on_a_real_gpu_to_the_last_bit(dtype):
    for q in range(1, 9):
        for rows, columns, g in ((1, 33, -1), (129, 1056, 40), (1024, 4096, 128)):
            packed = bcq.pack(bcq_tensor(rows, columns, q, g, offset="f16"))
            tensors = [t.cuda() for t in (packed.planes, packed.alpha, packed.offset)]
            found = torch.ops.lutlab.dequantize_bcq(*tensors, columns, g, dtype)
            assert torch.equal(found.cpu(), packed.dequantize().to(dtype))
