"""What may be asked of a product, or why not; products against float64, and what stands beside them."""

import pytest
import torch
from tests.base.refusals import refused
from tests.kernels.gpu import cuda_on_host, test_lut_gemv, unpacked

from lutlab.base.specs import ProductRun
from lutlab.base.tensors import BCQTensor, UniformTensor
from lutlab.formats import pack
from lutlab.kernels.cpu.rows import linear
from lutlab.kernels.gpu import choice
from lutlab.kernels.gpu import linear as gpu_linear
from lutlab.kernels.gpu.lut_gemv.launcher import Product
from lutlab.kernels.gpu.lut_gemv.variant import H200
from lutlab.measure import contestants, products
from lutlab.measure.contestants import TimedRow
from lutlab.measure.products import obstacle
from lutlab.measure.timing import Contestant

SHAPE = (96, 80, 1)
DENSE = {"method": "none", "q": 16, "g": -1}
ON_GPU = {"device": "cuda", "dtype": "float16"}
OFFSET = (("offset", True),)
gpu = test_lut_gemv.gpu
NK, KN = "torch float32 [N, K]", "torch float32 [K, N]"


def row(shape="96x80", method="bcq", q=3, g=16, **more):
    return ProductRun(products.parse_shapes(shape), method, q, g, **more)


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """A few copies of small weights instead of ten caches full."""
    monkeypatch.setattr(products, "COLD_LIMIT", 20_000)


def check(contestant, expected, **tolerances):
    """Every copy multiplies."""
    for copy in range(contestant.copies):
        y, loose = contestant.run(copy), bool(tolerances)  # of another dtype too
        torch.testing.assert_close(y, expected, check_dtype=not loose, **tolerances)


def test_shapes_and_names():
    for text, *shapes in (
        ("4096x1024", (4096, 1024, 1)),
        ("3x5x7", (3, 5, 7)),
        ("3x5+5x3", (3, 5, 1), (5, 3, 1)),
    ):
        assert products.parse_shapes(text) == tuple(shapes)
    for text in ("4096", "0x4", "4x", "4x5x6x7", "axb", "-4x5", "4x5+"):
        refused("not the shape of a product", products.parse_shapes, text)
    assert products.variant_of("paper") == products.variant_of("r0") == "paper"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        (DENSE, ""),
        *(({"kernel": kernel}, reason) for kernel, reason in products.ABSENT.items()),
        (ON_GPU, ""),
        ({"kernel": "lane_tables"}, "no CUDA device"),
        ({"kernel": "paper", "knobs": (("luts", 4), ("mu", 2))}, ""),
        ({"kernel": "paper", **ON_GPU}, ""),
        ({"kernel": "r0", **ON_GPU}, ""),
        ({"kernel": "lut_gemm", "knobs": (("luts", 4), ("mu", 4)), **ON_GPU}, ""),
        ({"kernel": "lut_gemm", "knobs": (("luts", 4), ("mu", 4))}, "paper is a GPU kernel"),
        ({"method": "rtn", "kernel": "optq", **ON_GPU}, ""),
        ({"method": "rtn", "kernel": "optq", "device": "cuda"}, "float16 activations only"),
        ({**ON_GPU, "dtype": "bfloat16"}, ""),
        ({"kernel": "bit_planes", **ON_GPU, "dtype": "bfloat16"}, ""),
        ({"kernel": "paper", **ON_GPU, "dtype": "bfloat16"}, "and not in bfloat16"),
        ({"kernel": "lut_gemm", **ON_GPU, "dtype": "bfloat16"}, "and not in bfloat16"),
        ({"kernel": "int16", **ON_GPU}, "of the CPU kernels"),
    ],
)
def test_what_cannot_be_measured_says_why(change, reason):
    why = obstacle(row(**change))
    assert reason in why if reason else why == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": "otpq"}, "did you mean 'optq'"),
        ({"kernel": "small_tables"}, "did you mean 'lane_tables'.*known: .*bit_planes.*paper"),
        ({"kernel": "r1"}, "unknown kernel 'r1': .*known: .*bit_planes.*paper"),
        ({"method": "gptq"}, "weights are drawn"),
        ({"kernel": "optq"}, "set method=rtn q=3"),
        ({"kernel": "optq", "method": "rtn", "q": 5}, "2 to 4 bits"),
        ({"kernel": "int8", "method": "rtn", "q": 8}, "set method=rtn q=8 g=-1"),
        ({"knobs": (("mu", 4),)}, "kernel=auto has no knob 'mu'"),
        ({"knobs": (("mo", 4),), "kernel": "lut_gemm"}, "paper has no knob 'mo': did you mean 'mu'"),
        ({"kernel": "mixed_sync"}, "take kernel=auto, or one of optq, paper"),
        ({"method": "mixed_2_4_16", "kernel": "r3"}, "or one of mixed_async, mixed_sync"),
        ({"method": "mixed_2_4_16", "kernel": "lut_gemm"}, "multiplies binary codes"),
        ({"dtype": "float16"}, "timed in float32"),
        ({"kernel": "tensor_parallel_8"}, "dense weights only: set method=none"),
        ({"kernel": "tensor_parallel_1"}, "unknown kernel"),
        ({"kernel": "tensor_parallel_08"}, "unknown kernel"),
        ({"device": "spread"}, "one device"),
        ({"shape": "96"}, "not the shape"),
        ({**DENSE, "kernel": "tensor_parallel_8", "device": "cuda:1"}, "takes the first 8 GPUs: set device=cuda"),
        ({**DENSE, "kernel": "tensor_parallel_8", "shape": "96x80+20x96"}, "20 rows do not divide by 8"),
        ({**DENSE, "kernel": "tensor_parallel_8", "knobs": (("mu", 4),)}, "tensor_parallel_8 has no knob 'mu'"),
    ],
)  # fmt: skip
def test_mistakes_are_refused(change, message):
    refused(message, lambda: obstacle(row(**change)))


