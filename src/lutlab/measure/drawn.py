"""Operands of a timed product, drawn from the row's seed, as a speed does not depend on values; the exact product.

x [M, K], a dense W [N, K]: normal        codes [N, K]: uniform, scales [N, G] or [q, N, G]: positive
of method=mixed_2_4_16: a normal W rounded to groups in drawn places, its largest weights outliers
"""

from __future__ import annotations

from collections.abc import Callable

from lutlab.groups import check_group_size, group_count, group_length
from lutlab.lazy import torch
from lutlab.quantizers.mixed_2_4_16 import Mixed2416
from lutlab.specs import ProductRun, Shape
from lutlab.tensors import BCQTensor, MixedTensor, UniformTensor

MIXED = "mixed_2_4_16"
_CHECKED_WEIGHTS = 2**22  # at a time, in float64


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
    groups, q = group_count(check_group_size(g), columns), spec.q
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
    return method.round_to(weight, method.choose(whole, spec.q, length, None), g)


def exact_product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The product x [M, K], weight [N, K] -> [M, N] in float64, some rows of the weight at a time."""
    step = max(1, _CHECKED_WEIGHTS // weight.shape[1])
    return torch.cat([x.double() @ part.double().t() for part in weight.split(step)], dim=1)


def relative_error(y: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> float:
    """|y - x W^T| / |x W^T| of y [M, N], the product of x [M, K] and weight [N, K] in float64."""
    expected = exact_product(x, weight)
    return float((y.double() - expected).norm() / expected.norm())
