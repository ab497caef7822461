"""The one timer: contestants take turns, weights are cold, every round's time is kept.

    a round's time   CPU: lower quartile of the seconds of its calls; GPU: seconds of a replayed graph / its calls
    seconds          median over the rounds;   spread: their quartiles
    times(b)         median over the rounds of b's time / own time: how many times faster than b

Cold: a contestant has so many copies of its weights that passing through all of them moves `cold_bytes`, 10 times the
last-level cache of a CPU or 4 times the L2 of a GPU, so that none is in a cache when its turn comes again. Resident:
one copy again and again. Each contestant is timed once a round, so that what else the machine does meets all of them.

Nothing but the standard library is imported with this module: peers of a benchmark run it in environments of their own.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import torch
from lutlab.kernels.codegen import isa, library

COLD: Final = "cold"
RESIDENT: Final = "resident"
# Calls of a round on a CPU; on a GPU a graph has at least so many, and at least one of each copy.
CALLS = 20
READ_BYTES = 8 * 2**20  # of a call of the reader, about as long as a product
_READ = """
#include <stdint.h>
uint64_t read_all(const uint64_t *p, long words, int threads)
{
    uint64_t sum = 0;
#pragma omp parallel for num_threads(threads) reduction(^ : sum) schedule(static)
    for (long block = 0; block < words / 512; block++) {
        uint64_t part[8] = {0};
        for (int i = 0; i < 512; i += 8) {
            __builtin_prefetch(p + block * 512 + i + 1024);
            for (int j = 0; j < 8; j++) part[j] ^= p[block * 512 + i + j];
        }
        for (int j = 0; j < 8; j++) sum ^= part[j];
    }
    return sum;
}
"""


@dataclass
class Contestant:
    """One product with its copies of the weights: run(copy) multiplies by that copy.

    Attributes:
        name: name for people.
        bytes: bytes that a call moves: of one copy of the weights, scales included.
        copies: number of copies of the weights.
        run: the call; its result is not looked at.
        rounds: seconds of a call by kind (cold, resident), one a round.
        parts: the names of the products that it is together, each once; empty for a single one.
        turn: number of cold calls so far on a CPU, where a round goes on with the copy after the last round's.
    """

    name: str
    bytes: int
    copies: int
    run: Callable[[int], object]
    rounds: dict[str, list[float]] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    turn: int = 0  # cold calls made on a CPU

    def kernels(self) -> list[str]:
        """Names of the kernels that multiply, each once: the fact `kernel` of a record."""
        return list(self.parts) or [self.name]

    def seconds(self, kind: str = COLD) -> float:
        """Seconds of a call, the median over the rounds."""
        return statistics.median(self.rounds[kind])

    def spread(self, kind: str = COLD) -> tuple[float, float]:
        """Lower and upper quartile over the rounds; of one round, that one twice."""
        seconds = self.rounds[kind]
        if len(seconds) == 1:
            return seconds[0], seconds[0]
        lower, _, upper = statistics.quantiles(seconds, n=4, method="inclusive")
        return lower, upper

    def times(self, other: Contestant, kind: str = COLD) -> float:
        """Speed over that of another one of the same race: median of the ratios round by round."""
        pairs = zip(self.rounds[kind], other.rounds[kind], strict=True)
        return statistics.median(others / seconds for seconds, others in pairs)

    def bandwidth(self, kind: str = COLD) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds(kind)

    def fraction(self, reference: Contestant, kind: str = COLD) -> float:
        """Its bandwidth as a fraction of the reference's cold one: median of the fractions round by round."""
        pairs = zip(self.rounds[kind], reference.rounds[COLD], strict=True)
        return statistics.median(
            (self.bytes / seconds) / (reference.bytes / others) for seconds, others in pairs
        )


def together(contestants: Sequence[Contestant]) -> Contestant:
    """Several as one, whose call calls each of them in turn: the products of a layer."""
    if len(contestants) == 1:
        return contestants[0]

    def run(copy: int) -> None:
        for contestant in contestants:
            contestant.run(copy % contestant.copies)

    names = tuple(dict.fromkeys(contestant.name for contestant in contestants))
    size = sum(contestant.bytes for contestant in contestants)
    copies = max(contestant.copies for contestant in contestants)
    return Contestant(" + ".join(names), size, copies, run, parts=names)


Timer = Callable[[Contestant, str], float]


