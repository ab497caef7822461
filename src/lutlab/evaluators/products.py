"""One matrix product as a workload: y[M, N] = x[M, K] W[N, K]^T with drawn weights and no model in sight.

    model=product model.id=49152x12288      N x K, or N x K x M; M is 1 where it is not said
    method   none: dense · rtn: uniform codes · bcq: binary codes, with an offset where method.offset says so
    kernel   auto: the best of lutlab's · optq: 3-bit codes, dequantized inside the kernel, as OPTQ's kernel does

What takes turns in one process: the row's own kernel; the dense product of the same matrix in 16 and in 32 bits
(cuBLAS; on a CPU torch's float32 product stands in for both); where the row has groups, its kernel with one scale a
row; and what memory allows. A speed does not depend on the weights' values, so they are drawn from the seed.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lutlab.errors import LutlabError, nearest
from lutlab.groups import check_group_size, group_count
from lutlab.records import BCQTensor, RunSpec, UniformTensor
from lutlab.timing import Contestant, copies_for

if TYPE_CHECKING:
    import torch

    from lutlab.formats.bcq import PackedBCQ

KERNELS = ("auto", "optq")
# Kernels that a paper's table has and nobody measures here -> why.
ABSENT = {
    "int8": "lutlab has no product of INT8 weights and INT8 activations",
    "awq": "AWQ's kernel is no part of lutlab, which measures peers in benchmarks/ only",
    "tensor_parallel_2": "needs 2 GPUs, and lutlab has no tensor-parallel product",
    "tensor_parallel_4": "needs 4 GPUs, and lutlab has no tensor-parallel product",
    "tensor_parallel_8": "needs 8 GPUs, and lutlab has no tensor-parallel product",
}
METHODS = ("none", "rtn", "bcq")
# Copies of a contestant's weights make 10 times the last-level cache or 4 times a GPU's L2, and at most so many bytes.
CPU_CACHES, GPU_CACHES, COLD_LIMIT = 10, 4, 2**30
# |y - x W^T| / |x W^T| beyond which a product is wrong; in 16 bits it may be summed in 16 bits, as LUT-GEMM does.
_ERRORS = {"float32": 1e-5, "float16": 1e-2, "bfloat16": 5e-2}
_CHECKED_WEIGHTS = 2**22  # at a time, in float64


@dataclass(frozen=True)
class Entrants:
    """Who takes turns. `own` may be one of the dense ones.

    Attributes:
        own: the row's kernel.
        fp16: the dense product in 16 bits; on a CPU the one in 32.
        fp32: the dense product in 32 bits.
        rowwise: the row's kernel with one scale a row; None where it has that, or no scales.
        memory: reads (CPU) or copies (GPU).
        facts: for the record.
    """

    own: Contestant
    fp16: Contestant
    fp32: Contestant
    rowwise: Contestant | None
    memory: Contestant
    facts: dict[str, Any] = field(default_factory=dict)

    def all(self) -> list[Contestant]:
        """Each once, in the order in which they take turns."""
        found = (self.memory, self.fp16, self.fp32, self.own, self.rowwise)
        return list({id(one): one for one in found if one is not None}.values())


def shape_of(spec: RunSpec) -> tuple[int, int, int]:
    """(N, K, M) of a product.

    Raises:
        LutlabError: model.id is no shape.
    """
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)(?:x([1-9]\d*))?", spec.model.id)
    if not found:
        raise LutlabError(
            f"model.id={spec.model.id} is not the shape of a product: give out_features x in_features, as 4096x1024, "
            "or with the rows of x as 4096x1024x8"
        )
    return int(found[1]), int(found[2]), int(found[3] or 1)


def obstacle(spec: RunSpec) -> str:
    """Why a row cannot be measured here; empty where it can.

    Raises:
        LutlabError: the row asks for something that no product has.
    """
    if spec.model.source != "product":
        return (
            "it is the speed of one matrix product (model=product model.id=<N>x<K>), not of a model"
        )
    shape_of(spec)
    if spec.method not in METHODS:
        raise LutlabError(
            f"method={spec.method}: a product's weights are drawn, as method={' or '.join(METHODS)} would store them"
        )
    if spec.kernel not in (*KERNELS, *ABSENT):
        known = [*KERNELS, *ABSENT]
        raise LutlabError(f"unknown kernel '{spec.kernel}': {nearest(spec.kernel, known)}")
    if spec.kernel in ABSENT:
        return ABSENT[spec.kernel]
    if spec.kernel == "optq" and (spec.method != "rtn" or spec.q > 4):
        raise LutlabError("kernel=optq multiplies uniform codes of 2 to 4 bits: set method=rtn q=3")
    if spec.device == "spread":
        raise LutlabError("a product is timed on one device: set device=cpu or device=cuda")
    if spec.device == "cpu":
        return _cpu_obstacle(spec)
    return "the GPU kernels are not in this version yet"


def _cpu_obstacle(spec: RunSpec) -> str:
    from lutlab.codegen import compiler

    if spec.dtype != "float32":
        raise LutlabError(f"dtype={spec.dtype}: on a CPU a product is timed in float32")
    try:
        compiler.find()
    except compiler.NoCompiler as error:
        return str(error)
    return ""


# ---- weights ----


def draw(spec: RunSpec, g: int) -> UniformTensor | BCQTensor:
    """Codes and scales of the row's method, drawn from its seed, with groups of g."""
    import torch

    rows, columns, _ = shape_of(spec)
    device = spec.device
    generator = torch.Generator(device).manual_seed(spec.seed)
    groups, q = group_count(check_group_size(g), columns), spec.q
    codes = torch.randint(
        0, 2**q, (rows, columns), generator=generator, device=device, dtype=torch.uint8
    )

    def positive(*shape: int) -> torch.Tensor:
        return 0.01 * (0.5 + torch.rand(shape, generator=generator, device=device))

    if spec.method == "rtn":
        zero = torch.randint(0, 2**q, (rows, groups), generator=generator, device=device)
        return UniformTensor(codes, positive(rows, groups).half(), zero.short(), q, g)
    alpha = (
        positive(q, rows, groups) * 2.0 ** torch.arange(q, device=device).view(-1, 1, 1)
    ).half()
    offset = positive(rows, groups).half() if dict(spec.options).get("offset") else None
    return BCQTensor(codes, alpha, offset, q, g)


