"""2/4/16-bit weights on a GPU as a layer sees them: few rows, many, outliers by cuSPARSE, over the stand-in GPU."""

import functools

import pytest
import torch
from tests.kernels.checks import BF16, F16, F32, inputs, relative_error
from tests.kernels.gpu import plans, test_lut_gemv
from tests.mixed_weights import mixed_tensor

from lutlab.base.specs import ProductRun
from lutlab.formats.mixed import PackedMixed
from lutlab.kernels import ran
from lutlab.kernels.dispatch import prepare
from lutlab.kernels.gpu import mixed_linear
from lutlab.kernels.gpu.lut_gemv.variant import GPUS
from lutlab.kernels.gpu.mixed_gemv import mixed_chunks
from lutlab.kernels.gpu.mixed_linear import MixedGemvGpu
from lutlab.measure import contestants

gpu = test_lut_gemv.gpu
N, K = 40, 200
CPU = torch.device("cpu")
LIMITS = {F16: 1e-3, BF16: 8e-3, F32: 1e-6}


@pytest.fixture
def packed():
    return PackedMixed.pack(mixed_tensor(N, K, aligned=True, outliers=60))


@pytest.mark.parametrize(("rows", "columns", "options", "dtype", "reverse"), [
    (40, 200, {"aligned": True}, F16, False),
    (17, 320, {"aligned": True}, BF16, True),
    (17, 320, {"widths": (2, 3, 4, 2)}, F16, True),
    (33, 500, {"widths": (3, 4, 2, 3), "by_row": False, "g": 32}, F32, False),
])  # fmt: skip
def test_dequantized_to_the_last_bit(rows, columns, options, dtype, reverse):
    packed = PackedMixed.pack(mixed_tensor(rows, columns, outliers=rows // 4, **options))
    read = packed if packed.aligned else mixed_chunks.pack(packed)
    dense = plans.dense(mixed_linear, read, dtype, reverse)
    whole = mixed_linear.scatter(dense, packed, mixed_linear.outlier_index(packed))
    assert torch.equal(whole, packed.dequantize().to(dtype))


def test_resources_of_the_dequantizer(packed):
    chunks = mixed_chunks.pack(PackedMixed.pack(mixed_tensor(N, K, widths=(2, 3, 4))))
    for weight, gpu in ((packed, GPUS[0]), (packed, GPUS[2]), (chunks, GPUS[1]), (chunks, GPUS[2])):
        assert plans.check_resources(mixed_linear.plan(weight, F16), gpu).shared_bytes == 0


@pytest.mark.parametrize(("dtype", "aligned"), [(F16, True), (F32, False)], ids=str)
def test_few_rows_by_the_kernel_and_many_by_cublas(gpu, monkeypatch, dtype, aligned):
    packed = PackedMixed.pack(mixed_tensor(N, K, aligned=aligned, outliers=60))
    monkeypatch.setattr(mixed_linear, "dequantize", functools.partial(plans.dense, mixed_linear))
    linear = MixedGemvGpu().prepare(packed, CPU, 1, dtype)
    for rows in (1, 100):
        x = inputs(rows, K, dtype)
        ran.take()
        y = linear(x, torch.ones(N, dtype=dtype))
        assert relative_error(y.double() - 1, x, packed.dequantize()) < LIMITS[dtype]
        assert ran.take() == [linear.describe(rows, dtype)]
    assert linear.describe(1, dtype).startswith("mixed_gemv_gpu mixed_async (stages=0, warps=0,")
    assert linear.describe(1, dtype).endswith("x, chosen by a model of bytes")
    assert linear.describe(100, dtype).startswith("dequantize every call, cuBLAS")
    stored = sum(b.nbytes for b in packed.buffers.values() if b is not None)
    assert (linear.bytes_read(100, dtype) == stored) == aligned
    assert torch.equal(linear.copy()(x), linear(x))


def test_outliers_by_a_sparse_product(gpu, packed):
    """On the stand-in the sparse product is torch's on a CPU."""
    knobs = {"outliers": "cusparse"}
    linear = MixedGemvGpu().prepare(packed, CPU, 2, F32, variant="mixed_sync", knobs=knobs)
    fused = MixedGemvGpu().prepare(packed, CPU, 2, F32, variant="mixed_sync")
    x = inputs(2, K)
    assert relative_error(linear(x), x, packed.dequantize()) < LIMITS[F32]
    assert torch.equal(linear.copy()(x), linear(x))
    assert "outliers=cusparse), sm_90, outliers by a launch of cuSPARSE" in linear.describe(2, F32)
    more = linear.bytes_read(2, F32) - fused.bytes_read(2, F32)
    assert more == 60 * (4 + 4 - 4), "columns of 32 bits and values in x's dtype"


def test_other_groups_and_formats_are_refused_with_the_cause(gpu):
    small = PackedMixed.pack(mixed_tensor(N, K, g=8))
    why = MixedGemvGpu().takes(small, CPU)
    assert "g=8, scale_group=16: the GPU kernel reads pieces of 16 columns" in why
    assert "mixed_gemv_gpu" in small.kernels["cuda"]
    assert MixedGemvGpu().takes(PackedMixed.pack(mixed_tensor(N, K, g=48)), CPU) == ""
    assert MixedGemvGpu().takes(object(), CPU) == "it multiplies format mixed"


def test_without_a_gpu_it_says_so(packed):
    assert "device=cpu: these kernels run on CUDA" in MixedGemvGpu().takes(packed, CPU)


def test_a_row_names_the_kernel_and_how_outliers_are_added(gpu, monkeypatch):
    how = (("outliers", 0.005),), "mixed_sync", (("outliers", "cusparse"),)
    spec = ProductRun(((N, K, 1),), "mixed_2_4_16", 2.5, 16, *how)
    monkeypatch.setattr(contestants.TimedRow, "cpu", False)
    monkeypatch.setattr(contestants, "dense", lambda row, weight, x: None)
    row = contestants.TimedRow(spec, 20_000, {})
    part = contestants._part(row, spec.shapes[0])
    assert "rowwise" not in part
    assert part["own"].name.startswith("mixed_gemv_gpu mixed_sync")
    assert row.facts["relative_errors"][part["own"].name] < LIMITS[F32]


@pytest.mark.gpu
@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_on_a_real_gpu(dtype, aligned):
    packed = PackedMixed.pack(mixed_tensor(1030, 2000, aligned=aligned, outliers=5000)).to("cuda")
    weight = packed.dequantize()
    by_cusparse = {"variant": "mixed_async", "knobs": {"outliers": "cusparse"}}
    for kernel in ({},) if dtype == BF16 else ({}, by_cusparse):
        linear = prepare(packed, "cuda", 1, dtype, op="mixed_gemv_gpu", **kernel)
        for rows in (1, 3, 200):
            x = inputs(rows, 2000, dtype).cuda()
            assert relative_error(linear(x), x, weight) < LIMITS[dtype]
