"""Gemlite: its best kernel for the shape, tuned by itself before it is timed."""

from __future__ import annotations

from collections.abc import Callable

from lutlab.base.lazy import torch
from lutlab.base.registry import register
from lutlab.measure.timing import Contestant
from lutlab.peers.contract import MultipliesOnGPU


@register("peer", "gemlite")
class Gemlite(MultipliesOnGPU):
    """See the top of this file."""

    modules = ("gemlite",)
    install = "gemlite"
    gpu_bits = (1, 2, 4, 8)

    @staticmethod
    def gpu_product(
        shape: tuple[int, int], q: int, g: int, x: torch.Tensor, copies: Callable[[int], int]
    ) -> tuple[Contestant, torch.Tensor, torch.Tensor]:
        """See MultipliesOnGPU."""
        from gemlite.core import DType, GemLiteLinear

        rows, columns = shape
        codes = torch.randint(0, 2**q, shape, device=x.device, dtype=torch.uint8)
        scale = 0.01 * (0.5 + torch.rand(rows, columns // g, device=x.device)).half()
        zero = torch.full_like(scale, 2 ** (q - 1))
        layers = []
        for _ in range(copies(rows * columns * q // 8)):
            half = DType.FP16
            layer = GemLiteLinear(q, g, columns, rows, input_dtype=half, output_dtype=half)
            layer.pack(codes.view(rows, columns), scale.view(-1, 1), zero.view(-1, 1), None)
            layers.append(layer)
        wide = [t.float().repeat_interleave(g, dim=1) for t in (scale, zero)]
        weight = (codes.float() - wide[1]) * wide[0]
        size = rows * columns * q // 8 + 2 * scale.nbytes
        return Contestant(f"gemlite W{q}", size, len(layers), lambda i: layers[i](x)), x, weight