# ---- contestants ----


def entrants(spec: RunSpec) -> Entrants:
    """Draw the weights, make the contestants and check what each of them computes.

    Raises:
        LutlabError: a product is wrong, or there is no kernel for the row.
    """
    import torch

    rows, columns, tokens = shape_of(spec)
    generator = torch.Generator(spec.device).manual_seed(spec.seed + 1)
    x = torch.randn(tokens, columns, generator=generator, device=spec.device)
    cold, facts = _cold_bytes(spec.device)
    maker = _Maker(spec, x.to(getattr(torch, spec.dtype)), cold, facts)
    if spec.method == "none":
        weight = torch.randn(rows, columns, generator=generator, device=spec.device)
        own = rowwise = None
    else:
        own, weight = maker.quantized(spec.g)
        grouped = group_count(spec.g, columns) > 1
        rowwise = maker.quantized(-1)[0] if grouped else None
    facts["baseline"] = "torch float32 product, in the place of cuBLAS" if maker.cpu else "cuBLAS"
    fp32 = maker.dense(weight, x)
    fp16 = fp32 if maker.cpu else maker.dense(weight.half(), x.half())
    own = own or (fp16 if spec.dtype == "float16" else fp32)
    facts["kernel"] = own.name
    return Entrants(own, fp16, fp32, rowwise, maker.memory(), facts)


def _cold_bytes(device: str) -> tuple[int, dict[str, Any]]:
    """Bytes of all copies of a contestant's weights, and what a record says of it."""
    if device == "cpu":
        from lutlab.codegen.qigen_model import caches

        cache, times = caches().l3, CPU_CACHES
    else:
        import torch

        cache, times = torch.cuda.get_device_properties(device).L2_cache_size, GPU_CACHES
    cold = min(times * cache, COLD_LIMIT)
    return cold, {"cache_bytes": cache, "cold_bytes": cold}