def test_what_gpus_share_needs_as_many_and_a_cpu_a_compiler(monkeypatch):
    def dense(gpus, **more):
        return row(kernel=f"tensor_parallel_{gpus}", **DENSE, **more)

    assert [products.gpus_of(spec) for spec in (dense(16), row(kernel="paper"))] == [16, 1]
    assert obstacle(dense(8)) == "needs 8 GPUs, and there is no CUDA device"
    monkeypatch.setenv("LUTLAB_CC", "/nowhere/cc")
    assert "/nowhere/cc" in obstacle(row())
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    assert obstacle(dense(8, **ON_GPU)) == "needs 8 GPUs, this machine has 2"
    assert obstacle(dense(2, **ON_GPU)) == ""
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert "built without it" in obstacle(dense(2, **ON_GPU))


def test_weights_and_operands_are_the_seeds_and_their_exact_product_is_cut_into_rows(monkeypatch):
    bcq = products.draw(row(options=OFFSET), SHAPE, 16)
    assert isinstance(bcq, BCQTensor)
    assert (bcq.codes.shape, bcq.alpha.shape, bcq.offset.shape) == ((96, 80), (3, 96, 5), (96, 5))
    assert bcq.codes.unique().tolist() == list(range(8))
    assert products.draw(row(), SHAPE, 16).offset is None
    assert bcq.alpha.dtype == bcq.offset.dtype == torch.float16
    wide = products.draw(row(options=(("alpha_dtype", "fp32"),)), SHAPE, 16)
    assert wide.alpha.dtype == torch.float32
    rows = [row(method="rtn", q=4, seed=seed) for seed in (0, 0, 1)]
    uniform, same, other = (products.draw(spec, SHAPE, -1) for spec in rows)
    assert isinstance(uniform, UniformTensor)
    assert uniform.scale.shape == (96, 1)
    assert torch.equal(uniform.codes, same.codes)
    assert not torch.equal(uniform.codes, other.codes)
    x, weight = products.operands(row(**DENSE), (96, 80, 2))
    assert (x.shape, weight.shape) == ((2, 80), (96, 80))
    assert torch.equal(x, products.operands(row(), (96, 80, 2))[0])
    assert products.operands(row(), SHAPE)[1] is None, "only dense rows have a weight"
    monkeypatch.setattr(products, "_CHECKED_WEIGHTS", 3 * 80)  # rows of W three by three
    product = products.exact_product(x, weight)
    torch.testing.assert_close(product, x.double() @ weight.double().t(), rtol=0, atol=1e-12)


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
    entered = contestants.enter(spec)
    (shape,) = spec.shapes
    _, columns, tokens = shape
    x = torch.randn(tokens, columns, generator=torch.Generator().manual_seed(spec.seed + 1))

    def product(g):
        return x.double() @ pack(products.draw(spec, shape, g)).dequantize().double().t()

    assert entered.own.copies >= 2
    for contestant in (entered.own, entered.fp32):
        check(contestant, product(spec.g), rtol=1e-3, atol=1e-3)
    check(entered.rowwise, product(-1), rtol=1e-3, atol=1e-3)
    assert entered.facts["dense_us"].keys() == {"torch float32", "torch bfloat16"}
    assert entered.facts["kernel"] == [entered.own.name] != [entered.fp32.name]


