"""From how many rows of x on a GPU dequantizes and lets cuBLAS multiply: as measured on this machine, or by a model.

    kernel   ceil(m / batch) readings of q/8 bytes a weight             batch: rows that one reading serves
    dense    one reading of q/8, and a dense weight of e bytes written and read: q/8 + 2 e

A GPU is taken as bound by bytes, so that dense wins from batch (1 + 16 e / q) rows on. benchmarks/bench_lut_gemv.py
measures where it does and keeps the answer in the cache folder, by GPU, variant, bits and bytes of an activation.
"""

from __future__ import annotations

import functools
import json
import logging
from dataclasses import dataclass
from pathlib import Path

from lutlab.atomic import write_atomically
from lutlab.codegen.library import cache_folder, writable

log = logging.getLogger(__name__)
NEVER = 2**31  # rows: the kernel won everywhere it was tried


@dataclass(frozen=True)
class Crossover:
    """rows: from so many rows of x on dense wins; measured: on this machine, or by the model."""

    rows: int
    measured: bool

    def describe(self) -> str:
        """For a record."""
        return f"from {self.rows} rows on, {'measured' if self.measured else 'by a model of bytes'}"


def model(batch: int, bits: int, itemsize: int) -> int:
    """Rows of x from which a dense product moves fewer bytes.

    >>> model(1, 4, 2), model(16, 4, 2)
    (10, 145)
    """
    return batch * (1 + 16 * itemsize // bits) + 1


def crossover(gpu: str, variant: str, batch: int, bits: int, itemsize: int) -> Crossover:
    """What holds for a product.

    Args:
        gpu: its name, as torch tells it.
        variant: of the kernel.
        batch: rows of x that one reading of the weights serves.
        bits: q.
        itemsize: bytes of an activation.
    """
    known = _read(_path(), _key(gpu, variant, bits, itemsize))
    if known is not None:
        return Crossover(known, True)
    return Crossover(model(batch, bits, itemsize), False)


def keep(gpu: str, variant: str, bits: int, itemsize: int, rows: int) -> Path:
    """Write down what was measured; returns the file.

    Raises:
        LutlabError: the cache folder cannot be written.
    """
    path = writable(cache_folder()) / "crossover.json"
    known = _load(path) | {_key(gpu, variant, bits, itemsize): rows}
    write_atomically(path, (json.dumps(known, indent=1, sort_keys=True) + "\n").encode())
    _read.cache_clear()
    return path


def first_slower(kernel: dict[int, float], dense: dict[int, float]) -> int:
    """The least number of rows from which on the dense product was faster in all that was timed; NEVER if none.

    Args:
        kernel: rows of x -> seconds.
        dense: rows of x -> seconds.
    """
    slower = NEVER
    for rows in sorted(kernel, reverse=True):
        if kernel[rows] <= dense[rows]:
            break
        slower = rows
    return slower


def _key(gpu: str, variant: str, bits: int, itemsize: int) -> str:
    return f"{gpu} | {variant} | q={bits} | {8 * itemsize} bits"


def _path() -> Path:
    return cache_folder() / "crossover.json"


@functools.cache
def _read(path: Path, key: str) -> int | None:
    return _load(path).get(key)


def _load(path: Path) -> dict[str, int]:
    """All that is kept; damage is told and counts as nothing."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text())
        return {str(key): int(rows) for key, rows in found.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        log.warning("%s cannot be read (%s): crossovers are taken from the model", path, error)
        return {}
