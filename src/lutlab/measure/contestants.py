"""What takes turns when a product is timed, made of drawn weights and checked against float64.

    own       the row's kernel                         best      lutlab's best kernel, where the row's is the papers'
    fp16      the dense product of the same matrix     rowwise   the row's kernel with one scale a row
    fp32      in 16 and in 32 bits                     memory    reads (CPU) or copies (GPU)

Dense products are cuBLAS through torch, each in the layout of W that won a short race, [N, K] or [K, N]; on a CPU
torch's float32 product stands in for both. What is multiplied is drawn (drawn.py).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lutlab.errors import LutlabError
from lutlab.measure import products
from lutlab.measure.drawn import draw, exact_product, operands
from lutlab.measure.timing import COLD, Contestant, GpuTimer, copies_for, race, together
from lutlab.specs import ProductRun, Shape
from lutlab.tensors import UniformTensor

if TYPE_CHECKING:
    import torch

    from lutlab.formats.bcq import PackedBCQ

# |y - x W^T| / |x W^T| beyond which a product is wrong; in 16 bits it may be summed in 16 bits, as LUT-GEMM does.
_ERRORS = {"int8": 0.0, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
_INT16_ERROR = 1e-3
_MOST_COPIES = 4096
_CHOOSING_ROUNDS = 20  # of the race between cuBLAS's layouts


@dataclass(frozen=True)
class Entrants:
    """Who takes turns, as the module says. One may be in several places; `rowwise` is None where it has no meaning."""

    own: Contestant
    best: Contestant
    fp16: Contestant
    fp32: Contestant
    rowwise: Contestant | None
    memory: Contestant
    facts: dict[str, Any]

    def all(self) -> list[Contestant]:
        """Each once, in the order in which they take turns."""
        found = (self.memory, self.fp16, self.fp32, self.own, self.best, self.rowwise)
        return list({id(one): one for one in found if one is not None}.values())


def enter(spec: ProductRun, kind: str = COLD) -> Entrants:
    """Draw the weights, make the contestants and check what each of them computes.

    Args:
        spec: the row.
        kind: of weights, cold or resident, with which cuBLAS's layouts race.

    Raises:
        LutlabError: a product is wrong, or there is no kernel for the row.
    """
    maker = Maker(spec, *cold_bytes(spec.device), kind)
    made = [maker.part(shape) for shape in spec.shapes]
    joined = {
        name: together([part[name] for part in made]) if made[0][name] else None for name in made[0]
    }
    if maker.cpu:
        joined["fp16"] = joined["fp32"]
    if spec.method == "none":
        joined["own"] = joined["own"] or joined["fp16" if spec.dtype == "float16" else "fp32"]
    joined["best"] = joined["best"] or joined["own"]
    baseline = "torch float32 product, in the place of cuBLAS"
    if not maker.cpu:
        baseline = f"cuBLAS: {joined['fp16'].name}, {joined['fp32'].name}"
    names = {"kernel": joined["own"].name, "best_kernel": joined["best"].name}
    return Entrants(
        **joined, memory=maker.memory(), facts={"baseline": baseline} | names | maker.facts
    )


def cold_bytes(device: str) -> tuple[int, dict[str, Any]]:
    """Bytes of all copies of a contestant's weights, and what a record says of it."""
    if device == "cpu":
        from lutlab.kernels.codegen.qigen_model import caches

        cache, times = caches().l3, products.CPU_CACHES
    else:
        import torch

        cache = torch.cuda.get_device_properties(device).L2_cache_size
        times = products.GPU_CACHES
    cold = min(times * cache, products.COLD_LIMIT)
    return cold, {"cache_bytes": cache, "cold_bytes": cold}


