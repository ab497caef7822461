"""One matrix product as a row: y[M, N] = x[M, K] W[N, K]^T with drawn weights and no model in sight.

    model=product model.id=49152x12288      N x K, or N x K x M; M is 1 where it is not said
                  model.id=36864x12288+12288x12288    several in turn, as those of a layer, timed as one
    method   none: dense · rtn: uniform codes · bcq: binary codes, with an offset where method.offset says so ·
             mixed_2_4_16: groups of 2 and 4 bits, with outliers where method.outliers says so
    kernel   auto: the best of lutlab's for the device · lut_gemm: the papers' own, on a GPU that is `paper`
             tensor_parallel_8: method=none on 8 GPUs, or any number of them (tensor_parallel.py)
             optq: 3-bit codes, dequantized inside the kernel, as OPTQ's does · int16: tables of 16 bits, on a CPU
             int8: 8-bit codes and activations by cuBLAS, or torch
             paper (r0): the papers', with their knobs mu, l and t_h, as mu=4 knobs.luts=4 knobs.rows=1024; plain C on a
             CPU · lane_tables (r3), …: another variant of the GPU kernel (kernels/README.md), with knobs of its own ·
             of mixed_2_4_16 mixed_async, mixed_sync, as knobs.outliers=cusparse

Operands are drawn from the row's seed, as a speed does not depend on values: x [M, K] and a dense W [N, K] normal,
codes [N, K] uniform, scales [N, G] or [q, N, G] positive; of mixed_2_4_16 a normal W, rounded to groups in drawn
places, its largest weights outliers. contestants.py makes what is timed of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, cast

from lutlab.base.errors import LutlabError, nearest
from lutlab.base.groups import check_group_size, group_count, group_length
from lutlab.base.lazy import torch
from lutlab.base.specs import ProductRun, Shape
from lutlab.base.tensors import BCQTensor, MixedTensor, UniformTensor
from lutlab.kernels.codegen import compiler
from lutlab.kernels.cpu import paper_tables
from lutlab.kernels.gpu.variants import full_name, preferred, variant, variants
from lutlab.quantizers.mixed_2_4_16 import Mixed2416

MIXED = "mixed_2_4_16"
KERNELS = ("auto", "lut_gemm", "optq", "int16", "int8")
# Kernels that a paper's table has and nobody measures here -> why.
ABSENT = {
    "awq": "AWQ's kernel is no part of lutlab, which measures peers in benchmarks/ only",
}
METHODS = ("none", "rtn", "bcq", MIXED)
# Bytes of all copies of a contestant's weights: 10 times a CPU's last-level cache, 4 times a GPU's L2, within a limit.
CPU_CACHES, GPU_CACHES, COLD_LIMIT = 10, 4, 2**30
_CHECKED_WEIGHTS = 2**22  # at a time, in float64


def parse_shapes(text: str) -> tuple[Shape, ...]:
    """(N, K, M) of each product that a model.id names.

    >>> parse_shapes("4096x1024+1024x4096x8")
    ((4096, 1024, 1), (1024, 4096, 8))

    Raises:
        LutlabError: it is no shape.
    """
    shapes = []
    for part in text.split("+"):
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)(?:x([1-9]\d*))?", part)
        if not match:
            raise LutlabError(
                f"model.id={text} is not the shape of a product: give out_features x in_features, as "
                "4096x1024, with the rows of x as 4096x1024x8, or several as 4096x1024+1024x4096"
            )
        shapes.append((int(match[1]), int(match[2]), int(match[3] or 1)))
    return tuple(shapes)


def obstacle(spec: ProductRun) -> str:
    """Reason for not measuring a row here; empty where it can be.

    Raises:
        LutlabError: the row asks for something that no product has.
    """
    if spec.method not in METHODS:
        raise LutlabError(
            f"method={spec.method}: a product's weights are drawn, as method={' or '.join(METHODS)} would store them"
        )
    if spec.device == "spread":
        raise LutlabError("a product is timed on one device: set device=cpu or device=cuda")
    if spec.kernel in ABSENT:
        return ABSENT[spec.kernel]
    if gpus_of(spec) > 1:
        return _on_gpus(spec)
    if spec.kernel == "optq" and (spec.method != "rtn" or spec.q > 4):
        raise LutlabError("kernel=optq multiplies uniform codes of 2 to 4 bits: set method=rtn q=3")
    if spec.kernel == "int8" and (spec.method, spec.q, spec.g) != ("rtn", 8, -1):
        raise LutlabError("kernel=int8 multiplies 8-bit codes alone: set method=rtn q=8 g=-1")
    if spec.method == MIXED and spec.kernel in ("lut_gemm", "int16"):
        raise LutlabError(
            f"kernel={spec.kernel} multiplies binary codes: set kernel=auto for method={MIXED}"
        )
    if spec.kernel not in KERNELS or spec.knobs:
        _check_variant(spec)
    if spec.device == "cpu":
        return _on_a_cpu(spec)
    if spec.kernel == "optq" and spec.dtype != "float16":
        return "lutlab's GPU kernel in the place of OPTQ's takes float16 activations only"
    if variant_of(spec.kernel) == "paper" and spec.dtype == "bfloat16":
        return (
            "the papers' kernel computes in the dtype of x, float16 or float32, and not in bfloat16"
        )
    return "tables of 16 bits are of the CPU kernels" if spec.kernel == "int16" else ""


def _check_variant(spec: ProductRun) -> None:
    """Raises LutlabError unless the kernel is a variant of the method's GPU kernel that has all the knobs."""
    name = variant_of(spec.kernel)
    ops = ("mixed_gemv_gpu", "lut_gemv") if spec.method == MIXED else ("lut_gemv", "mixed_gemv_gpu")
    names, other = map(variants, ops)
    if name in other:
        raise LutlabError(
            f"kernel={spec.kernel} does not multiply weights of method={spec.method}: take kernel=auto, or one of "
            f"{', '.join(names)}"
        )
    if name not in names and spec.kernel in KERNELS:
        knob = spec.knobs[0][0]
        raise LutlabError(
            f"kernel={spec.kernel} has no knob '{knob}': name a variant, as kernel={preferred(ops[0])[-1].name}"
        )
    if name not in names:
        known = {*KERNELS, *ABSENT, "tensor_parallel_2", *names}
        raise LutlabError(f"unknown kernel '{spec.kernel}': {nearest(spec.kernel, known)}")
    if not on_cpu(spec):
        variant(name, ops[0]).with_knobs(dict(spec.knobs))


