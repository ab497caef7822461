"""torch: dense products, and aten's weight-only int4 with activations in bfloat16."""

from __future__ import annotations

from collections.abc import Callable

from lutlab.base.lazy import torch
from lutlab.base.registry import register
from lutlab.measure.timing import Contestant
from lutlab.peers.contract import MultipliesOnCPU, MultipliesOnGPU, Product, checked


@register("peer", "torch")
class Torch(MultipliesOnCPU, MultipliesOnGPU):
    """See the top of this file."""

    modules = ("torch",)
    install = "torch"
    gpu_bits = (4,)

    @staticmethod
    def cpu_products(
        shape: tuple[int, int], m: int, g: int, threads: int, copies: Callable[[int], int]
    ) -> list[Product]:
        """See MultipliesOnCPU."""
        from lutlab.measure.products import relative_error

        rows, columns = shape
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(m, columns, generator=generator)
        weight = torch.randn(shape, generator=generator)
        full = [weight.clone() for _ in range(copies(weight.nbytes))]
        error = relative_error(x @ weight.t(), x, weight)
        run = lambda i: torch.mm(x, full[i].t())  # noqa: E731
        found = [Product("torch fp32", weight.nbytes, len(full), run, error=error)]
        if hasattr(torch.ops.aten, "_convert_weight_to_int4pack_for_cpu"):
            codes = torch.randint(0, 16, shape, generator=generator, dtype=torch.int32)
            scales = torch.rand(columns // g, rows, 2, generator=generator).bfloat16()
            words = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
            size = words.nbytes + scales.nbytes
            packs = [words.clone() for _ in range(copies(size))]
            half = x.bfloat16()

            def run(i: int) -> torch.Tensor:
                return torch.ops.aten._weight_int4pack_mm_for_cpu(half, packs[i], g, scales)

            error = relative_error(run(0), half, _dense(codes, scales.double(), g))
            one = Product(
                f"torch int4 g{g}", size, len(packs), run, error=error, activations="bf16"
            )
            found.append(checked(one, 1e-2))
        return found

    @staticmethod
    def gpu_product(
        shape: tuple[int, int], q: int, g: int, x: torch.Tensor, copies: Callable[[int], int]
    ) -> tuple[Contestant, torch.Tensor, torch.Tensor]:
        """See MultipliesOnGPU."""
        rows, columns = shape
        x = x.bfloat16()
        codes = torch.randint(0, 16, shape, device=x.device, dtype=torch.int32)
        scales = 0.01 * (0.5 + torch.rand(columns // g, rows, 2, device=x.device)).bfloat16()
        octets = (codes[:, ::2] << 4 | codes[:, 1::2]).to(torch.uint8)
        words = torch.ops.aten._convert_weight_to_int4pack(octets, 8)
        packs = [words.clone() for _ in range(copies(words.nbytes))]
        run = lambda i: torch.ops.aten._weight_int4pack_mm(x, packs[i], g, scales)  # noqa: E731
        one = Contestant("torch int4", words.nbytes + scales.nbytes, len(packs), run)
        return one, x, _dense(codes, scales.float(), g)


def _dense(codes: torch.Tensor, scales: torch.Tensor, g: int) -> torch.Tensor:
    """Codes [N, K] and scales [K / g, N, 2], each with its middle -> [N, K]."""
    wide = scales.repeat_interleave(g, dim=0)
    return ((codes.t().to(scales) - 8) * wide[..., 0] + wide[..., 1]).t()
