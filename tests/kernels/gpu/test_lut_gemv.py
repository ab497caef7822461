"""The choice of a variant, and the launcher with a stand-in for CuPy and the GPU."""

import contextlib
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import warm
from tests.kernels.checks import BF16, F16, F32, inputs, refused
from tests.kernels.gpu import cuda_on_host
from tests.kernels.gpu.cuda_on_host import needs_nvrtc
from tests.kernels.gpu.lut_gemv_matrix import error, weight

from lutlab.kernels.gpu import variants
from lutlab.kernels.gpu.lut_gemv import launcher
from lutlab.kernels.gpu.lut_gemv.variant import GPUS, H200, RTX_3090, Case


def a_case(**changes):
    plain = {"m": 1, "rows": 64, "columns": 256, "bits": 3, "group_size": 32, "x": F16}
    return Case(**{**plain, "alpha": F16, "offset": F16, **changes})


def test_the_first_that_takes_a_case_is_chosen_and_named(monkeypatch):
    preferred = [variants.variant(name) for name in ("lane_tables", "paper")]
    monkeypatch.setattr(variants, "preferred", lambda: preferred)
    for gpu in GPUS:
        assert variants.choose(a_case(), gpu).name == "lane_tables"
        assert variants.choose(a_case(group_size=40), gpu).name == "paper"
    old = type(H200)("sm_75", 40, 65_536, 65_536)
    message = "lane_tables: the GPU is sm_75: lane_tables needs sm_80.*paper: the GPU is sm_75"
    refused(message, variants.choose, a_case(), old)


def test_every_variant_declares_its_names_and_its_place():
    shorts = {"optq": "", "paper": "r0", "lane_tables": "r3", "bit_planes": "r4", "uniform_mma": "r5"}  # fmt: skip
    every = variants.variants()
    assert {name: variant.short for name, variant in every.items()} == shorts
    best = ["uniform_mma", "bit_planes", "lane_tables", "paper"]
    assert [variant.name for variant in variants.preferred()] == best
    assert [variant.name for variant in variants.preferred("mixed_gemv_gpu")] == ["mixed_async"]
    assert sorted(variants.variants("mixed_gemv_gpu")) == ["mixed_async", "mixed_sync"]
    for name, variant in every.items():
        assert variants.variant(name) is variants.variant(variant.short or name) is variant
        assert variants.full_name(variant.short or name) == variants.full_name(name) == name
    assert variants.full_name("r1") == "r1"
    refused("no kernel variant 'r9': .*known: ", variants.variant, "r9")


@pytest.mark.parametrize(("name", "changes", "gpu", "knobs", "message"), [
    ("paper", {}, H200, {"lut": 3}, "paper has no knob 'lut': did you mean 'luts'"),
    ("paper", {"x": BF16}, H200, {}, "x is torch.bfloat16: paper computes in the dtype of x"),
    ("lane_tables", {"columns": 4096, "x": F32}, RTX_3090, {}, "131072 bytes of shared memory a block, sm_86 has"),
    ("lane_tables", {"m": 70_000}, H200, {}, "blocks for 70000 rows of x and K=256"),
])  # fmt: skip
def test_what_a_variant_cannot_do_is_refused_in_words(name, changes, gpu, knobs, message):
    refused(message, variants.variant(name).plan_for, a_case(**changes), gpu, knobs)


class StandIn:
    """What the launcher asks of CuPy, over cuda_on_host: kernels that get pointers and numbers as a driver does."""

    def __init__(self, path, function, carve):
        text = Path(path).with_name("kernel.cu").read_text()
        self.kernels = cuda_on_host.build(text, (function,))
        self.function, self.carve, self.launches = function, carve, []

    def __call__(self, grid, block, arguments, shared_mem):
        cells = [np.array([argument]) for argument in arguments]
        assert {cell.dtype.name for cell in cells} <= {"uint64", "int32"}
        addresses = [cell.ctypes.data for cell in cells]
        cause = cuda_on_host.call(self.kernels, self.function, addresses, grid, block, shared_mem)
        self.kernels.buffers_free()
        assert not cause, cause
        self.launches.append(grid)


