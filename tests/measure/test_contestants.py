"""Products against float64, and what stands beside them; how fast they are, is no test."""

import pytest
import torch
from tests.kernels.gpu import cuda_on_host, test_lut_gemv, unpacked

from lutlab.base.errors import LutlabError
from lutlab.base.specs import ProductRun
from lutlab.formats import pack
from lutlab.kernels.cpu.rows import linear
from lutlab.kernels.gpu import choice
from lutlab.kernels.gpu import linear as gpu_linear
from lutlab.kernels.gpu.lut_gemv.launcher import Product
from lutlab.kernels.gpu.lut_gemv.variant import H200
from lutlab.measure import contestants, products
from lutlab.measure.contestants import TimedRow
from lutlab.measure.products import parse_shapes
from lutlab.measure.timing import Contestant

OFFSET = (("offset", True),)
gpu = test_lut_gemv.gpu
SHAPE = (96, 80, 1)


def row(shape="96x80", method="bcq", q=3, g=16, **more):
    return ProductRun(parse_shapes(shape), method, q, g, **more)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """A few copies of small weights instead of ten caches full."""
    monkeypatch.setattr(products, "COLD_LIMIT", 20_000)


@pytest.mark.parametrize(
    "spec",
    [
        row(),
        row("96x160", kernel="int16", g=32),
        row("96x80x5", options=OFFSET),
        row(method="rtn", q=4, g=16),
        row(method="rtn", q=3, g=32, kernel="optq", shape="96x96"),
    ],
    ids=["bcq", "int16", "five rows of x", "uniform", "optq"],
)
def test_every_copy_multiplies_by_the_drawn_matrix(spec):
    found = contestants.enter(spec)
    (shape,) = spec.shapes
    _, columns, tokens = shape
    x = torch.randn(tokens, columns, generator=torch.Generator().manual_seed(spec.seed + 1))
    weight = pack(products.draw(spec, shape, spec.g)).dequantize().double()
    assert found.own.copies >= 2
    for one in (found.own, found.fp32):
        for copy in range(one.copies):
            torch.testing.assert_close(
                one.run(copy).double(), x.double() @ weight.t(), rtol=1e-3, atol=1e-3
            )
    rowwise = pack(products.draw(spec, shape, -1)).dequantize().double()
    torch.testing.assert_close(
        found.rowwise.run(0).double(), x.double() @ rowwise.t(), rtol=1e-3, atol=1e-3
    )
    assert found.fp16 is found.fp32, "on a CPU, torch's float32 product stands in for cuBLAS"
    assert found.all() == [found.memory, found.fp32, found.own, found.rowwise]
    assert found.facts["kernel"] == [found.own.name] != [found.fp32.name]


def test_eight_bit_codes_and_activations_are_multiplied_exactly():
    found = contestants.enter(row("96x80x3", method="rtn", q=8, g=-1, kernel="int8"))
    assert found.own.name == "torch int8"
    assert found.own.bytes == 96 * 80
    y = found.own.run(0)
    assert y.dtype == torch.int32
    assert y.shape == (3, 96)
    assert found.facts["relative_errors"]["torch int8"] == 0


def test_copies_are_as_many_as_are_cold_and_not_endless():
    timed = TimedRow(row(), 10**6, {})
    assert [timed.copies(size) for size in (2 * 10**6, 300_000, 1)] == [1, 4, 4096]


class OnGpu(TimedRow):
    """One whose CPU passes for a GPU."""

    cpu = False


@pytest.mark.parametrize("faster", ["[N, K]", "[K, N]"])
def test_on_a_gpu_the_dense_product_is_cublas_in_its_faster_layout(faster, monkeypatch):
    asked = []

    def timer(one, kind):
        asked.append(kind)
        return 1e-6 if one.name.endswith(faster) else 2e-6

    monkeypatch.setattr(contestants, "GpuTimer", lambda: timer)
    timed = OnGpu(row(), 3 * 96 * 80 * 4, {}, "resident")
    x, weight = torch.randn(2, 80), torch.randn(96, 80)
    found = contestants.dense(timed, weight, x)
    assert (found.name, found.copies, found.rounds) == (f"torch float32 {faster}", 3, {})
    assert set(asked) == {"resident"}
    slower = ({"[N, K]", "[K, N]"} - {faster}).pop()
    assert timed.facts["cublas_us"] == {
        "96x80x2": {f"torch float32 {faster}": 1, f"torch float32 {slower}": 2}
    }
    assert timed.facts["relative_errors"].keys() == timed.facts["cublas_us"]["96x80x2"].keys()
    for copy in range(3):
        torch.testing.assert_close(found.run(copy), x @ weight.t())


