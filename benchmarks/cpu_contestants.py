"""Contestants of the CPU benchmark in this process: lutlab's kernels, our QIGen, and torch; rotated copies of weights.

Every output is checked against float64 before it is timed. Nothing but the timer is imported with this module: peers
run it in environments of their own.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from lutlab.measure.timing import Contestant, copies_for

GROUP = 128


@dataclass
class Entrant(Contestant):
    """A contestant with what the table says beside its times."""

    error: float = 0.0
    activations: str = "fp32"


def copies(size: int, args: argparse.Namespace) -> int:
    return copies_for(size, args.cold_mb * 2**20)


def ours(shape: tuple[int, int], m: int, args: argparse.Namespace) -> list[Entrant]:
    """BCQ planes and uniform codes; rotated copies hold the same bytes at other addresses."""
    import torch

    from lutlab.formats import bcq, bcq_rows, uniform_rows
    from lutlab.kernels.codegen import isa
    from lutlab.kernels.cpu import bcq_gemv, uniform_gemv
    from lutlab.measure.drawn import relative_error
    from lutlab.tensors import UniformTensor

    on = next(one for one in isa.runnable() if args.isa in (None, one.name))
    generator = torch.Generator().manual_seed(0)
    rows, columns = shape
    x = torch.randn(m, columns, generator=generator)
    groups = columns // GROUP
    found = []
    for q in args.bits:
        codes = torch.randint(0, 2**q, shape, generator=generator, dtype=torch.uint8)
        scale = (torch.rand(rows, groups, generator=generator) + 0.5).half()
        zero = torch.randint(0, 2**q, (rows, groups), generator=generator).short()
        uniform = UniformTensor(codes, scale, zero, q, GROUP)
        plain = bcq.pack(bcq.from_uniform(uniform))
        alpha = torch.rand(q, rows, groups, generator=generator).half()
        planes = bcq.PackedBCQ(plain.planes, alpha, None, shape, GROUP)
        lanes = bcq_gemv.lane_bytes(on, GROUP, columns)
        packed = bcq_rows.pack(planes, lane_bytes=lanes)
        weights = {f"bcq q{q}": (packed, bcq_gemv.kernel(packed, on), "fp32", 1e-6)}
        if lanes != 4 and q == 4:
            packed = bcq_rows.pack(planes)
            weights[f"bcq q{q}, tables of floats"] = (
                packed,
                bcq_gemv.kernel(packed, on),
                "fp32",
                1e-6,
            )
        if (on.name, bcq_gemv.INT16) in bcq_gemv.INTEGERS:
            few = bcq_gemv.lane_bytes(on, GROUP, columns, bcq_gemv.INT16)
            packed = bcq_rows.pack(planes, lane_bytes=few)
            kernel = bcq_gemv.kernel(packed, on, bcq_gemv.INT16)
            weights[f"{kernel.variant} q{q}"] = (packed, kernel, kernel.variant.split()[-1], 1e-4)
        if q <= 3:
            packed = bcq_rows.pack_uniform(uniform, lane_bytes=lanes)
            weights[f"uniform q{q} as planes"] = (packed, bcq_gemv.kernel(packed, on), "fp32", 1e-6)
        if q == 4:
            packed = uniform_rows.pack(uniform)
            weights[f"uniform q{q}"] = (packed, uniform_gemv.kernel(packed, on), "fp32", 1e-6)
        for name, (packed, kernel, activations, limit) in weights.items():
            dense = packed.dequantize()
            error = relative_error(kernel.gemv(x, packed), x, dense)
            assert error < limit, (name, error)
            streams = [packed.stream.clone() for _ in range(copies(packed.stream.numel(), args))]

            def run(i: int, kernel=kernel, packed=packed, streams=streams) -> None:
                object.__setattr__(packed, "stream", streams[i])
                kernel.gemv(x, packed)

            size = packed.stream.numel()
            named = f"lutlab {name} ({on.name})"
            found.append(
                Entrant(named, size, len(streams), run, error=error, activations=activations)
            )
            if m > 1 and name.endswith("q4"):
                room = torch.empty(shape)

                def dense_gemm(i: int, kernel=kernel, packed=packed, streams=streams, room=room):
                    object.__setattr__(packed, "stream", streams[i])
                    torch.nn.functional.linear(x, kernel.dense(packed, out=room))

                named = f"lutlab {name} dense + torch mm"
                found.append(Entrant(named, size, len(streams), dense_gemm))
    return found


def qigens(shape: tuple[int, int], m: int, args: argparse.Namespace) -> list[Entrant]:
    """QIGen's own kernels, generated as its paper says: a scale for 128 weights, and one a column."""
    import torch

    from lutlab.kernels.cpu import qigen_gemv
    from lutlab.measure.cpu_contestants import qigen_copies
    from lutlab.measure.drawn import relative_error
    from lutlab.tensors import UniformTensor

    generator = torch.Generator().manual_seed(0)
    rows, columns = shape
    x = torch.randn(m, columns, generator=generator)
    found = []
    for q in [q for q in args.bits if q <= 4]:
        if args.search and not qigen_gemv.parameters(shape, q, GROUP).searched:
            qigen_gemv.search(q)
        for group in (GROUP, -1):
            groups = columns // GROUP if group == GROUP else 1
            codes = torch.randint(0, 2**q, shape, generator=generator, dtype=torch.uint8)
            scale = torch.rand(rows, groups, generator=generator) + 0.5
            zero = torch.randint(0, 2**q, (rows, groups), generator=generator).short()
            packed = qigen_gemv.prepare(UniformTensor(codes, scale, zero, q, group))
            error = relative_error(qigen_gemv.gemv(x, packed), x, packed.dequantize())
            assert error < 1e-4, error
            size = packed.bits_stored // 8
            weights = qigen_copies(packed, copies(size, args))

            def run(i: int, weights=weights) -> None:
                qigen_gemv.gemv(x, weights[i])

            wide = f"g{group}" if group > 0 else "columns"
            name = f"QIGen q{q} {wide} ({qigen_gemv.instructions().name})"
            found.append(Entrant(name, size, len(weights), run, error=error))
    return found