@pytest.mark.parametrize("faster", ["torch float32", "torch bfloat16"])
def test_on_a_cpu_the_dense_product_of_16_bits_is_the_faster_one(faster, monkeypatch):
    timer = lambda contestant, kind: 1e-6 if contestant.name == faster else 2e-6  # noqa: E731
    monkeypatch.setattr(contestants, "CpuTimer", lambda: timer)
    entered = contestants.enter(row("96x80x3", method="rtn", q=4, g=16))
    assert (entered.fp16.name, entered.fp32.name) == (faster, "torch float32")
    dense = list(dict.fromkeys((faster, "torch float32")))
    assert entered.facts["baseline"] == f"{', '.join(dense)}, in the place of cuBLAS"
    places = [entered.fp16, entered.fp32] if len(dense) == 2 else [entered.fp32]
    assert entered.all() == [entered.memory, *places, entered.own, entered.rowwise]
    assert all(contestant.rounds == {} for contestant in entered.all())


def test_eight_bit_codes_and_activations_are_multiplied_exactly():
    entered = contestants.enter(row("96x80x3", method="rtn", q=8, g=-1, kernel="int8"))
    y = entered.own.run(0)
    assert (entered.own.name, entered.own.bytes) == ("torch int8", 96 * 80)
    assert (y.dtype, y.shape) == (torch.int32, (3, 96))
    assert entered.facts["relative_errors"]["torch int8"] == 0


class OnGpu(TimedRow):
    """One whose CPU passes for a GPU."""

    cpu = False


@pytest.mark.parametrize(("faster", "slower"), [(NK, KN), (KN, NK)])
def test_on_a_gpu_the_dense_product_is_cublas_in_its_faster_layout(faster, slower, monkeypatch):
    microseconds, kinds = {faster: 1, slower: 2}, set()
    stored, operands, multiply = {}, [], torch.mm

    def timer(contestant, kind):
        contestant.run(contestant.copies - 1)
        stored[contestant.name] = operands[-1].stride()
        kinds.add(kind)
        return 1e-6 * microseconds[contestant.name]

    monkeypatch.setattr(torch, "mm", lambda x, w: operands.append(w) or multiply(x, w))
    monkeypatch.setattr(contestants, "GpuTimer", lambda: timer)
    timed = OnGpu(row(), 3 * 96 * 80 * 4, {}, "resident")
    x, weight = torch.randn(2, 80), torch.randn(96, 80)
    dense = contestants.dense(timed, weight, x)
    assert (dense.name, dense.copies, dense.rounds) == (faster, 3, {})
    assert stored == {NK: (1, 80), KN: (96, 1)}, "a layout is stored as it says"
    assert (kinds, timed.facts["cublas_us"]) == ({"resident"}, {"96x80x2": microseconds})
    assert timed.facts["relative_errors"].keys() == microseconds.keys()
    check(dense, x @ weight.t())


@cuda_on_host.needs_nvrtc
def test_who_takes_turns_on_a_gpu(gpu, monkeypatch):
    """The papers' kernel beside the best one, cuBLAS in both types, and copying; kernels run on the CPU."""
    by_name = lambda contestant, kind: float(len(contestant.name))  # noqa: E731
    monkeypatch.setattr(contestants, "TimedRow", OnGpu)
    monkeypatch.setattr(contestants, "GpuTimer", lambda: by_name)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a stand-in")
    copier = Contestant("copy", 100, 2, lambda i: None)
    monkeypatch.setattr(contestants, "gpu_copier", lambda cold: copier)
    spec = row("64x256+32x64", kernel="lut_gemm", g=32, dtype="float16", options=OFFSET)
    entered = contestants.enter(spec)
    assert entered.own.name.startswith("lut_gemv paper")
    assert entered.best.name.startswith("lut_gemv bit_planes")
    assert entered.rowwise.name == entered.own.name
    assert entered.facts["baseline"] == "cuBLAS: torch float16 [N, K], torch float32 [N, K]"
    assert entered.facts["cublas_us"].keys() == {"64x256x1", "32x64x1"}
    assert entered.fp16.bytes == 2 * (64 * 256 + 32 * 64)
    places = ("memory", "fp16", "fp32", "own", "best", "rowwise")
    assert entered.all() == [getattr(entered, place) for place in places]
    for contestant in entered.all():
        assert contestant.rounds == {}
        contestant.run(contestant.copies - 1)