def test_a_layout_is_stored_as_it_says(monkeypatch):
    stored, operands = {}, []
    multiply = torch.mm

    def mm(x, across):
        operands.append(across)
        return multiply(x, across)

    def timer(one, kind):
        one.run(one.copies - 1)
        stored[one.name] = operands[-1].stride()
        return 1e-6

    monkeypatch.setattr(torch, "mm", mm)
    monkeypatch.setattr(contestants, "GpuTimer", lambda: timer)
    timed = OnGpu(row(), 3 * 96 * 80 * 4, {})
    contestants.dense(timed, torch.randn(96, 80), torch.randn(1, 80))
    assert stored == {"torch float32 [N, K]": (1, 80), "torch float32 [K, N]": (96, 1)}


@cuda_on_host.needs_nvrtc
def test_who_takes_turns_on_a_gpu(gpu, monkeypatch):
    """The papers' kernel beside the best one, cuBLAS in both types, and copying; kernels run on the CPU."""
    monkeypatch.setattr(contestants, "TimedRow", OnGpu)
    monkeypatch.setattr(contestants, "GpuTimer", lambda: lambda one, kind: float(len(one.name)))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a stand-in")
    copier = Contestant("copy", 100, 2, lambda i: None)
    monkeypatch.setattr(contestants, "gpu_copier", lambda cold: copier)
    spec = row("64x256+32x64", kernel="lut_gemm", g=32, dtype="float16", options=OFFSET)
    found = contestants.enter(spec)
    assert found.own.name.startswith("lut_gemv paper")
    assert found.best.name.startswith("lut_gemv bit_planes")
    assert found.best.name != found.own.name
    assert found.rowwise.name == found.own.name
    assert found.facts["baseline"] == "cuBLAS: torch float16 [N, K], torch float32 [N, K]"
    assert found.facts["cublas_us"].keys() == {"64x256x1", "32x64x1"}
    assert found.fp16.bytes == 2 * (64 * 256 + 32 * 64)
    everyone = [found.memory, found.fp16, found.fp32, found.own, found.best, found.rowwise]
    assert found.all() == everyone
    assert all(one.rounds == {} for one in everyone)
    for one in everyone:
        one.run(one.copies - 1)


def test_a_dense_row_is_its_own_baseline():
    found = contestants.enter(row(method="none", q=16, g=-1))
    assert found.own is found.fp16
    assert found.rowwise is None
    assert found.all() == [found.memory, found.fp32]


def test_a_dense_row_in_bfloat16_is_multiplied_in_bfloat16(monkeypatch):
    monkeypatch.setattr(contestants, "GpuTimer", lambda: lambda one, kind: 1e-6)
    timed = OnGpu(row(method="none", q=16, g=-1, dtype="bfloat16"), 1, {})
    part = contestants._part(timed, SHAPE)
    names = [part[name].name for name in ("own", "fp16", "fp32")]
    assert names == [f"torch {dtype} [N, K]" for dtype in ("bfloat16", "float16", "float32")]
    assert part["own"].run(0).dtype == torch.bfloat16


def test_row_wise_weights_have_nothing_to_be_normalized_by():
    assert contestants.enter(row(g=-1)).rowwise is None


def test_the_products_of_a_layer_are_one_contestant():
    found = contestants.enter(row("96x80+48x96"))
    alone = [contestants.enter(row(shape)) for shape in ("96x80", "48x96")]
    assert found.own.bytes == sum(one.own.bytes for one in alone)
    assert found.fp32.bytes == 4 * (96 * 80 + 48 * 96)
    assert found.own.name == alone[0].own.name
    assert found.facts["kernel"] == found.facts["best_kernel"] == [found.own.name]
    found.own.run(found.own.copies - 1)


