"""The reference against float64, the choice of a variant, and the launcher with a stand-in for CuPy and the GPU."""

import ctypes
import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import warm
from tests.kernels.gpu import cuda_on_host, reference
from tests.kernels.gpu.lut_gemv_matrix import F16, F32, error, inputs, weight
from tests.kernels.weights import uniform_tensor

from lutlab.base.errors import LutlabError
from lutlab.formats import bcq
from lutlab.kernels.codegen import cuda
from lutlab.kernels.gpu import variants
from lutlab.kernels.gpu.lut_gemv import launcher, paper
from lutlab.kernels.gpu.lut_gemv.variant import GPUS, H200, RTX_3090, Case, case

# ---- reference ----


@given(
    rows=st.integers(1, 40),
    columns=st.integers(1, 150),
    q=st.integers(1, 8),
    g=st.sampled_from([-1, 8, 24, 32, 40, 64]),
    mu=st.integers(1, 8),
    m=st.integers(1, 3),
    offset=st.sampled_from([None, "f16", "f32"]),
    ordered=st.booleans(),
)
@settings(deadline=None, max_examples=40)
def test_reference_is_the_dense_product(rows, columns, q, g, mu, m, offset, ordered):
    packed = weight(rows, columns, q, g, alpha="f32", offset=offset, ordered=ordered)
    x = inputs(m, columns, F32).double().numpy()
    y = reference.gemv(paper.pack(packed), x, mu)
    found = error(torch.from_numpy(y), packed, torch.from_numpy(x))
    assert found <= 1e-7  # dequantize() is float32


def test_reference_of_uniform_codes():
    packed = bcq.pack(bcq.from_uniform(uniform_tensor(33, 70, 4, 32)))
    x = inputs(2, 70, F16)
    y = reference.gemv(paper.pack(packed), x.numpy())
    assert error(torch.from_numpy(y), packed, x) <= 1e-7


# ---- choice ----


def a_case(**changes):
    plain = {"m": 1, "rows": 64, "columns": 256, "bits": 3, "group_size": 32, "x": F16}
    return Case(**{**plain, "alpha": F16, "offset": F16, **changes})


def test_the_first_that_takes_a_case_is_chosen_and_named(monkeypatch):
    some = [variants.variant(name) for name in ("lane_tables", "paper")]
    monkeypatch.setattr(variants, "preferred", lambda: some)
    for gpu in GPUS:
        assert variants.choose(a_case(), gpu).name == "lane_tables"
        assert variants.choose(a_case(group_size=40), gpu).name == "paper"


def test_every_variant_declares_its_names_and_its_place():
    found = variants.variants()
    assert {name: one.short for name, one in found.items()} == {
        "optq": "",
        "paper": "r0",
        "lane_tables": "r3",
        "bit_planes": "r4",
        "uniform_mma": "r5",
    }
    best = ["uniform_mma", "bit_planes", "lane_tables", "paper"]
    assert [one.name for one in variants.preferred()] == best
    assert [one.name for one in variants.preferred("mixed_gemv_gpu")] == ["mixed_async"]
    assert sorted(variants.variants("mixed_gemv_gpu")) == ["mixed_async", "mixed_sync"]
    for name, one in found.items():
        assert variants.variant(name) is variants.variant(one.short or name) is one
        assert variants.full_name(one.short or name) == variants.full_name(name) == name
    assert variants.full_name("r1") == "r1"


def test_nothing_takes_an_old_gpu_and_every_reason_is_told():
    old = type(H200)("sm_75", 40, 65_536, 65_536)
    with pytest.raises(
        LutlabError,
        match=r"lane_tables: the GPU is sm_75: lane_tables needs sm_80.*paper: the GPU is sm_75",
    ):
        variants.choose(a_case(), old)


def test_what_does_not_exist_is_refused_in_words():
    with pytest.raises(LutlabError, match=r"no kernel variant 'r9': .*known: "):
        variants.variant("r9")
    with pytest.raises(LutlabError, match="paper has no knob 'lut': did you mean 'luts'"):
        variants.variant("paper").plan_for(a_case(), H200, {"lut": 3})
    with pytest.raises(LutlabError, match=r"mu=9: a table has 2\^mu entries"):
        variants.variant("paper").plan_for(a_case(), H200, {"mu": 9})
    knobs = {"table": "float"}
    with pytest.raises(
        LutlabError, match="131072 bytes of shared memory a block, sm_86 has 101376"
    ):
        variants.variant("lane_tables").plan_for(a_case(columns=4096), RTX_3090, knobs)
    with pytest.raises(LutlabError, match="blocks for 70000 rows of x and K=256"):
        variants.variant("lane_tables").plan_for(a_case(m=70_000), H200)
    with pytest.raises(
        LutlabError, match=r"x is torch.int8: the GPU kernels take float16, bfloat16 and float32"
    ):
        case(weight(4, 32, 1, -1), torch.int8)
    with pytest.raises(LutlabError, match=r"x is torch.bfloat16: paper computes in the dtype of x"):
        variants.variant("paper").plan_for(a_case(x=torch.bfloat16), H200)