def variant_of(kernel: str) -> str | None:
    """The GPU kernel's variant that a kernel is; None: the best one."""
    return {"auto": None, "lut_gemm": "paper"}.get(kernel, full_name(kernel))


def on_cpu(spec: ProductRun) -> bool:
    """Whether a row asks for the papers' kernel where it is C, with knobs that are those of a CPU."""
    return spec.device == "cpu" and variant_of(spec.kernel) == "paper" and spec.kernel != "lut_gemm"


def gpus_of(spec: ProductRun) -> int:
    """Number of GPUs that share a product: p of kernel=tensor_parallel_<p>, else 1."""
    match = re.fullmatch(r"tensor_parallel_([2-9]|[1-9]\d+)", spec.kernel)
    return int(match[1]) if match else 1


def _on_gpus(spec: ProductRun) -> str:
    gpus, kernel = gpus_of(spec), f"kernel={spec.kernel}"
    if spec.method != "none":
        raise LutlabError(f"{kernel} multiplies dense weights only: set method=none")
    if spec.knobs:
        raise LutlabError(f"{kernel} has no knob '{spec.knobs[0][0]}'")
    if ragged := [rows for rows, _, _ in spec.shapes if rows % gpus]:
        raise LutlabError(
            f"{kernel} gives each GPU as many rows of W: {ragged[0]} rows do not divide by {gpus}"
        )
    if spec.device not in ("cpu", "cuda"):
        raise LutlabError(f"{kernel} takes the first {gpus} GPUs: set device=cuda")
    if spec.device == "cpu":
        return f"needs {gpus} GPUs, and there is no CUDA device"
    if (count := torch.cuda.device_count()) < gpus:
        return f"needs {gpus} GPUs, this machine has {count}"
    if not torch.distributed.is_nccl_available():
        return f"needs {gpus} GPUs that meet through NCCL, and this torch was built without it"
    return ""


