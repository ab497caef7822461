"""Marlin: its int4 product, symmetric; its workspace is zeroed by itself."""

from __future__ import annotations

import copy
from collections.abc import Callable

from lutlab.base.lazy import torch
from lutlab.base.registry import register
from lutlab.measure.timing import Contestant
from lutlab.peers.contract import MultipliesOnGPU


@register("peer", "marlin")
class Marlin(MultipliesOnGPU):
    """See the top of this file."""

    modules = ("marlin",)
    install = "marlin"
    gpu_bits = (3, 4)

    @staticmethod
    def gpu_product(
        shape: tuple[int, int], q: int, g: int, x: torch.Tensor, copies: Callable[[int], int]
    ) -> tuple[Contestant, torch.Tensor, torch.Tensor]:
        """See MultipliesOnGPU."""
        import marlin

        rows, columns = shape
        scale = 0.01 * (0.5 + torch.rand(rows, columns // g, device=x.device)).half()
        codes = torch.randint(0, 16, shape, device=x.device)
        weight = (codes - 8).half() * scale.repeat_interleave(g, dim=1)
        dense = torch.nn.Linear(columns, rows, bias=False, device=x.device, dtype=torch.float16)
        dense.weight.data = weight
        layer = marlin.Layer(columns, rows, g).cuda()
        layer.pack(dense, scale)
        size = layer.B.nbytes + layer.s.nbytes
        layers = [layer, *(copy.deepcopy(layer) for _ in range(copies(size) - 1))]
        return Contestant("Marlin int4", size, len(layers), lambda i: layers[i](x)), x, weight