# ---- launcher, with a GPU of this test's own making ----


class StandIn:
    """What the launcher asks of CuPy, over cuda_on_host: kernels that get pointers and numbers as a driver does."""

    def __init__(self, path, function):
        text = Path(path).with_name("kernel.cu").read_text()
        self.kernels = cuda_on_host.build(text, (function,))
        self.function = function
        self.launches = []

    def __call__(self, grid, block, arguments, shared_mem):
        cells = [np.array([argument]) for argument in arguments]
        assert {cell.dtype.name for cell in cells} <= {"uint64", "int32"}
        pointers = (ctypes.c_void_p * len(cells))(*(cell.ctypes.data for cell in cells))
        cause = ctypes.c_char_p()
        failed = self.kernels.launch(
            getattr(self.kernels, f"call_{self.function}"),
            (ctypes.c_uint * 3)(*grid),
            (ctypes.c_uint * 3)(*block),
            ctypes.c_size_t(shared_mem),
            pointers,
            0,
            ctypes.byref(cause),
        )
        self.kernels.buffers_free()
        assert not failed, cause.value
        self.launches.append(grid)


@pytest.fixture
def gpu(monkeypatch):
    """The CPU taken for an H200: its device is called cpu."""
    made = []

    def load(path, function, device, gpu, carve=False):
        made.append(StandIn(path, function))
        made[-1].carve = carve
        return made[-1]

    class Nothing:
        def __init__(self, index): ...
        def __enter__(self): ...
        def __exit__(self, *error): ...

    monkeypatch.setattr(launcher, "device_of", lambda device: torch.device("cpu"))
    monkeypatch.setattr(launcher, "gpu", lambda device: H200)
    monkeypatch.setattr(launcher, "load_kernel", load)
    monkeypatch.setattr(launcher, "on_torch_stream", Nothing)
    monkeypatch.setattr(launcher, "capturing", lambda: False)
    return made


@cuda_on_host.needs_nvrtc
@pytest.mark.parametrize("name", ["paper", "lane_tables"])
def test_a_bound_product_is_the_product(gpu, name):
    packed = weight(70, 200, 3, 32, alpha="f16", offset="f32", ordered=True)
    product = launcher.bind(packed, F16, "cuda", variant=name)
    for shape in ((200,), (1, 200), (2, 1, 200)):
        x = inputs(2, 200, F16)[: 1 if len(shape) < 3 else 2].reshape(shape)
        room = torch.full((*shape[:-1], 70), torch.nan, dtype=F16)
        for y in (product(x), product(x, out=room)):
            assert y.shape == (*shape[:-1], 70)
            assert error(y.view(-1, 70), packed, x.view(-1, 200)) <= 3e-3
        assert y is room
    assert len(gpu) == 2  # loaded once for 1 row and once for 2
    assert product(inputs(0, 200, F16)).shape == (0, 70)


@cuda_on_host.needs_nvrtc
@pytest.mark.parametrize(
    ("name", "carved"), [("paper", [False]), ("lane_tables", [True]), ("bit_planes", [False, True])]
)
def test_shared_memory_is_asked_for_where_tables_or_rings_lie_in_it(gpu, name, carved):
    knobs = {"launches": 2} if name == "bit_planes" else {}
    launcher.bind(weight(64, 256, 2, 128), F16, variant=name, knobs=knobs).prepare(1)
    assert [kernel.carve for kernel in gpu] == carved


@pytest.mark.parametrize(("carve", "attributes"), [(False, {}), (True, {"carveout": 100})])
def test_a_kernel_is_loaded_with_its_attributes_on_its_device(carve, attributes, monkeypatch):
    """By CuPy's names; those of a RawKernel are checked against the installed CuPy."""
    raw = pytest.importorskip("cupy").RawKernel
    names = (
        "shared_size_bytes",
        "max_dynamic_shared_size_bytes",
        "preferred_shared_memory_carveout",
    )
    assert all(hasattr(raw, name) for name in names)
    kernel = types.SimpleNamespace(shared_size_bytes=1000)
    on = []

    class Device:
        def __init__(self, index):
            self.index = index

        def __enter__(self):
            on.append(self.index)

        def __exit__(self, *error):
            on.append("left")

    module = types.SimpleNamespace(get_function=lambda name: on.append(name) or kernel)
    stand_in = types.SimpleNamespace(
        RawModule=lambda path: module, cuda=types.SimpleNamespace(Device=Device)
    )
    monkeypatch.setitem(sys.modules, "cupy", stand_in)
    loaded = launcher.load_kernel("a.cubin", "k", torch.device("cuda", 3), H200, carve)
    assert loaded is kernel
    assert on == [3, "k", "left"]
    assert kernel.max_dynamic_shared_size_bytes == H200.block_shared - 1000
    assert getattr(kernel, "preferred_shared_memory_carveout", None) == attributes.get("carveout")


