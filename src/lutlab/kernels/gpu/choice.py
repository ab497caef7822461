"""Choice of the kernel for m rows of x on a GPU: the winner of a race on this machine, or by a model of bytes.

    a variant    ceil(m / its batch) readings of q/8 bytes a weight; of equals the best by rank
    dense        one reading of q/8, and a dense weight of e bytes an element written and read: q/8 + 2 e

The model takes a GPU as bound by bytes: a variant with a batch of b rows gives way to dense from b (1 + 16 e / q) rows
of x on. benchmarks/bench_gpu_choice.py races all of them and keeps the seconds in the cache
folder, by GPU, type of x, code, bits, group size and shape; a product goes by the raced one that is most like it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, PositiveInt, TypeAdapter

from lutlab.base.kept import findings
from lutlab.base.kept.findings import writable
from lutlab.base.lazy import torch
from lutlab.formats.contract import dtype_name
from lutlab.kernels.codegen.library import cache_folder
from lutlab.kernels.gpu import variants
from lutlab.kernels.gpu.lut_gemv.variant import Case, Gpu
from lutlab.kernels.gpu.variants import full_name

DENSE = "dense"  # dequantize, then cuBLAS
MODEL, RACE = "by a model of bytes", "by a race on this machine"


Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Kernel = Annotated[str, AfterValidator(full_name)]  # a variant, or DENSE


@dataclass(frozen=True)
class Race:
    """Seconds of a product by rows of x and by kernel; of a file, variants may be under their short names.

    x: its dtype, as float16; uniform: codes with one scale a group; shape: N, K.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    gpu: str
    x: str
    uniform: bool
    bits: PositiveInt
    group: PositiveInt
    shape: tuple[PositiveInt, PositiveInt]
    seconds: Annotated[
        dict[PositiveInt, Annotated[dict[Kernel, Seconds], Field(min_length=1)]],
        Field(min_length=1),
    ]

    def like(self, gpu: str, case: Case) -> bool:
        """Whether it says anything of a case."""
        mine = self.gpu, self.x, self.uniform, self.bits
        return mine == (gpu, dtype_name(case.x), case.uniform, case.bits)

    def distance(self, case: Case) -> float:
        """Distance to a case, in doublings of the size and of the group."""
        size = case.rows * case.columns / (self.shape[0] * self.shape[1])
        return abs(math.log2(size)) + abs(math.log2(case.group / self.group))

    def fastest(self, m: int, among: Sequence[str]) -> str | None:
        """The fastest of some kernels for m rows, by the least raced number of rows from m on, else by the largest."""
        rows = min((r for r in self.seconds if r >= m), default=max(self.seconds))
        raced = {name: s for name, s in self.seconds[rows].items() if name in among}
        return min(raced, key=raced.__getitem__, default=None)


_RACES = TypeAdapter(list[Race])


def choose(case: Case, gpu: Gpu, name: str) -> tuple[str, str]:
    """A variant or DENSE, and by what it was chosen, MODEL or RACE; name: the GPU's, from torch.

    Raises:
        LutlabError: no variant takes the case.
    """
    by_model = variants.choose(case, gpu)
    preferred = variants.preferred()
    takes = [variant.name for variant in preferred if variant.why_not(case, gpu) is None]
    races = [race for race in _read(_path()) if race.like(name, case)]
    if races:
        nearest = min(races, key=lambda race: race.distance(case))
        if winner := nearest.fastest(case.m, [*takes, DENSE]):
            return winner, RACE
    dense = dense_readings(case.x, case.bits)
    return (by_model.name if by_model.readings(case) <= dense else DENSE), MODEL


def dense_readings(x: torch.dtype, bits: float) -> float:
    """Time of dequantizing weights of so many bits and of a dense product in a dtype, in readings of the weights."""
    return 1 + 16 * x.itemsize / bits


def keep(races: Sequence[Race]) -> Path:
    """Write races, in the place of earlier ones of the same products; returns the file.

    Raises:
        LutlabError: the cache folder cannot be written.
    """

    def product(race: Race) -> dict[str, Any]:
        return asdict(race) | {"seconds": None}

    new = [product(race) for race in races]
    path = writable(cache_folder()) / _path().name

    def all_races() -> list[dict[str, Any]]:
        known: list[Race] = findings.kept(path, _RACES.validate_python, [])
        others = [race for race in known if product(race) not in new]
        return [asdict(race) for race in [*others, *races]]

    findings.keep(path, all_races)
    _read.cache_clear()
    return path


def decisions(gpu: str, x: str, bits: Collection[float]) -> list[dict[str, Any]]:
    """Raced entries of this machine that can decide a speed, part of its id; [] where nothing was.

    Every shape and group size counts, since a product goes by the raced one that is most like it. Of the seconds only
    their order: it is all that a choice rests on, and a race run again changes each of them.

    gpu: its name, from torch; x: dtype of the activations, as `float16`.
    """
    raced = []
    for race in _read(_path()):
        if (race.gpu, race.x) == (gpu, x) and race.bits in bits:
            order = {str(m): sorted(s, key=s.__getitem__) for m, s in race.seconds.items()}
            raced.append(asdict(race) | {"seconds": order})
    return sorted(raced, key=lambda race: (race["bits"], race["group"], race["shape"]))


def _path() -> Path:
    return cache_folder() / "races.sealed"


@functools.cache
def _read(path: Path) -> list[Race]:
    """Races of the cache's file."""
    return findings.kept(path, _RACES.validate_python, [])