@pytest.fixture
def gpu(monkeypatch):
    """The CPU taken for an H200: its device is called cpu."""
    made = []

    def load(path, function, device, gpu, carve=False):
        made.append(StandIn(path, function, carve))
        return made[-1]

    monkeypatch.setattr(launcher, "device_of", lambda device: torch.device("cpu"))
    monkeypatch.setattr(launcher, "gpu", lambda device: H200)
    monkeypatch.setattr(launcher, "load_kernel", load)
    monkeypatch.setattr(launcher, "on_torch_stream", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(launcher, "capturing", lambda: False)
    return made


def bind(packed, x=F16, device="cuda", variant=None, **knobs):
    return launcher.bind(packed, x, device, variant=variant, knobs=knobs)


@needs_nvrtc
@pytest.mark.parametrize("name", ["paper", "lane_tables"])
def test_a_bound_product_is_the_product(gpu, name):
    packed = weight(70, 200, 3, 32, offset="f32", ordered=True)
    product = bind(packed, variant=name)
    for shape in ((200,), (1, 200), (2, 1, 200)):
        x = inputs(2, 200, F16)[: 1 if len(shape) < 3 else 2].reshape(shape)
        room = torch.full((*shape[:-1], 70), torch.nan, dtype=F16)
        for y in (product(x), product(x, out=room)):
            assert y.shape == (*shape[:-1], 70)
            assert error(y.view(-1, 70), packed, x.view(-1, 200)) <= 3e-3
        assert y is room
    assert len(gpu) == 2  # loaded once for 1 row and once for 2
    assert product(inputs(0, 200, F16)).shape == (0, 70)


@needs_nvrtc
@pytest.mark.parametrize(("name", "knobs", "carved"), [
    ("paper", {}, [False]), ("lane_tables", {}, [True]), ("bit_planes", {"launches": 2}, [False, True]),
])  # fmt: skip
def test_shared_memory_is_asked_for_where_tables_or_rings_lie_in_it(gpu, name, knobs, carved):
    bind(weight(64, 256, 2, 128), variant=name, **knobs).prepare(1)
    assert [kernel.carve for kernel in gpu] == carved


@pytest.mark.parametrize(("carve", "carveout"), [(False, None), (True, 100)])
def test_a_kernel_is_loaded_with_its_attributes_on_its_device(carve, carveout, monkeypatch):
    """By CuPy's names; those of a RawKernel are checked against the installed CuPy."""
    raw, shared = pytest.importorskip("cupy").RawKernel, "max_dynamic_shared_size_bytes"
    for name in ("shared_size_bytes", shared, "preferred_shared_memory_carveout"):
        assert hasattr(raw, name)
    kernel, calls = types.SimpleNamespace(shared_size_bytes=1000), []

    @contextlib.contextmanager
    def device(index):
        calls.append(index)
        yield
        calls.append("left")

    module = types.SimpleNamespace(get_function=lambda name: calls.append(name) or kernel)
    device = types.SimpleNamespace(Device=device)
    stand_in = types.SimpleNamespace(RawModule=lambda path: module, cuda=device)
    monkeypatch.setitem(sys.modules, "cupy", stand_in)
    loaded = launcher.load_kernel("a.cubin", "k", torch.device("cuda", 3), H200, carve)
    assert loaded is kernel
    assert calls == [3, "k", "left"]
    assert kernel.max_dynamic_shared_size_bytes == H200.block_shared - 1000
    assert getattr(kernel, "preferred_shared_memory_carveout", None) == carveout


@needs_nvrtc
def test_the_record_says_what_runs(gpu):
    packed = weight(70, 200, 3, 40)
    product, named = bind(packed), bind(packed, variant="paper", luts=4)
    assert product.describe() == "lut_gemv paper (mu=8, luts=8, rows=2048, threads=256), sm_90"
    assert "luts=4" in named.describe()
    json.dumps(product.knobs)


@needs_nvrtc
def test_tensors_that_a_kernel_would_read_wrongly_are_refused(gpu):
    product, x = bind(weight(64, 96, 2, 32)), inputs(2, 96, F16)
    refused("x is torch.float32: this product was bound for torch.float16", product, x.float())
    refused(r"x has shape \(2, 95\): expected \(2, 96\)", product, x[:, :95])
    refused("x is not contiguous .*: call contiguous", product, inputs(2, 192, F16)[:, ::2])
    unaligned = inputs(1, 97, F16)[:, 1:]
    refused("x does not begin at a multiple of 16 bytes: clone", product, unaligned)
    refused("x is on meta, the weight on cpu: move", product, x.to("meta"))
    row = torch.empty(64, dtype=F16)
    refused(r"out has shape \(64,\): expected \(2, 64\)", product, x, out=row)
    refused("out is torch.float32", product, x, out=torch.empty(2, 64))


@needs_nvrtc
def test_a_graph_needs_a_prepared_product_whose_workspace_is_made_once(gpu, monkeypatch):
    product, x = bind(weight(64, 600, 2, 32)), inputs(2, 600, F16)
    monkeypatch.setattr(launcher, "capturing", lambda: True)
    refused(r"a graph is being captured with 2 rows of x: call prepare\(2\)", product, x)
    first = product.prepare(2)(x)
    monkeypatch.setattr(product, "_load", lambda *_: pytest.fail("allocated again"))
    assert torch.equal(product(x), first)


@needs_nvrtc
def test_a_copy_has_a_weight_of_its_own(gpu):
    product = bind(weight(64, 96, 2, 32), variant="lane_tables", threads=256)
    x = inputs(1, 96, F16)
    first, other = product(x), product.copy()
    product.weight.buffers["planes"].zero_()
    assert torch.equal(other(x), first)
    assert not torch.equal(product(x), first)
    assert other.describe() == product.describe()


@needs_nvrtc
def test_what_cannot_be_bound_is_refused_before_anything_is_done(gpu):
    packed = weight(64, 96, 2, 40)
    message = "g=40: lane_tables takes groups that are multiples of 32"
    refused(message, bind, packed, variant="lane_tables")
    refused("belong to a variant: name it", bind, packed, mu=4)
    assert gpu == []


def test_without_a_gpu_the_cause_is_told(monkeypatch):
    packed = weight(64, 96, 2, 32)
    refused("device=cpu: these kernels run on CUDA devices", bind, packed, device="cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    refused("no CUDA device that torch can use", bind, packed)


def test_a_cupy_that_does_not_fit_the_driver(monkeypatch):
    runtime = pytest.importorskip("cupy.cuda.runtime")

    def fails():
        raise runtime.CUDARuntimeError(35)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(runtime, "getDeviceCount", fails)
    message = r"CuPy, made for CUDA \d+, cannot use the GPU: .*InsufficientDriver"
    refused(message, bind, weight(64, 96, 2, 32))


def test_importing_needs_no_gpu_and_no_cupy():
    done = warm.run(
        "import sys; assert 'cupy' not in sys.modules; sys.modules['cupy'] = None; "
        "import lutlab.kernels.gpu.lut_gemv.launcher"
    )
    assert done.returncode == 0, done.stderr