@cuda_on_host.needs_nvrtc
def test_the_record_says_what_runs(gpu):
    packed = weight(70, 200, 3, 40)
    assert launcher.bind(packed, F16).describe() == (
        "lut_gemv paper (mu=8, luts=8, rows=2048, threads=256), sm_90"
    )
    assert "luts=4" in launcher.bind(packed, F16, variant="paper", knobs={"luts": 4}).describe()
    json.dumps(launcher.bind(packed, F16).knobs)


@cuda_on_host.needs_nvrtc
def test_tensors_that_a_kernel_would_read_wrongly_are_refused(gpu):
    product = launcher.bind(weight(64, 96, 2, 32), F16)
    x = inputs(2, 96, F16)
    with pytest.raises(
        LutlabError, match=r"x is torch.float32: this product was bound for torch.float16"
    ):
        product(x.float())
    with pytest.raises(LutlabError, match=r"x has shape \(2, 95\): expected \(2, 96\)"):
        product(x[:, :95])
    with pytest.raises(LutlabError, match=r"x is not contiguous .*: call contiguous"):
        product(inputs(2, 192, F16)[:, ::2])
    with pytest.raises(LutlabError, match="x does not begin at a multiple of 16 bytes: clone"):
        product(inputs(1, 97, F16)[:, 1:])
    with pytest.raises(LutlabError, match="x is on meta, the weight on cpu: move"):
        product(x.to("meta"))
    with pytest.raises(LutlabError, match=r"out has shape \(64,\): expected \(2, 64\)"):
        product(x, out=torch.empty(64, dtype=F16))
    with pytest.raises(LutlabError, match=r"out is torch.float32"):
        product(x, out=torch.empty(2, 64))


@cuda_on_host.needs_nvrtc
def test_a_graph_needs_a_prepared_product(gpu, monkeypatch):
    product = launcher.bind(weight(64, 96, 2, 32), F16)
    monkeypatch.setattr(launcher, "capturing", lambda: True)
    with pytest.raises(
        LutlabError, match=r"a graph is being captured with 2 rows of x: call prepare\(2\)"
    ):
        product(inputs(2, 96, F16))
    product.prepare(2)
    product(inputs(2, 96, F16))


@cuda_on_host.needs_nvrtc
def test_the_workspace_is_made_once(gpu, monkeypatch):
    product = launcher.bind(weight(64, 600, 2, 32), F16).prepare(1)
    x = inputs(1, 600, F16)
    first = product(x)
    monkeypatch.setattr(product, "_load", lambda *_: pytest.fail("allocated again"))
    assert torch.equal(product(x), first)


@cuda_on_host.needs_nvrtc
def test_a_copy_has_a_weight_of_its_own(gpu):
    product = launcher.bind(
        weight(64, 96, 2, 32), F16, variant="lane_tables", knobs={"threads": 256}
    )
    x = inputs(1, 96, F16)
    first, other = product(x), product.copy()
    product.weight.buffers["planes"].zero_()
    assert torch.equal(other(x), first)
    assert not torch.equal(product(x), first)
    assert other.describe() == product.describe()


@cuda_on_host.needs_nvrtc
def test_what_cannot_be_bound_is_refused_before_anything_is_done(gpu):
    packed = weight(64, 96, 2, 40)
    with pytest.raises(
        LutlabError, match="g=40: lane_tables takes groups that are multiples of 32"
    ):
        launcher.bind(packed, F16, variant="lane_tables")
    with pytest.raises(LutlabError, match="belong to a variant: name it"):
        launcher.bind(packed, F16, knobs={"mu": 4})
    assert gpu == []


def test_without_a_gpu_the_cause_is_told(monkeypatch):
    packed = weight(64, 96, 2, 32)
    with pytest.raises(LutlabError, match="device=cpu: these kernels run on CUDA devices"):
        launcher.bind(packed, F16, "cpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(LutlabError, match="no CUDA device that torch can use"):
        launcher.bind(packed, F16)


def test_a_cupy_that_does_not_fit_the_driver(monkeypatch):
    runtime = pytest.importorskip("cupy.cuda.runtime")

    def fails():
        raise runtime.CUDARuntimeError(35)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(runtime, "getDeviceCount", fails)
    with pytest.raises(
        LutlabError, match=r"CuPy, made for CUDA \d+, cannot use the GPU: .*InsufficientDriver"
    ):
        launcher.bind(weight(64, 96, 2, 32), F16)


def test_importing_needs_no_gpu_and_no_cupy():
    code = "import sys; assert 'cupy' not in sys.modules; sys.modules['cupy'] = None; " + (
        "import lutlab.kernels.gpu.lut_gemv.launcher"
    )
    done = warm.run(code)
    assert done.returncode == 0, done.stderr


@cuda_on_host.needs_nvrtc
def test_every_source_that_is_compiled_is_kept_beside_its_cubin():
    plan = variants.variant("paper").plan_for(a_case(), H200)
    text = cuda.source(plan.file, plan.parameters)
    assert (cuda.build(text, "test", "sm_90").path.parent / "kernel.cu").read_text() == text
