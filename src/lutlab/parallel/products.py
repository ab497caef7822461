"""A dense product whose matrix p GPUs share, beside the same product on one of them: y[M, N] = x[M, K] W[N, K]^T.

    rank r has W_r, N/p rows of W, and all of x;    y_r^T = W_r x^T  [N/p, M];    y^T [N, M]: the y_r^T of all, gathered
    compute = seconds of the same products without the gathering / seconds with it; the rest is communication

A time is the slowest rank's; communication holds what ranks wait for each other. The papers say that NCCL communicates
(nuQmm, Section III-D), and neither which side of W is shared out nor what is sent. By rows, as here, is the one that
sends only y, each of its numbers once; it is what Megatron-LM calls column parallel. Of several products, those of a
layer, each is gathered before the next one begins: the papers time them one by one. As with one GPU, W_r has the layout
of cuBLAS's that won a short race.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import torch
from lutlab.base.specs import ProductRun, Shape
from lutlab.measure import contestants, products
from lutlab.measure.contestants import Entrants, TimedRow, cold_bytes
from lutlab.measure.timing import COLD, Contestant, CpuTimer, GpuTimer, Timer, race, together
from lutlab.parallel.ranks import Rank

# Calls of a graph that ranks begin together: they do so within some ten microseconds, which many calls share.
CALLS = 100
_CHOOSING_ROUNDS = 20  # of the race between the layouts


# Contestants of all ranks at the same time: one multiplies and gathers, the other only multiplies.
Shared = tuple[Contestant, Contestant]


def slowest(rank: Rank, timer: Timer) -> Timer:
    """A timer of what all ranks do at the same time: the seconds of the slowest."""

    def seconds(contestant: Contestant, kind: str) -> float:
        rank.line_up()
        return rank.largest(timer(contestant, kind))

    return seconds


def time_on(rank: Rank, spec: ProductRun, rounds: int, kind: str) -> tuple[Entrants, float] | None:
    """Race the shared product with those that contestants.enter has for the first GPU alone, in one run.

    Returns:
        None but of rank 0. The contestants with their rounds, which can no longer be called, of memory what the GPUs
        copy together, so many times what the first one does; and which part of the product's time is compute.

    Raises:
        LutlabError: a product is wrong.
    """
    entered = None if rank.index else contestants.enter(alone(spec, rank), kind)
    rank.largest(0.0)  # with idle GPUs until then
    whole, product, facts = share(spec, rank, kind)
    cpu = rank.device == "cpu"
    timer = CpuTimer() if cpu else GpuTimer()
    of_all = slowest(rank, CpuTimer() if cpu else GpuTimer(CALLS))
    with torch.inference_mode():
        for _ in range(rounds):
            if entered:
                memory, *others = entered.all()
                race([memory], timer, 1)
                race(others, timer, 1, (kind,))
            race([product, whole], of_all, 1, (kind,))
    if entered is None:
        return None
    memory = dataclasses.replace(entered.memory, bytes=rank.count * entered.memory.bytes)
    facts = facts_of(entered.facts, whole, facts)
    # without their callables, which cannot be pickled
    places = (whole, entered.fp16, entered.fp32, memory)
    whole, fp16, fp32, memory = (dataclasses.replace(place, run=_ended) for place in places)
    return Entrants(whole, whole, fp16, fp32, None, memory, facts), whole.times(product, kind)


def _ended(copy: int) -> None:
    raise LutlabError("this contestant was of another process, which has ended: enter it again")


def alone(spec: ProductRun, rank: Rank) -> ProductRun:
    """The same row on a rank's own device."""
    return dataclasses.replace(spec, kernel="auto", device=rank.device)


def share(
    spec: ProductRun, rank: Rank, kind: str = COLD
) -> tuple[Contestant, Contestant, dict[str, Any]]:
    """This rank's share of the products, with the gathering and without it, and facts for a record.

    Raises:
        LutlabError: the gathered y is not the product.
    """
    row = TimedRow(alone(spec, rank), *cold_bytes(rank.device))
    parts = [_fastest(row, rank, shape, kind) for shape in spec.shapes]
    whole, product = map(together, zip(*parts, strict=True))
    return whole, product, row.facts | _connection(rank)


def _fastest(row: TimedRow, rank: Rank, shape: Shape, kind: str) -> Shared:
    """The product in the layout that is faster with the gathering; all ranks choose alike, by the same times."""
    if row.cpu:
        return _part(row, rank, shape, "[N, K]")
    both = [_part(row, rank, shape, layout) for layout in ("[N, K]", "[K, N]")]
    wholes = [whole for whole, _ in both]
    race(wholes, slowest(rank, GpuTimer(CALLS)), _CHOOSING_ROUNDS, (kind,))
    took = {whole.name: whole.seconds(kind) * 1e6 for whole in wholes}
    row.facts.setdefault("shared_us", {})["x".join(map(str, shape))] = took
    whole, product = min(both, key=lambda pair: took[pair[0].name])
    return dataclasses.replace(whole, rounds={}), product


def _part(row: TimedRow, rank: Rank, shape: Shape, layout: str) -> Shared:
    x, weight = products.operands(row.spec, shape)
    assert weight is not None, "products.obstacle lets ranks share dense weights only"
    x, weight = (tensor.to(getattr(torch, row.spec.dtype)) for tensor in (x, weight))
    mine = weight.chunk(rank.count)[rank.index]
    if layout == "[K, N]":
        mine = mine.t().contiguous().t()
    copies = [mine.clone() for _ in range(row.copies(mine.nbytes))]  # strides stay
    part, y = (x.new_empty(rows, len(x)) for rows in (len(mine), len(weight)))  # y^T

    def multiply(copy: int) -> None:
        torch.mm(x, copies[copy].t(), out=part.t())

    def whole(copy: int) -> torch.Tensor:
        multiply(copy)
        rank.gather(y, part)
        return y.t()

    dtype = str(x.dtype).removeprefix("torch.")
    name = f"torch {dtype} {layout} on {rank.count} devices"
    gathered = Contestant(name, rank.count * mine.nbytes, len(copies), whole)
    product = Contestant(f"{name}, not gathered", gathered.bytes, len(copies), multiply)
    return row.checked(gathered, x, weight), product


def _connection(rank: Rank) -> dict[str, Any]:
    """Facts on the connection that carries the gathering."""
    if rank.device == "cpu":
        return {"devices": rank.count}
    others = range(1, rank.count)
    return {
        "devices": rank.count,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "peer_access": all(torch.cuda.can_device_access_peer(0, other) for other in others),
    }


def facts_of(beside: dict[str, Any], whole: Contestant, facts: dict[str, Any]) -> dict[str, Any]:
    """A record's facts of the shared product, and of those beside it on the first GPU."""
    errors = beside["relative_errors"] | facts["relative_errors"]
    names = {"kernel": whole.kernels(), "best_kernel": whole.kernels()}
    return beside | facts | names | {"relative_errors": errors}
