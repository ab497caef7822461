"""Whole models that several ranks share (tensor parallelism): loaded part by part.

with ranks.joined("cuda") as rank:                       started by torchrun
    part = load("opt-3bit", rank)
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from lutlab import arguments
from lutlab.checkpoint.loading import load_mapped
from lutlab.checkpoint.transformers import CURE
from lutlab.generate.shard import Part, share_out
from lutlab.models.files import weight_files
from lutlab.models.load import quiet
from lutlab.sums import NAME, check_sums, has_sums

if TYPE_CHECKING:
    import torch

    from lutlab.measure.rank import Rank

log = logging.getLogger(__name__)
LOAD_SECONDS = 3600.0  # that ranks wait for the one whose part took longest to load


def load(folder: str | Path, rank: Rank, dtype: torch.dtype | str = "auto") -> Part:
    """A rank's part of a saved model: of every packed weight only that part is kept in memory.

    All ranks call this. Each file is compared with SHA256SUMS by one of them, and nobody goes on before all have done
    so. Parts by rows are read alone; of parts by columns the file's pages, which hold every rank's, are read and given
    back.

    Args:
        folder: that lutlab.save wrote, or of a model in full precision.
        rank: this process.
        dtype: of all that is not quantized; `auto` is the one it was saved in.

    Raises:
        LutlabError: as checkpoint.loading.load_mapped and share_out; the ranks were given different models.
    """
    folder = arguments.path("folder", folder)
    rank.agree(_identity(folder, rank, dtype))
    if has_sums(folder):
        used = ["config.json", *(path.name for path in weight_files(folder))]
        check_sums(folder, CURE, used, slice(rank.index, None, rank.count))
    elif not rank.index:
        log.warning("%s has no %s, so that damage to its files would not be noticed", folder, NAME)
    with quiet():
        mapped = load_mapped(folder, dtype)
    part = share_out(mapped.model, mapped, rank)
    rank.arrive(LOAD_SECONDS)
    return part


def _identity(folder: Path, rank: Rank, dtype: torch.dtype | str) -> dict[str, str]:
    """What ranks that share a model have alike, nothing of which takes reading weights."""
    import lutlab

    files = [path for path in weight_files(folder) if path.suffix == ".safetensors"]
    said = [folder / "config.json", *([folder / NAME] if has_sums(folder) else [])]
    return {
        "number of ranks": str(rank.count),
        "version of lutlab": lutlab.__version__,
        "dtype": str(dtype).removeprefix("torch."),
        **{path.name: path.read_text(encoding="utf-8", errors="replace") for path in said},
        "weights": repr([(path.name, path.stat().st_size, _header(path)) for path in files]),
    }


def _header(path: Path) -> bytes:
    """Names, dtypes and shapes, as they are written."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return file.read(min(length, path.stat().st_size))
