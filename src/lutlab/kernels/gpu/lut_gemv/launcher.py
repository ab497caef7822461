"""Runs a variant's plan on a GPU: CuPy launches its cubin on torch's current stream and memory; nothing is copied.

    gemv = bind(packed, torch.float16, "cuda")      choose, pack, compile, load                      # once a weight
    gemv.prepare(1)                                 workspace, arguments                  # once a number of rows of x
    y = gemv(x)                                     [.., K] -> [.., N]; no allocation but y, no synchronisation

A prepared product can be captured in a CUDA graph. It keeps one workspace: use it on one stream at a time.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from lutlab.base.errors import LutlabError
from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.contract import Format
from lutlab.formats.uniform import PackedUniform
from lutlab.kernels.codegen import cuda
from lutlab.kernels.gpu import variants
from lutlab.kernels.gpu.lut_gemv.variant import Gpu, Knobs, Plan, Step, Variant, Weight, case

if TYPE_CHECKING:
    from typing import Self  # of Python 3.11, for type checkers only

ALIGNMENT = 16  # bytes, of x and y: kernels read and write vectors


def bind(
    packed: PackedBCQ | PackedUniform,
    dtype: torch.dtype,
    device: torch.device | str = "cuda",
    variant: str | None = None,
    knobs: Knobs | None = None,
) -> Product:
    """A weight, stored on any device, made ready for products with x of a dtype on a GPU.

    variant: its name; None: the best one that takes this weight here; knobs: in the place of its defaults.

    Raises:
        LutlabError: no such variant or knob, no GPU, one too old for it, a weight that it does not take, no compiler.
    """
    device = device_of(device)
    limits, case_ = gpu(device), case(packed, dtype)
    if variant is None and knobs:
        raise LutlabError(f"knobs {dict(knobs)} belong to a variant: name it")
    chosen = variants.choose(case_, limits) if variant is None else variants.variant(variant)
    chosen.plan_for(case_, limits, knobs)  # refuses before anything is packed
    return Product(chosen, chosen.packed(packed).to(device), dtype, device, limits, knobs or {})


@dataclass(eq=False, repr=False)
class Product:
    """y = x W^T with one weight and one variant; made by bind."""

    variant: Variant
    weight: Weight
    dtype: torch.dtype
    device: torch.device
    gpu: Gpu
    knobs: Knobs

    def __post_init__(self) -> None:
        self.knobs = self.variant.with_knobs(self.knobs)
        # By rows of x: the plan, a kernel and arguments of each launch, and the workspace, to which these point.
        self._ready: dict[int, tuple[Plan, list[tuple[Any, list[Any]]], dict[str, torch.Tensor]]]
        self._ready = {}
        self._order = None if self.weight.order is None else self.weight.order.long()

    def describe(self) -> str:
        """Name of the kernel, for a record: variant, knobs, architecture."""
        knobs = ", ".join(f"{name}={value}" for name, value in self.knobs.items())
        return f"{self.variant.op} {self.variant.name} ({knobs}), {self.gpu.arch}"

    @property
    def bytes_read(self) -> int:
        """Bytes of the weight in the layout that the kernel reads."""
        return layout_bytes(self.weight)

    @property
    def rows(self) -> tuple[int, ...]:
        """The numbers of rows of x that it is prepared for."""
        return tuple(self._ready)

    def copy(self) -> Self:
        """The same with a weight and a workspace of its own: a race with cold weights takes several in turn."""
        weight = copy.deepcopy(self.weight)
        return type(self)(self.variant, weight, self.dtype, self.device, self.gpu, self.knobs)

    def prepare(self, m: int) -> Self:
        """Compile, load and allocate for m rows of x; before a graph is captured. Returns itself."""
        if m not in self._ready:
            case_ = self.variant.case(self.weight, self.dtype, m)
            plan = self.variant.plan_for(case_, self.gpu, self.knobs)
            octet, on = torch.uint8, self.device
            space = {n: torch.empty(s, dtype=octet, device=on) for n, s in plan.workspace.items()}
            space |= {n: torch.zeros(s, dtype=octet, device=on) for n, s in plan.zeroed.items()}
            self._ready[m] = plan, self._load(plan, space), space
        return self

    def __call__(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Multiply: y = x W^T.

        Args:
            x: [..., K], contiguous, of the dtype it was bound for, on the weight's GPU.
            out: [..., N] to be filled and returned; None: a new tensor.

        Raises:
            LutlabError: x or out is not as above; a graph is being captured and m rows were not prepared.
        """
        rows, columns = self.weight.shape
        shape = (*x.shape[:-1], rows)
        self._check("x", x, (*x.shape[:-1], columns))
        if out is None:
            out = torch.empty(shape, dtype=self.dtype, device=x.device)
        self._check("out", out, shape)
        m = x.numel() // columns
        if m == 0:
            return out
        if m not in self._ready and capturing():
            raise LutlabError(
                f"a graph is being captured with {m} rows of x: call prepare({m}) before"
            )
        plan, launches, _ = self.prepare(m)._ready[m]
        if self._order is not None:
            x = x.index_select(-1, self._order)
        if plan.zero_y:
            out.zero_()
        pointers = {"x": np.uint64(x.data_ptr()), "y": np.uint64(out.data_ptr())}
        with on_torch_stream(self.device):
            for step, (kernel, prepared) in zip(plan.steps, launches, strict=True):
                arguments = tuple(pointers[a] if isinstance(a, str) else a for a in prepared)
                kernel(step.grid, (step.block, 1, 1), arguments, shared_mem=step.shared)
        return out

    def _check(self, name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
        """Raises LutlabError: a tensor that the kernel would read wrongly."""
        if tensor.device != self.device:
            raise LutlabError(
                f"{name} is on {tensor.device}, the weight on {self.device}: move one of them"
            )
        if tensor.dtype != self.dtype:
            raise LutlabError(f"{name} is {tensor.dtype}: this product was bound for {self.dtype}")
        if tensor.dim() == 0 or tuple(tensor.shape) != shape:
            raise LutlabError(f"{name} has shape {tuple(tensor.shape)}: expected {shape}")
        if not tensor.is_contiguous():
            raise LutlabError(
                f"{name} is not contiguous (strides {tensor.stride()}): call contiguous()"
            )
        if tensor.data_ptr() % ALIGNMENT:
            raise LutlabError(
                f"{name} does not begin at a multiple of {ALIGNMENT} bytes: clone() it"
            )

    def _load(self, plan: Plan, space: dict[str, torch.Tensor]) -> list[tuple[Any, list[Any]]]:
        """Of each step its kernel and arguments: numbers, pointers to buffers, "x" and "y" as names."""
        text = cuda.source(plan.file, plan.parameters)
        name = f"{plan.file.split('/')[0]}-{self.variant.name}"
        path = str(cuda.build(text, name, self.gpu.arch).path)
        buffers = {**self.weight.buffers, **space}

        def argument(a: str | int) -> Any:
            if isinstance(a, int):
                return np.int32(a)
            return a if a in ("x", "y") else pointer(buffers[a])

        def kernel(step: Step) -> Any:
            return load_kernel(path, step.function, self.device, self.gpu, carve=step.shared > 0)

        return [(kernel(step), [argument(a) for a in step.arguments]) for step in plan.steps]


def layout_bytes(weight: Format | Weight) -> int:
    """Bytes of the buffers that a product reads, which are all but the order."""
    buffers = (tensor for name, tensor in weight.buffers.items() if name != "order")
    return sum(tensor.nbytes for tensor in buffers if tensor is not None)


def gpu(device: torch.device) -> Gpu:
    """The limits of a device, as CUDA reports them."""
    from cupy.cuda import runtime

    def attribute(name: str) -> int:
        return runtime.deviceGetAttribute(getattr(runtime, f"cudaDevAttr{name}"), device.index)

    major, minor = torch.cuda.get_device_capability(device)
    return Gpu(
        arch=f"sm_{major}{minor}",
        sms=attribute("MultiProcessorCount"),
        block_shared=attribute("MaxSharedMemoryPerBlockOptin"),
        sm_shared=attribute("MaxSharedMemoryPerMultiprocessor"),
    )


def load_kernel(
    path: str, function: str, device: torch.device, gpu: Gpu, carve: bool = False
) -> Any:
    """A function of a cubin, allowed all shared memory; loaded now: later would break the capture of a graph.

    carve: an SM's L1 cache gives way to shared memory, so that as many blocks share the SM as the plan counts on. For
    kernels with tables or rings in shared memory, which read little else twice; the driver's own choice may be less.
    """
    import cupy

    with cupy.cuda.Device(device.index):
        kernel = cupy.RawModule(path=path).get_function(function)
        kernel.max_dynamic_shared_size_bytes = gpu.block_shared - kernel.shared_size_bytes
        if carve:
            kernel.preferred_shared_memory_carveout = 100  # percent
    return kernel


def device_of(device: torch.device | str) -> torch.device:
    """A CUDA device with its number, which torch and CuPy can use.

    Raises:
        LutlabError: there is none; CuPy is not made for this driver.
    """
    device = torch.device(device)
    if device.type != "cuda":
        raise LutlabError(f"device={device}: these kernels run on CUDA devices")
    if not torch.cuda.is_available():
        raise LutlabError(
            "no CUDA device that torch can use: torch needs a build with CUDA, the machine a GPU and its driver "
            "(nvidia-smi shows both)"
        )
    cuda.check()
    from cupy.cuda import runtime

    try:
        count = runtime.getDeviceCount()
    except runtime.CUDARuntimeError as error:
        raise LutlabError(
            f"CuPy, made for CUDA {cuda.cupy_cuda()}, cannot use the GPU: {error}. Install the ONE CuPy wheel "
            "(cupy-cuda12x, cupy-cuda13x) of a CUDA version that the driver supports; nvidia-smi shows it"
        ) from error
    index = torch.cuda.current_device() if device.index is None else device.index
    if index >= count:
        raise LutlabError(f"device={device}: there are {count} CUDA devices, numbered from 0")
    return torch.device("cuda", index)


def capturing() -> bool:
    """Whether a CUDA graph is being captured."""
    return torch.cuda.is_current_stream_capturing()


class _TorchStream:
    """torch's current stream by the CUDA stream protocol."""

    def __init__(self, device: torch.device) -> None:
        self._pointer = torch.cuda.current_stream(device).cuda_stream

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._pointer


@contextlib.contextmanager
def on_torch_stream(device: torch.device) -> Iterator[None]:
    """CuPy launches on torch's current stream of a device."""
    import cupy

    stream = cupy.cuda.Stream.from_external(_TorchStream(device))
    with cupy.cuda.Device(device.index), stream:
        yield


def pointer(tensor: torch.Tensor | None) -> np.uint64:
    """A tensor as an argument of a launch; None is the null pointer."""
    return np.uint64(0 if tensor is None else tensor.data_ptr())