@dataclass
class _Maker:
    """What all contestants of a row share."""

    spec: RunSpec
    x: torch.Tensor
    cold: int
    facts: dict[str, Any]

    @property
    def cpu(self) -> bool:
        return self.spec.device == "cpu"

    def dense(self, weight: torch.Tensor, x: torch.Tensor) -> Contestant:
        """The product with a dense weight [N, K] by torch, in x's dtype."""
        import torch

        size = weight.nbytes
        copies = [weight, *(weight.clone() for _ in range(copies_for(size, self.cold) - 1))]
        name = f"torch {str(weight.dtype).removeprefix('torch.')}"
        one = Contestant(name, size, len(copies), lambda i: torch.mm(x, copies[i].t()))
        self._check(one, x, weight)
        return one

    def quantized(self, g: int) -> tuple[Contestant, torch.Tensor]:
        """The row's kernel with groups of g, and the matrix [N, K] float32 that it multiplies by."""
        from lutlab import formats

        drawn = draw(self.spec, g)
        packed = formats.pack(drawn)
        weight = packed.dequantize()
        one = self._optq(drawn) if self.spec.kernel == "optq" else self._lutlab(packed)
        self._check(one, self.x, weight)
        return one, weight

    def _lutlab(self, packed: PackedBCQ) -> Contestant:
        from lutlab.kernels.linear import cpu_linear

        linear = cpu_linear(packed)
        size = linear.packed.stream.nbytes
        copies = [
            dataclasses.replace(
                linear,
                packed=dataclasses.replace(linear.packed, stream=linear.packed.stream.clone()),
            )
            for _ in range(copies_for(size, self.cold))
        ]
        name = linear.describe(linear.few(self.x))
        return Contestant(name, size, len(copies), lambda i: copies[i](self.x))

    def _optq(self, drawn: UniformTensor) -> Contestant:
        """OPTQ's way on a CPU is QIGen's kernel: GPTQ's codes, dequantized in registers and multiplied."""
        from lutlab.kernels import qigen_gemv

        packed = qigen_gemv.prepare(drawn)
        buffers = ("words", "scale", "zero")
        size = sum(getattr(packed, name).nbytes for name in buffers)
        copies = [
            dataclasses.replace(packed, **{n: getattr(packed, n).clone() for n in buffers})
            for _ in range(copies_for(size, self.cold))
        ]
        name = qigen_gemv.variant(packed)
        return Contestant(name, size, len(copies), lambda i: qigen_gemv.gemv(self.x, copies[i]))

    def memory(self) -> Contestant:
        """What memory allows."""
        import torch

        from lutlab.timing import cpu_reader, gpu_copier

        return cpu_reader(self.cold, torch.get_num_threads()) if self.cpu else gpu_copier(self.cold)

    def _check(self, one: Contestant, x: torch.Tensor, weight: torch.Tensor) -> None:
        """Every copy's product against float64, the first one's error being kept."""
        dtype = str(x.dtype).removeprefix("torch.")
        limit = _ERRORS[dtype]
        for copy in {0, one.copies - 1}:
            error = relative_error(one.run(copy), x, weight)
            if not error <= limit:
                raise LutlabError(
                    f"{one.name} is wrong: |y - x W^T| is {error:.1e} of |x W^T|, at most {limit:.0e} was expected in "
                    f"{dtype}; its speed would say nothing"
                )
        self.facts.setdefault("relative_errors", {})[one.name] = error


def relative_error(y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> float:
    """|y - x W^T| / |x W^T|, the product in float64: y [M, N], x [M, K], weight [N, K]."""
    import torch

    step = max(1, _CHECKED_WEIGHTS // weight.shape[1])
    expected = torch.cat([x.double() @ part.double().t() for part in weight.split(step)], dim=1)
    return float((y.double() - expected).norm() / expected.norm())
