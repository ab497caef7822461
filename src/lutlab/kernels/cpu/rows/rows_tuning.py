"""The fastest prefetch distance and panel width of a kernel over blocks of rows, by trying them on this machine.

    best = argmin over panel_columns, prefetch_bytes of the time of y = x W^T, one row of x, W not in the cache

Nothing is tried unasked: the defaults are those found best on the machines seen (kernels/README.md). LUTLAB_TUNE=1
asks, for every shape that is packed and was not tuned yet; an answer is kept in the cache folder, beside the libraries,
by kernel, CPU, bits, group size, shape and threads, and used from then on; a pair that is not tried counts as damage.
The prefetch distance is an argument of the kernel, the panel width a matter of packing, which leaves the order of sums
as it is: no choice changes a bit of a product. Rows a block are 32, since the registers hold no more.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import logging
import os
import re
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from lutlab.base.kept import findings
from lutlab.kernels.codegen import library
from lutlab.kernels.codegen.isa import features
from lutlab.kernels.cpu.rows.rows_gemv import Kernel, RowsWeight

log = logging.getLogger(__name__)
PANELS = (512, 1024)
PREFETCHES = (2048, 4096, 8192, 16384)
# Copies of the weight are passed through so that none is in the cache when its turn comes; seconds a shape.
COLD_BYTES = 320 * 2**20
SECONDS = 10.0
MARGIN = 0.02
_KEY = re.compile(r".+, \w+, q=\d+, g=-?\d+, \d+x\d+, \d+ threads")


@dataclass(frozen=True)
class Tuning:
    """Prefetch distance of a kernel's calls, and panel of its weight."""

    panel_columns: int
    prefetch_bytes: int


def choose(kernel: Kernel, weight: RowsWeight, pack: Callable[[int], RowsWeight]) -> Tuning:
    """Tuning kept for a kernel, shape and number of threads; with LUTLAB_TUNE=1 made now; else the defaults.

    pack: panel columns -> the weight packed so.
    """
    default = Tuning(weight.panel_columns, kernel.prefetch_bytes)
    if tuning := known(kernel, weight):
        return tuning
    return tune(kernel, pack, default) if asked() else default


def asked() -> bool:
    """Whether shapes are tuned when they are packed: LUTLAB_TUNE."""
    return os.environ.get("LUTLAB_TUNE", "0") != "0"


def decisions(
    bits: Collection[float], threads: int, shapes: Collection[tuple[int, int]] | None = None
) -> dict[str, dict[str, int]]:
    """Tuned entries of this machine that can decide a speed, part of its id; {} where nothing was.

    Entries of other bits, threads (a library without OpenMP uses one) or shapes (N, K) cannot. Every group size counts:
    a product is timed beside one scale a row.
    """
    tunings = {}
    for key, tuning in _read().items():
        *_, tuned_bits, _, shape, team = key.split(", ")
        rows, columns = map(int, shape.split("x"))
        if (
            int(tuned_bits.removeprefix("q=")) in bits
            and int(team.removesuffix(" threads")) in (threads, 1)
            and (shapes is None or (rows, columns) in shapes)
        ):
            tunings[key] = tuning
    return tunings


def tune(
    kernel: Kernel,
    pack: Callable[[int], RowsWeight],
    default: Tuning,
    *,
    threads: int | None = None,
    cold_bytes: int = COLD_BYTES,
    seconds: float = SECONDS,
) -> Tuning:
    """Try every pair, keep the best in the cache folder and return it; the other arguments are those of times.

    The default stays unless another pair is faster by more than MARGIN, which is about the noise of a busy machine.

    Raises:
        LutlabError: the cache folder cannot be written.
    """
    timed = times(
        kernel, pack, PANELS, PREFETCHES, threads=threads, cold_bytes=cold_bytes, seconds=seconds
    )
    best = min(timed, key=timed.__getitem__)
    if timed.get(default, float("inf")) <= timed[best] * (1 + MARGIN):
        best = default
    key = _key(kernel, pack(best.panel_columns), threads)
    log.info("%s: tuned to %s, %.0f us", key, best, timed[best] * 1e6)
    findings.keep(_file(), lambda: _read() | {key: asdict(best)})
    return best


def times(
    kernel: Kernel,
    pack: Callable[[int], RowsWeight],
    panels: Sequence[int],
    prefetches: Sequence[int],
    *,
    threads: int | None = None,
    cold_bytes: int = COLD_BYTES,
    seconds: float = SECONDS,
) -> dict[Tuning, float]:
    """Seconds of a product for every pair, lower quartiles; pairs take turns, so that all see the same machine.

    pack: panel columns -> the weight packed so; threads: as for Kernel.gemv; cold_bytes: of all copies of the weight
    together; seconds: to spend on timing; a pair is timed at least five times.
    """
    copies = {}
    for panel in panels:
        weight = pack(panel)
        count = max(2, -(-cold_bytes // len(panels) // weight.stream.numel()))
        copies[panel] = [replace(weight, stream=weight.stream.clone()) for _ in range(count)]
    kernels = {distance: replace(kernel, prefetch_bytes=distance) for distance in prefetches}
    turns = {panel: itertools.cycle(weights) for panel, weights in copies.items()}
    x = torch.ones(1, weight.shape[1])
    samples: dict[Tuning, list[float]]
    samples = {Tuning(panel, distance): [] for distance in prefetches for panel in panels}
    end = time.monotonic() + seconds
    rounds = 0
    while rounds < 5 or time.monotonic() < end:
        rounds += 1
        for pair, spent in samples.items():
            copy = next(turns[pair.panel_columns])
            start = time.perf_counter()
            kernels[pair.prefetch_bytes].gemv(x, copy, threads=threads)
            spent.append(time.perf_counter() - start)
    return {pair: statistics.quantiles(spent, n=4)[0] for pair, spent in samples.items()}


def known(kernel: Kernel, weight: RowsWeight, threads: int | None = None) -> Tuning | None:
    """Tuning kept on this machine for a kernel, shape and number of threads."""
    tuning = _read().get(_key(kernel, weight, threads))
    return Tuning(**tuning) if tuning else None


def _key(kernel: Kernel, weight: RowsWeight, threads: int | None) -> str:
    rows, columns = weight.shape
    return (
        f"{kernel.variant}, {kernel.isa}, q={weight.bits}, g={weight.group_size}, {rows}x{columns}, "
        f"{kernel.threads(threads)} threads"
    )


def _file() -> Path:
    cpu = hashlib.sha256(json.dumps(sorted(features())).encode()).hexdigest()[:16]
    return library.cache_folder() / f"rows-tuning-{cpu}.sealed"


def _read() -> dict[str, dict[str, int]]:
    """Content of the file."""
    return findings.kept(_file(), _checked, {})


def _checked(tunings: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Raises ValueError or the like: entries that tuning does not write."""
    for key, value in tunings.items():
        tuning = Tuning(**value)
        tried = tuning.panel_columns in PANELS and tuning.prefetch_bytes in PREFETCHES
        if not (_KEY.fullmatch(key) and tried):
            raise ValueError(f"{key}: {tuning} is none of those that are tried")
    return tunings
