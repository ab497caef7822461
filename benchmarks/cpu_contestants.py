"""Contestants of the CPU benchmark in this process: lutlab's kernels and our QIGen; rotated copies of weights.

Every output is checked against float64 before it is timed. Nothing but the timer is imported with this module, which
runs in the peers' environments too.
"""

from __future__ import annotations

import argparse

from lutlab.measure.timing import copies_for
from lutlab.peers.contract import Product

GROUP = 128


def copies(size: int, args: argparse.Namespace) -> int:
    return copies_for(size, args.cold_mb * 2**20)


def ours(shape: tuple[int, int], m: int, args: argparse.Namespace) -> list[Product]:
    """BCQ planes and uniform codes; rotated copies hold the same bytes at other addresses."""
    import torch

    from lutlab.base.tensors import UniformTensor
    from lutlab.formats import bcq
    from lutlab.formats.uniform import PackedUniform
    from lutlab.kernels.codegen import isa
    from lutlab.kernels.cpu import bcq_gemv, uniform_gemv
    from lutlab.kernels.cpu.rows.rows_gemv import kernel as built

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
        uniform = PackedUniform.pack(UniformTensor(codes, scale, zero, q, GROUP))
        plain = uniform.to_bcq()
        alpha = torch.rand(q, rows, groups, generator=generator).half()
        planes = bcq.PackedBCQ(plain.planes, alpha, None, shape, GROUP)
        lanes = bcq_gemv.lane_bytes(on, GROUP, columns)
        packed = bcq_gemv.empty(planes, lanes).filled(planes)
        weights = {f"bcq q{q}": (packed, built(packed, on), "fp32", 1e-6)}
        if lanes != 4 and q == 4:
            packed = bcq_gemv.empty(planes).filled(planes)
            weights[f"bcq q{q}, tables of floats"] = (
                packed,
                built(packed, on),
                "fp32",
                1e-6,
            )
        if (on.name, bcq_gemv.INT16) in bcq_gemv.INTEGERS:
            few = bcq_gemv.lane_bytes(on, GROUP, columns, bcq_gemv.INT16)
            packed = bcq_gemv.empty(planes, few).filled(planes)
            kernel = built(packed, on, bcq_gemv.INT16)
            weights[f"{kernel.variant} q{q}"] = (packed, kernel, kernel.variant.split()[-1], 1e-4)
        if q <= 3:
            packed = bcq_gemv.empty(uniform, lanes).filled(uniform)
            weights[f"uniform q{q} as planes"] = (packed, built(packed, on), "fp32", 1e-6)
        if q == 4:
            packed = uniform_gemv.empty(uniform).filled(uniform)
            weights[f"uniform q{q}"] = (packed, built(packed, on), "fp32", 1e-6)
        for name, (packed, kernel, activations, limit) in weights.items():
            named = f"lutlab {name} ({on.name})"
            product, streams = rotated(named, packed, kernel, x, limit, args, activations)
            found.append(product)
            if m > 1 and name.endswith("q4"):
                room = torch.empty(shape)

                def dense_gemm(i: int, kernel=kernel, packed=packed, streams=streams, room=room):
                    object.__setattr__(packed, "stream", streams[i])
                    torch.nn.functional.linear(x, kernel.dense(packed, out=room))

                named = f"lutlab {name} dense + torch mm"
                found.append(Product(named, product.bytes, len(streams), dense_gemm))
    return found


def rotated(
    name: str, packed, kernel, x, limit: float, args: argparse.Namespace, activations: str = "fp32"
):
    """A product whose weights lie at as many places as `copies` says, and these; its error is below the limit."""
    from lutlab.measure.products import relative_error

    error = relative_error(kernel.gemv(x, packed), x, packed.dequantize())
    assert error < limit, (name, error)
    size = packed.stream.numel()
    streams = [packed.stream.clone() for _ in range(copies(size, args))]

    def run(i: int) -> None:
        object.__setattr__(packed, "stream", streams[i])
        kernel.gemv(x, packed)

    product = Product(name, size, len(streams), run, error=error, activations=activations)
    return product, streams