def test_a_dense_row_is_its_own_baseline_in_its_dtype(monkeypatch):
    entered = contestants.enter(row(**DENSE))
    assert (entered.own, entered.rowwise) == (entered.fp32, None)
    assert contestants.enter(row(g=-1)).rowwise is None, "nothing to be normalized by"
    monkeypatch.setattr(contestants, "GpuTimer", lambda: lambda contestant, kind: 1e-6)
    part = contestants._part(OnGpu(row(**DENSE, dtype="bfloat16"), 1, {}), SHAPE)
    names = [part[name].name for name in ("own", "fp16", "fp32")]
    assert names == [f"torch {dtype} [N, K]" for dtype in ("bfloat16", "float16", "float32")]
    assert part["own"].run(0).dtype == torch.bfloat16


def test_the_products_of_a_layer_are_one_contestant():
    entered = contestants.enter(row("96x80+48x96"))
    alone = [contestants.enter(row(shape)).own for shape in ("96x80", "48x96")]
    assert entered.own.bytes == sum(contestant.bytes for contestant in alone)
    assert entered.fp32.bytes == 4 * (96 * 80 + 48 * 96)
    assert entered.own.name == alone[0].name
    assert entered.facts["kernel"] == entered.facts["best_kernel"] == [entered.own.name]
    entered.own.run(entered.own.copies - 1)
    timed = TimedRow(row(), 10**6, {})  # copies are as many as are cold and not endless
    assert [timed.copies(size) for size in (2 * 10**6, 300_000, 1)] == [1, 4, 4096]


def test_what_is_wrong_or_has_no_kernel_is_not_timed(monkeypatch):
    message = r"no kernel to time: dequantize once.*g=13 is not a"
    refused(message, contestants.enter, row(g=13))
    right = linear.CpuLinear.__call__
    monkeypatch.setattr(linear.CpuLinear, "__call__", lambda self, x: right(self, x).flip(-1))
    refused("is wrong", contestants.enter, row())


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


@pytest.fixture
def chosen(monkeypatch):
    """The CPU taken for a GPU on which this kernel was chosen."""
    launcher = "lutlab.kernels.gpu.lut_gemv.launcher"
    monkeypatch.setattr(f"{launcher}.device_of", lambda device: device)
    monkeypatch.setattr(f"{launcher}.gpu", lambda device: H200)
    monkeypatch.setattr(f"{launcher}.capturing", lambda: False)
    monkeypatch.setattr(f"{launcher}.Product", FakeProduct)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a stand-in")
    names = []
    monkeypatch.setattr(choice, "choose", lambda case, gpu, name: (names[-1], choice.RACE))
    return names


def test_on_a_gpu_many_rows_go_through_a_dense_weight(chosen, monkeypatch):
    chosen.append(choice.DENSE)
    monkeypatch.setattr(gpu_linear, "dequantize", lambda packed, dtype: packed.dequantize())
    packed, x = pack(products.draw(row(), SHAPE, 16)), torch.randn(4, 80)
    own = contestants.by_kernel(OnGpu(row(), 1, {}), x, packed, "auto")
    assert packed.offset is None
    assert own.name == "dequantize every call, cuBLAS (chosen by a race on this machine)"
    assert own.bytes == packed.planes.nbytes + packed.alpha.nbytes
    check(own, x @ packed.dequantize().t())


@pytest.mark.parametrize(
    ("kernel", "variant", "knobs"),
    [
        ("auto", "uniform_mma", {}),
        ("lut_gemm", "paper", {"mu": 4}),
        ("lane_tables", "lane_tables", {}),
        ("optq", "optq", {"columns": 64}),
    ],
)
def test_on_a_gpu_every_copy_is_a_product_with_weights_of_its_own(kernel, variant, knobs, chosen):
    chosen.append("uniform_mma")
    spec = row(method="rtn", kernel=kernel, knobs=tuple(knobs.items()), g=32)
    packed, x = pack(products.draw(spec, (96, 96, 1), 32)), torch.randn(4, 96).half()
    timed = OnGpu(spec, 1, {})
    size = contestants.by_kernel(timed, x, packed, kernel).bytes
    timed.cold = 3 * size
    own = contestants.by_kernel(timed, x, packed, kernel)
    assert own.name.startswith(f"lut_gemv {variant} {knobs}, float16 x")
    assert (own.bytes, own.copies) == (size, 3)
    assert size >= 96 * 96 * 3 / 8
    check(own, x.float() @ packed.dequantize().t(), rtol=1e-2, atol=1e-2)
    other = contestants.by_kernel(timed, x, packed, "auto" if variant == "paper" else "lane_tables")
    assert "{}" in other.name, "the knobs are the row's kernel's"