def torches(shape: tuple[int, int], m: int, args: argparse.Namespace) -> list[Entrant]:
    """Full precision by matrix-vector product, and aten's weight-only int4 (bfloat16 activations)."""
    import torch

    from lutlab.measure.drawn import relative_error

    rows, columns = shape
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(m, columns, generator=generator)
    weight = torch.randn(shape, generator=generator)
    full = [weight.clone() for _ in range(copies(weight.numel() * 4, args))]
    error = relative_error(x @ weight.t(), x, weight)
    found = [
        Entrant(
            "torch fp32",
            weight.numel() * 4,
            len(full),
            lambda i: torch.mm(x, full[i].t()),
            error=error,
        )
    ]
    if hasattr(torch.ops.aten, "_convert_weight_to_int4pack_for_cpu"):
        codes = torch.randint(0, 16, shape, generator=generator, dtype=torch.int32)
        scales = torch.rand(columns // GROUP, rows, 2, generator=generator).bfloat16()
        words = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        size = words.nbytes + scales.nbytes
        packs = [words.clone() for _ in range(copies(size, args))]
        half = x.bfloat16()

        def run(i: int) -> torch.Tensor:
            return torch.ops.aten._weight_int4pack_mm_for_cpu(half, packs[i], GROUP, scales)

        wide = scales.double().repeat_interleave(GROUP, dim=0)
        dense = ((codes.t().double() - 8) * wide[..., 0] + wide[..., 1]).t()
        error = relative_error(run(0), half, dense)
        assert error < 1e-2, error
        named = "torch int4 g128"
        found.append(Entrant(named, size, len(packs), run, error=error, activations="bf16"))
    return found
