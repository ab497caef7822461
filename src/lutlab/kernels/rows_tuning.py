"""The fastest prefetch distance and panel width of a kernel over blocks of rows, by trying them on this machine.

    best = argmin over panel_columns, prefetch_bytes of the time of y = x W^T with W not in the cache

`tune` tries all pairs on one shape with cold weights and keeps the answer in the cache folder, beside the libraries,
by kernel, CPU, bits, group size, shape and threads; `known` reads it, or gives the defaults where nothing was tuned.
The prefetch distance is an argument of the kernel; the panel width is a matter of packing.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from lutlab.atomic import write_atomically
from lutlab.codegen import library
from lutlab.codegen.isa import features
from lutlab.formats.row_blocks import PANEL_COLUMNS
from lutlab.kernels.rows_gemv import PREFETCH_BYTES, Kernel, RowsWeight

PANELS = (256, 512, 1024)
PREFETCHES = (1024, 2048, 4096, 8192, 16384)
# Copies that are passed through so that none is in the cache when its turn comes, and seconds to spend on a shape.
COLD_BYTES = 320 * 2**20
SECONDS = 20.0


@dataclass(frozen=True)
class Tuning:
    """What was found, or the defaults."""

    panel_columns: int = PANEL_COLUMNS
    prefetch_bytes: int = PREFETCH_BYTES


def tune(
    kernel: Kernel,
    pack: Callable[[int], RowsWeight],
    *,
    threads: int | None = None,
    cold_bytes: int = COLD_BYTES,
    seconds: float = SECONDS,
) -> Tuning:
    """Try every pair, keep the best in the cache folder and return it.

    Args:
        kernel: of the weight.
        pack: panel columns -> the weight packed so, e.g. `lambda panel: bcq_rows.pack(plain, panel)`.
        threads: as in Kernel.gemv; the answer is kept for that number.
        cold_bytes: of all copies of the weight together.
        seconds: to spend on timing; a pair is timed at least three times.

    Raises:
        LutlabError: the cache folder cannot be written.
    """
    times = {}
    for panel in PANELS:
        weight = pack(panel)
        spent = seconds / len(PANELS)
        found = time_distances(kernel, weight, threads, cold_bytes, spent)
        times |= {Tuning(panel, prefetch): value for prefetch, value in found.items()}
    best = min(times, key=times.__getitem__)
    _keep(_key(kernel, weight, threads), best)
    return best


def time_distances(
    kernel: Kernel, weight: RowsWeight, threads: int | None, cold_bytes: int, seconds: float
) -> dict[int, float]:
    """Prefetch distance -> seconds of a product, the lower quartile; distances take turns, so that all see the same."""
    count = max(2, -(-cold_bytes // weight.stream.numel()))
    copies = itertools.cycle([replace(weight, stream=weight.stream.clone()) for _ in range(count)])
    x = torch.ones(1, weight.shape[1])
    samples: dict[int, list[float]] = {prefetch: [] for prefetch in PREFETCHES}
    kernels = {prefetch: replace(kernel, prefetch_bytes=prefetch) for prefetch in PREFETCHES}
    end = time.monotonic() + seconds
    while len(samples[PREFETCHES[-1]]) < 3 or time.monotonic() < end:
        for prefetch, candidate in kernels.items():
            copy = next(copies)
            start = time.perf_counter()
            candidate.gemv(x, copy, threads=threads)
            samples[prefetch].append(time.perf_counter() - start)
    return {prefetch: statistics.quantiles(s, n=4)[0] for prefetch, s in samples.items()}


def known(kernel: Kernel, weight: RowsWeight, threads: int | None = None) -> Tuning:
    """What was tuned for this kernel, shape and number of threads on this machine, else the defaults."""
    kept = _read().get(_key(kernel, weight, threads))
    return Tuning(**kept) if kept else Tuning()


def _key(kernel: Kernel, weight: RowsWeight, threads: int | None) -> str:
    rows, columns = weight.shape
    return (
        f"{kernel.variant}, {kernel.isa}, q={weight.bits}, g={weight.group_size}, {rows}x{columns}, "
        f"{kernel.threads(threads)} threads"
    )


def _file() -> Path:
    cpu = hashlib.sha256(json.dumps(sorted(features())).encode()).hexdigest()[:16]
    return library.cache_folder() / f"rows-tuning-{cpu}.json"


def _read() -> dict[str, dict[str, int]]:
    """What the file holds; a file that is no such thing counts as none, and is written anew by the next tuning."""
    try:
        found = json.loads(_file().read_text())
        return {key: asdict(Tuning(**value)) for key, value in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _keep(key: str, tuning: Tuning) -> None:
    write_atomically(_file(), json.dumps(_read() | {key: asdict(tuning)}, indent=2).encode())
