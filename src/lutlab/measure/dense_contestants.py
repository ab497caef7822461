"""Dense products by torch as contestants: floats, on a GPU in the faster of cuBLAS's layouts, and 8-bit integers."""

from __future__ import annotations

import dataclasses

from lutlab.lazy import torch
from lutlab.measure.timed_row import TimedRow
from lutlab.measure.timing import Contestant, GpuTimer, race

_CHOOSING_ROUNDS = 20  # of the race between cuBLAS's layouts


def dense(row: TimedRow, weight: torch.Tensor, x: torch.Tensor) -> Contestant:
    """The product x [M, K] with a dense weight [N, K] by torch, in their dtype; on a GPU in the faster layout."""
    name = f"torch {str(weight.dtype).removeprefix('torch.')}"
    if row.cpu:
        return _by_torch(row, name, weight, x)
    across = weight.t().contiguous().t()
    layouts = {f"{name} [N, K]": weight, f"{name} [K, N]": across}
    both = [_by_torch(row, layout, stored, x) for layout, stored in layouts.items()]
    race(both, GpuTimer(), _CHOOSING_ROUNDS, (row.kind,))
    shape = "x".join(map(str, (*weight.shape, len(x))))
    took = {one.name: one.seconds(row.kind) * 1e6 for one in both}
    row.facts.setdefault("cublas_us", {}).setdefault(shape, {}).update(took)
    return dataclasses.replace(min(both, key=lambda one: took[one.name]), rounds={})


def _by_torch(row: TimedRow, name: str, weight: torch.Tensor, x: torch.Tensor) -> Contestant:
    """The product with W [N, K] as it is stored, rows or columns first."""
    copies = _copies(row, weight)
    one = Contestant(name, weight.nbytes, len(copies), lambda i: torch.mm(x, copies[i].t()))
    return row.checked(one, x, weight)


def int8(row: TimedRow, x: torch.Tensor, codes: torch.Tensor) -> tuple[Contestant, torch.Tensor]:
    """Eight-bit codes and activations, summed in 32 bits, and the matrix [N, K] float32 that they are.

    On a GPU cuBLAS takes no fewer than 17 rows of x: there are 32 then.
    """
    weight = (codes.int() - 128).to(torch.int8)
    rows = len(x) if row.cpu else max(32, len(x))
    few = torch.zeros(rows, x.shape[1], dtype=torch.int8, device=x.device)
    few[: len(x)] = (32 * x).round().clamp(-127, 127).to(torch.int8)
    copies = _copies(row, weight)
    one = Contestant(
        "torch int8", weight.nbytes, len(copies), lambda i: torch._int_mm(few, copies[i].t())
    )
    return row.checked(one, few, weight), weight.float()


def _copies(row: TimedRow, weight: torch.Tensor) -> list[torch.Tensor]:
    """The weight and its copies, in the same layout."""
    return [weight, *(weight.clone() for _ in range(row.copies(weight.nbytes) - 1))]