def test_a_wrong_product_is_not_timed(monkeypatch):
    right = linear.CpuLinear.__call__
    monkeypatch.setattr(linear.CpuLinear, "__call__", lambda self, x: right(self, x).flip(-1))
    with pytest.raises(LutlabError, match="is wrong"):
        contestants.enter(row())


def test_where_there_is_no_kernel_nothing_is_timed():
    with pytest.raises(LutlabError, match=r"no kernel to time: dequantize once.*g=13 is not a"):
        contestants.enter(row(g=13))


class FakeProduct:
    """A product of lut_gemv.launcher, computed on the CPU."""

    bytes_read = Product.bytes_read

    def __init__(self, variant, weight, dtype, device, gpu, knobs):
        self.variant, self.weight, self.knobs, self.rows = variant, weight, knobs, ()

    def prepare(self, rows):
        self.rows = (*self.rows, rows)
        return self

    def describe(self):
        return f"lut_gemv {self.variant.name} {self.knobs}"

    def __call__(self, x):
        assert len(x) in self.rows
        codes = {"optq": unpacked.of_optq, "uniform_mma": unpacked.of_uniform_mma}
        weight = codes.get(self.variant.name, self.variant.unpack)(self.weight)
        return x @ weight.dequantize().to(x.dtype).t()


def a_gpu(monkeypatch, chosen):
    """The CPU taken for a GPU on which a kernel was chosen."""
    launcher = "lutlab.kernels.gpu.lut_gemv.launcher"
    monkeypatch.setattr(f"{launcher}.device_of", lambda device: device)
    monkeypatch.setattr(f"{launcher}.gpu", lambda device: H200)
    monkeypatch.setattr(f"{launcher}.capturing", lambda: False)
    monkeypatch.setattr(f"{launcher}.Product", FakeProduct)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a stand-in")
    monkeypatch.setattr(choice, "choose", lambda case, gpu, name: (chosen, choice.RACE))


def test_on_a_gpu_many_rows_go_through_a_dense_weight(monkeypatch):
    a_gpu(monkeypatch, choice.DENSE)
    monkeypatch.setattr(gpu_linear, "dequantize", lambda packed, dtype: packed.dequantize())
    packed = pack(products.draw(row(), SHAPE, 16))
    x = torch.randn(4, 80)
    one = contestants.by_kernel(OnGpu(row(), 1, {}), x, packed, "auto")
    assert packed.offset is None
    assert one.name == "dequantize every call, cuBLAS (chosen by a race on this machine)"
    assert one.bytes == packed.planes.nbytes + packed.alpha.nbytes
    for copy in range(one.copies):
        torch.testing.assert_close(one.run(copy), x @ packed.dequantize().t())


@pytest.mark.parametrize(
    ("kernel", "variant", "knobs"),
    [
        ("auto", "uniform_mma", {}),
        ("lut_gemm", "paper", {"mu": 4}),
        ("lane_tables", "lane_tables", {}),
        ("optq", "optq", {"columns": 64}),
    ],
)
def test_on_a_gpu_every_copy_is_a_product_with_weights_of_its_own(
    kernel, variant, knobs, monkeypatch
):
    a_gpu(monkeypatch, "uniform_mma")
    spec = row(method="rtn", kernel=kernel, knobs=tuple(knobs.items()), g=32)
    packed = pack(products.draw(spec, (96, 96, 1), 32))
    x = torch.randn(4, 96).half()
    timed = OnGpu(spec, 1, {})
    size = contestants.by_kernel(timed, x, packed, kernel).bytes
    timed.cold = 3 * size
    one = contestants.by_kernel(timed, x, packed, kernel)
    assert one.name.startswith(f"lut_gemv {variant} {knobs}, float16 x")
    assert (one.bytes, one.copies) == (size, 3)
    assert size >= 96 * 96 * 3 / 8
    for copy in range(3):
        expected = x.float() @ packed.dequantize().t()
        torch.testing.assert_close(one.run(copy).float(), expected, rtol=1e-2, atol=1e-2)
    other = contestants.by_kernel(timed, x, packed, "auto" if variant == "paper" else "lane_tables")
    assert "{}" in other.name, "the knobs are the row's kernel's"