def copies_for(size: int, cold_bytes: int) -> int:
    """Copies of `size` bytes that make `cold_bytes`; one that is larger drives itself out of the caches."""
    return -(-cold_bytes // size)


def race(
    contestants: Sequence[Contestant],
    timer: Timer,
    rounds: int,
    kinds: Sequence[str] = (COLD,),
) -> None:
    """Time every contestant once a round, in their order, and append to the times that it has.

    Raises:
        LutlabError: no round, or a timer measured no time at all.
    """
    if rounds < 1:
        raise LutlabError(f"{rounds} rounds: give at least 1")
    for _ in range(rounds):
        for contestant in contestants:
            for kind in kinds:
                seconds = timer(contestant, kind)
                if not seconds > 0:
                    raise LutlabError(
                        f"{contestant.name} took {seconds} s by the clock: too short to be timed, give it more work"
                    )
                contestant.rounds.setdefault(kind, []).append(seconds)


@dataclass
class CpuTimer:
    """Lower quartile of the seconds of the calls of a round; the first call, which finds the code cold, is left out.

    Small weights have thousands of copies on a machine with a large cache: a round takes the next ones, not all, and
    comes back to a copy after all others.
    """

    calls: int = CALLS
    clock: Callable[[], float] = time.perf_counter

    def __call__(self, contestant: Contestant, kind: str) -> float:
        """Seconds of one round."""
        first, copies = (contestant.turn, contestant.copies) if kind == COLD else (0, 1)
        seconds = []
        for i in range(first, first + self.calls + 1):
            began = self.clock()
            contestant.run(i % copies)
            seconds.append(self.clock() - began)
        if kind == COLD:
            contestant.turn += len(seconds)
        ordered = sorted(seconds[1:])
        # One that was measured: between few of them nothing is made up.
        return ordered[(len(ordered) - 1) // 4]


@dataclass
class GpuTimer:
    """Seconds of a CUDA graph that holds the calls of a round, divided by their number.

    A graph is captured for a contestant and a kind when they are first timed, after calls outside of it that compile
    and allocate; it is replayed once then without being timed.
    """

    calls: int = CALLS
    graphs: dict[tuple[int, str], tuple[torch.cuda.CUDAGraph, int]] = field(default_factory=dict)

    def __call__(self, contestant: Contestant, kind: str) -> float:
        """Seconds of one replay."""
        graph, calls = self.graph(contestant, kind)
        if kind == RESIDENT:
            graph.replay()  # brings back into the cache what others drove out
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record()
        graph.replay()
        after.record()
        after.synchronize()
        return before.elapsed_time(after) * 1e-3 / calls

    def graph(self, contestant: Contestant, kind: str) -> tuple[torch.cuda.CUDAGraph, int]:
        """The graph of a round, and the calls in it."""
        key = id(contestant), kind
        if key not in self.graphs:
            self.graphs[key] = self._capture(contestant, kind)
        return self.graphs[key]

    def _capture(self, contestant: Contestant, kind: str) -> tuple[torch.cuda.CUDAGraph, int]:
        copies = contestant.copies if kind == COLD else 1
        calls = copies * -(-self.calls // copies)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                contestant.run(0)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(calls):
                contestant.run(i % copies)
        graph.replay()
        torch.cuda.synchronize()
        return graph, calls


# ---- what memory allows, measured in the same race ----


def cpu_reader(cold_bytes: int, threads: int) -> Contestant:
    """Reading 8 MB pieces of `cold_bytes` by a number of threads, in C.

    Raises:
        NoCompiler: there is no C compiler.
    """
    reader = library.load(_READ, "read", isa.runnable()[0])
    pieces = max(2, cold_bytes // READ_BYTES)
    buffer = torch.ones(pieces, READ_BYTES // 8, dtype=torch.int64)

    def run(i: int) -> None:
        at = ctypes.c_void_p(buffer[i].data_ptr())
        reader.read_all(at, ctypes.c_long(READ_BYTES // 8), threads)

    return Contestant("read", READ_BYTES, pieces, run)


def gpu_copier(cold_bytes: int) -> Contestant:
    """Copying from one half of `cold_bytes` to the other by torch; a call moves twice what it copies."""
    half = torch.ones(2, cold_bytes // 2, dtype=torch.uint8, device="cuda")

    def run(i: int) -> None:
        half[1 - i].copy_(half[i])

    return Contestant("copy", 2 * half[0].numel(), 2, run)