def coefficients(shape: tuple[int, int], m: int, args: argparse.Namespace) -> list[Product]:
    """Planes with an offset and uniform codes, in groups of 32 to 128, with coefficients of 16 bits and of 4."""
    import torch

    from lutlab.base import second_order
    from lutlab.base.tensors import BCQTensor, UniformTensor
    from lutlab.formats import bcq
    from lutlab.formats.bcq_second_order import PackedSecondOrder
    from lutlab.formats.uniform import PackedUniform
    from lutlab.formats.uniform_second_order import PackedUniformSecondOrder
    from lutlab.kernels.codegen import isa
    from lutlab.kernels.cpu import bcq_gemv, uniform_gemv
    from lutlab.kernels.cpu.rows.rows_gemv import kernel as built

    on = next(one for one in isa.runnable() if args.isa in (None, one.name))
    draw, (rows, columns) = torch.Generator().manual_seed(0), shape
    x, found = torch.randn(m, columns, generator=draw), []
    for q in args.bits:
        for g in (32, 64, GROUP):
            codes = torch.randint(0, 2**q, shape, generator=draw, dtype=torch.uint8)
            a = torch.rand(q + 1, rows, columns // g, generator=draw).half()
            plain = bcq.pack(BCQTensor(codes, a[:q], a[q], q, g))
            coarse = PackedSecondOrder.encoded(plain, *second_order.grid(a, 4), 4)
            for bits, stored in ((16, plain), (4, coarse)):
                lanes = bcq_gemv.lane_bytes(on, g, columns)
                packed = bcq_gemv.empty(stored, lanes).filled(stored)
                name = f"lutlab bcq q{q} g{g} with offset, alpha_bits={bits} ({on.name})"
                found.append(rotated(name, packed, built(packed, on), x, 1e-6, args)[0])
            zero = torch.randint(0, 2**q, (rows, columns // g), generator=draw).short()
            uniform = PackedUniform.pack(UniformTensor(codes, a[0] + 0.5, zero, q, g))
            grids = second_order.grid(uniform.scale.unsqueeze(0), 4)
            few = PackedUniformSecondOrder.encoded(uniform, *grids, 4)
            for bits, stored in ((16, uniform), (4, few)):
                empty = bcq_gemv.empty(stored, lanes) if q < 4 else uniform_gemv.empty(stored)
                packed = empty.filled(stored)
                name = f"lutlab uniform q{q} g{g}, scale_bits={bits} ({on.name})"
                found.append(rotated(name, packed, built(packed, on), x, 1e-6, args)[0])
    return found


# Mixed groups of 16: bits of the groups, repeated; whether those of 4 share a scale a row; share of outliers.
MIXES = {
    "q2": ((2,), False, 0),
    "q4": ((4,), True, 0),
    "25 %": ((2, 2, 2, 4), True, 0),
    "25 %, 0.2 % outliers": ((2, 2, 2, 4), True, 0.002),
    "25 %, 0.5 % outliers": ((2, 2, 2, 4), True, 0.005),
    "2, 3, 4": ((2, 3, 4), False, 0),
}


def mixed(shape: tuple[int, int], m: int, args: argparse.Namespace) -> list[Product]:
    """Mixed column groups with second-order scales, alone and with outliers."""
    import torch

    from lutlab.formats.mixed import PackedMixed
    from lutlab.kernels.codegen import isa
    from lutlab.kernels.cpu import mixed_gemv
    from lutlab.kernels.cpu.rows.rows_gemv import kernel as built

    on = next(one for one in isa.runnable() if args.isa in (None, one.name))
    x = torch.randn(m, shape[1], generator=torch.Generator().manual_seed(0))
    found = []
    for name, mix in MIXES.items():
        stored = PackedMixed.pack(drawn_mixed(shape, *mix))
        packed = mixed_gemv.empty(stored, on).filled(stored)
        named = f"lutlab mixed {name} ({on.name})"
        found.append(rotated(named, packed, built(packed, on), x, 1e-6, args)[0])
    return found


def drawn_mixed(shape: tuple[int, int], widths: tuple[int, ...], by_row: bool, share: float):
    """A MixedTensor; its outliers are in groups of 2 bits."""
    import torch

    from lutlab.base.tensors import MixedTensor

    (rows, columns), g, draw = shape, 16, torch.Generator().manual_seed(0)

    def below(top: int, *size: int) -> torch.Tensor:
        return torch.randint(0, top, size, generator=draw, dtype=torch.uint8)

    groups, bands = columns // g, -(-rows // 16)
    width = torch.tensor(widths, dtype=torch.uint8).repeat(groups)[:groups]
    most = (2 ** width.int() - 1).to(torch.uint8)
    wide = (width == 4) & by_row
    codes = below(16, rows, columns) & most.repeat_interleave(g)
    second = [below(16, rows, groups) & most, below(16, rows, groups), below(16, bands, groups)]
    second.append((torch.rand(bands, groups, generator=draw) / 100).half())
    of_rows = {}
    if by_row:
        second = [values.masked_fill(wide, 0) for values in second]
        scale = (torch.rand(rows, generator=draw) / 10).half()
        of_rows = {"row_scale": scale, "row_zero": below(16, rows)}
    if share:
        narrow = (width == 2).repeat_interleave(g)
        chosen = torch.rand(shape, generator=draw) < share / narrow.float().mean()
        row, column = (chosen & narrow).nonzero().t()
        codes[row, column] = second[0][row, column // g]
        of_rows["outlier_count"] = torch.bincount(row, minlength=rows).int()
        of_rows["outlier_column"] = column.int()
        of_rows["outlier_value"] = torch.randn(len(row), generator=draw).half()
    return MixedTensor(codes, width, *second, g, 16, **of_rows)


def qigens(shape: tuple[int, int], m: int, args: argparse.Namespace) -> list[Product]:
    """QIGen's own kernels, generated as its paper says: a scale for 128 weights, and one a column."""
    import torch

    from lutlab.base.tensors import UniformTensor
    from lutlab.kernels.cpu.qigen import qigen_gemv
    from lutlab.measure.contestants import qigen_copies
    from lutlab.measure.products import relative_error

    generator = torch.Generator().manual_seed(0)
    rows, columns = shape
    x = torch.randn(m, columns, generator=generator)
    found = []
    for q in [q for q in args.bits if q <= 4]:
        if args.search and not qigen_gemv.parameters(shape, q, GROUP)[1]:
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
            found.append(Product(name, size, len(weights), run, error=error))
    return found