def _on_a_cpu(spec: ProductRun) -> str:
    if spec.dtype != "float32":
        raise LutlabError(f"dtype={spec.dtype}: on a CPU a product is timed in float32")
    if on_cpu(spec):
        if spec.method != "bcq":
            raise LutlabError(f"kernel={spec.kernel} multiplies binary codes: set method=bcq")
        paper_tables.check(dict(spec.knobs))
    elif spec.kernel not in KERNELS or spec.knobs:
        return f"{variant_of(spec.kernel)} is a GPU kernel, and there is no CUDA device"
    try:
        compiler.find()
    except compiler.NoCompiler as error:
        return str(error)
    return ""


# ---- its operands ----


def operands(spec: ProductRun, shape: Shape) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Draw from the row's seed, on its device: x [M, K] and, of method=none, the weight [N, K], both float32."""
    rows, columns, tokens = shape
    normal = _normal(spec, spec.seed + 1)
    x = normal(tokens, columns)
    return x, normal(rows, columns) if spec.method == "none" else None


def _normal(spec: ProductRun, seed: int) -> Callable[..., torch.Tensor]:
    """A source of normal tensors of any size on the row's device."""
    generator = torch.Generator(spec.device).manual_seed(seed)
    return lambda *size: torch.randn(size, generator=generator, device=spec.device)


def draw(spec: ProductRun, shape: Shape, g: int) -> UniformTensor | BCQTensor | MixedTensor:
    """Codes and scales of the row's method, drawn from its seed, with groups of g."""
    if spec.method == MIXED:
        return _mixed(spec, shape, g)
    rows, columns, _ = shape
    device = spec.device
    generator = torch.Generator(device).manual_seed(spec.seed)
    groups = group_count(check_group_size(g), columns)
    q = cast("int", spec.q)  # a fraction is of groups of several widths
    codes = torch.randint(
        0, 2**q, (rows, columns), generator=generator, device=device, dtype=torch.uint8
    )

    options = dict(spec.options)
    wide = "fp32" in (options.get("alpha_dtype"), options.get("scale_dtype"))
    dtype = torch.float32 if wide else torch.float16

    def positive(*size: int) -> torch.Tensor:
        return 0.01 * (0.5 + torch.rand(size, generator=generator, device=device))

    if spec.method == "rtn":
        zero = torch.randint(0, 2**q, (rows, groups), generator=generator, device=device)
        return UniformTensor(codes, positive(rows, groups).to(dtype), zero.short(), q, g)
    powers = 2.0 ** torch.arange(q, device=device).view(-1, 1, 1)
    alpha = (positive(q, rows, groups) * powers).to(dtype)
    offset = positive(rows, groups).to(dtype) if options.get("offset") else None
    return BCQTensor(codes, alpha, offset, q, g)


def _mixed(spec: ProductRun, shape: Shape, g: int) -> MixedTensor:
    """Groups of 2 and 4 bits; those of 4 are drawn, since which they are decides no speed."""
    rows, columns, _ = shape
    options = dict(spec.options) | {"sensitivity": "random", "neighbours": False}
    method = Mixed2416(**options)
    length = group_length(check_group_size(g), columns)
    weight = _normal(spec, spec.seed)(rows, columns)
    whole = weight.new_empty(1, group_count(g, columns) * length)  # of which choose sees the size
    inputs: Any = None  # which random sensitivities do not read
    return method.round_to(weight, method.choose(whole, spec.q, length, inputs), g)


def exact_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The product x [M, K], weight [N, K] -> [M, N] in float64, some rows of the weight at a time."""
    step = max(1, _CHECKED_WEIGHTS // weight.shape[1])
    return torch.cat([x.double() @ part.double().t() for part in weight.split(step)], dim=1)


def relative_error(y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> float:
    """|y - x W^T| / |x W^T| of y [M, N], the product of x [M, K] and weight [N, K] in float64."""
    expected = exact_product(x, weight)
    return float((y.double() - expected).norm() / expected.norm())