@dataclass
class Maker:
    """Makes the contestants of a row's products, each with so many copies that they are `cold` bytes.

    facts, for a record, grow: relative_errors by name; on a GPU cublas_us, what each layout took in the short race.
    """

    spec: ProductRun
    cold: int
    facts: dict[str, Any]
    kind: str = COLD

    @property
    def cpu(self) -> bool:
        """Whether the row's device is the CPU."""
        return self.spec.device == "cpu"

    def copies(self, size: int) -> int:
        """Of weights of so many bytes; tiny ones are not all cold."""
        return min(copies_for(size, self.cold), _MOST_COPIES)

    def part(self, shape: Shape) -> dict[str, Contestant | None]:
        """The contestants of one product; None where there is nothing of that name."""
        spec = self.spec
        x, weight = operands(spec, shape)
        own = best = rowwise = None
        if weight is None:
            own, weight = self.quantized(x, shape, spec.g, spec.kernel)
            if spec.g != -1:
                rowwise, _ = self.quantized(x, shape, -1, spec.kernel)
            if spec.kernel == "lut_gemm" and not self.cpu:
                best, _ = self.quantized(x, shape, spec.g, "auto")
        elif spec.dtype == "bfloat16":
            own = self.dense(weight.bfloat16(), x.bfloat16())
        fp16 = None if self.cpu else self.dense(weight.half(), x.half())
        fp32 = self.dense(weight, x)
        return {"own": own, "best": best, "fp16": fp16, "fp32": fp32, "rowwise": rowwise}

    def dense(self, weight: torch.Tensor, x: torch.Tensor) -> Contestant:
        """The product with a dense weight [N, K] by torch, in x's dtype; on a GPU the faster of cuBLAS's layouts."""
        name = f"torch {str(weight.dtype).removeprefix('torch.')}"
        if self.cpu:
            return self._by_torch(name, weight, x)
        across = weight.t().contiguous().t()
        layouts = {f"{name} [N, K]": weight, f"{name} [K, N]": across}
        both = [self._by_torch(layout, stored, x) for layout, stored in layouts.items()]
        race(both, GpuTimer(), _CHOOSING_ROUNDS, (self.kind,))
        shape = "x".join(map(str, (*weight.shape, len(x))))
        took = {one.name: one.seconds(self.kind) * 1e6 for one in both}
        self.facts.setdefault("cublas_us", {}).setdefault(shape, {}).update(took)
        return dataclasses.replace(min(both, key=lambda one: took[one.name]), rounds={})

    def _by_torch(self, name: str, weight: torch.Tensor, x: torch.Tensor) -> Contestant:
        """As W [N, K] is stored, rows or columns first."""
        import torch

        size = weight.nbytes
        copies = [weight, *(weight.clone() for _ in range(self.copies(size) - 1))]  # strides stay
        one = Contestant(name, size, len(copies), lambda i: torch.mm(x, copies[i].t()))
        return self.checked(one, x, weight)

    def quantized(
        self, x: torch.Tensor, shape: Shape, g: int, kernel: str
    ) -> tuple[Contestant, torch.Tensor]:
        """A kernel with groups of g, and the matrix [N, K] float32 that it multiplies by."""
        import torch

        from lutlab import formats

        drawn = draw(self.spec, shape, g)
        if kernel == "int8":
            return self._int8(x, drawn.codes)
        x = x.to(getattr(torch, self.spec.dtype))
        packed = formats.pack(drawn)
        weight = packed.dequantize()
        if not self.cpu:
            one = self._gpu(x, packed, kernel)
        else:
            one = self._optq(x, drawn) if kernel == "optq" else self._cpu(x, packed, kernel)
        return self.checked(one, x, weight), weight

    def _cpu(self, x: torch.Tensor, packed: PackedBCQ, kernel: str) -> Contestant:
        from lutlab.kernels.cpu.linear import cpu_linear

        linear = cpu_linear(packed, "int16" if kernel == "int16" else "exact")
        stream = linear.packed.stream
        copies = [
            dataclasses.replace(
                linear, packed=dataclasses.replace(linear.packed, stream=stream.clone())
            )
            for _ in range(self.copies(stream.nbytes))
        ]
        name = linear.describe(linear.few(x))
        return Contestant(name, stream.nbytes, len(copies), lambda i: copies[i](x))

    def _gpu(self, x: torch.Tensor, packed: PackedBCQ, kernel: str) -> Contestant:
        """The one place that knows the GPU kernels."""
        import torch

        from lutlab.kernels.gpu import choice
        from lutlab.kernels.gpu.linear import gpu_linear
        from lutlab.kernels.gpu.lut_gemv import launcher
        from lutlab.kernels.gpu.lut_gemv.variant import case

        variant = products.variant_of(kernel)
        if variant is None:
            wanted, device = case(packed, x.dtype, len(x)), launcher.device_of(x.device)
            gpu_name = torch.cuda.get_device_name(device)
            variant, _ = choice.choose(wanted, launcher.gpu(device), gpu_name)
        if variant == choice.DENSE:
            size = sum(
                t.nbytes for t in (packed.planes, packed.alpha, packed.offset) if t is not None
            )
            linear = gpu_linear(packed)
            return Contestant("dequantize every call, cuBLAS", size, 1, lambda i: linear(x))
        knobs = dict(self.spec.knobs) if kernel == self.spec.kernel else None
        first = launcher.bind(packed, x.dtype, x.device, variant, knobs)
        size = sum(buffer.nbytes for buffer in first.weight.buffers.values() if buffer is not None)
        copies = [first, *(first.copy() for _ in range(self.copies(size) - 1))]
        for product in copies:
            product.prepare(len(x))
        return Contestant(first.describe(), size, len(copies), lambda i: copies[i](x))

    def _optq(self, x: torch.Tensor, drawn: UniformTensor) -> Contestant:
        """OPTQ's way on a CPU is QIGen's kernel: GPTQ's codes, dequantized in registers and multiplied."""
        from lutlab.kernels.cpu import qigen_gemv

        packed = qigen_gemv.prepare(drawn)
        buffers = ("words", "scale", "zero")
        size = sum(getattr(packed, name).nbytes for name in buffers)
        copies = [
            dataclasses.replace(packed, **{n: getattr(packed, n).clone() for n in buffers})
            for _ in range(self.copies(size))
        ]
        name = qigen_gemv.variant(packed)
        return Contestant(name, size, len(copies), lambda i: qigen_gemv.gemv(x, copies[i]))

    def _int8(self, x: torch.Tensor, codes: torch.Tensor) -> tuple[Contestant, torch.Tensor]:
        """Eight-bit codes and activations, summed in 32 bits; on a GPU cuBLAS takes no fewer than 17 rows of x."""
        import torch

        weight = (codes.int() - 128).to(torch.int8)
        rows = len(x) if self.cpu else max(32, len(x))
        few = torch.zeros(rows, x.shape[1], dtype=torch.int8, device=x.device)
        few[: len(x)] = (32 * x).round().clamp(-127, 127).to(torch.int8)
        size = weight.nbytes
        copies = [weight, *(weight.clone() for _ in range(self.copies(size) - 1))]
        one = Contestant(
            "torch int8", size, len(copies), lambda i: torch._int_mm(few, copies[i].t())
        )
        return self.checked(one, few, weight), weight.float()

    def memory(self) -> Contestant:
        """What memory allows."""
        import torch

        from lutlab.measure.timing import cpu_reader, gpu_copier

        return cpu_reader(self.cold, torch.get_num_threads()) if self.cpu else gpu_copier(self.cold)

    def checked(self, one: Contestant, x: torch.Tensor, weight: torch.Tensor) -> Contestant:
        """The contestant, if its first and last copy multiply by the weight; the error is a fact of the record."""
        dtype = str(x.dtype).removeprefix("torch.")
        limit = _INT16_ERROR if self.spec.kernel == "int16" else _ERRORS[dtype]
        expected = exact_product(x, weight)
        for one_of in {0, one.copies - 1}:
            error = float((one.run(one_of).double() - expected).norm() / expected.norm())
            if not error <= limit:
                raise LutlabError(
                    f"{one.name} is wrong: |y - x W^T| is {error:.1e} of |x W^T|, at most {limit:.0e} was expected "
                    f"in {dtype}; its speed would say nothing"
                )
            errors = self.facts.setdefault("relative_errors", {})
            errors[one.name] = max(error, errors.get(one.name, 0.0))
        return one
