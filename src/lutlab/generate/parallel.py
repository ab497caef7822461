"""Whole models that several ranks share (tensor parallelism): loaded part by part, and decoded together.

    own = engine(load("opt-3bit", rank))    in a job of measure/ranks.py, on every rank
    logits = own.prefill([ids])             of the whole model, on each

What a rank computes says shard.py; the engine is that of one device, over the rank's part.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lutlab import arguments
from lutlab.checkpoint.loading import load_mapped
from lutlab.checkpoint.transformers import CURE
from lutlab.generate import engine as engine_of
from lutlab.generate.contract import Engine
from lutlab.generate.eager import Eager
from lutlab.generate.shard import Part, share_of_block, share_out
from lutlab.kept.sums import NAME, check_sums, has_sums
from lutlab.lazy import PreTrainedModel
from lutlab.measure.ranks import Rank
from lutlab.models.families import decoder_blocks
from lutlab.models.files import weight_files
from lutlab.models.load import quiet

log = logging.getLogger(__name__)
WAIT_SECONDS = 60.0  # that a rank waits for the others in a step
LOAD_SECONDS = 3600.0  # that ranks wait for the one whose part took longest to load
DECODE_SECONDS = 24 * 3600.0  # until ranks that lutlab starts must be done


def load(folder: str | Path, rank: Rank, dtype: torch.dtype | str = "auto") -> Part:
    """A rank's part of a saved model: of every packed weight only that part is kept in memory.

    All ranks call this. Each file is compared with SHA256SUMS by one of them, and nobody goes on before all have done
    so. Parts by rows are read alone; of parts by columns the file's pages, which hold every rank's, are read and given
    back.

    Args:
        folder: folder that lutlab.save wrote, or of a model in full precision.
        rank: this process.
        dtype: dtype of everything that is not quantized; `auto` is the one it was saved in.

    Raises:
        LutlabError: the folder is not one of ours, or damaged; the model cannot be shared by so many ranks; the ranks
            were given different models.
    """
    folder = arguments.path("folder", folder)
    with quiet():
        mapped = load_mapped(folder, dtype)
    rank.agree(_identity(folder, rank, dtype))
    for block in decoder_blocks(mapped.model):  # refused before files are read for their sums
        share_of_block(block, mapped.model.config, rank)
    if has_sums(folder):
        used = ["config.json", *(path.name for path in weight_files(folder))]
        check_sums(folder, CURE, used, slice(rank.index, None, rank.count))
    elif not rank.index:
        log.warning("%s has no %s, so that damage to its files would not be noticed", folder, NAME)
    part = share_out(mapped.model, mapped, rank)
    rank.arrive(LOAD_SECONDS)
    return part


def _identity(folder: Path, rank: Rank, dtype: torch.dtype | str) -> dict[str, str]:
    """Values that must agree between ranks that share a model; no weight is read for them."""
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


class EagerPart(Eager):
    """transformers' own modules, with a rank's heads of keys and values."""

    def __init__(self, part: Part, batch: int, length: int) -> None:
        self._shares = part.shares
        super().__init__(part.model, batch, length, "")

    def _token_bytes(self) -> int:
        kept = sum(len(share.key_values) * share.head_size for share in self._shares)
        return 2 * kept * self.model.dtype.itemsize


class Shared(Engine):
    """The engine of one device, over a rank's part of a model; all ranks call each function together.

    Args:
        own: engine that decodes the rank's part, whose modules exchange what they lack.
        part: the rank's part of the model.
    """

    def __init__(self, own: Engine, part: Part) -> None:
        self.own, self.part, self.model = own, part, own.model
        self.batch, self.length, self.vocabulary = own.batch, own.length, own.vocabulary

    @property
    def positions(self) -> list[int]:
        """See Engine."""
        return self.own.positions

    @classmethod
    def obstacle(cls, model: PreTrainedModel, cache: str) -> str:
        """See Engine: it is made of parts alone."""
        return "it decodes a part of a model that ranks share (generate/parallel.py)"

    def prefill(self, prompts: Sequence[torch.Tensor]) -> torch.Tensor:
        """See Engine."""
        return self.own.prefill(prompts)

    def step(self, ids: torch.Tensor) -> torch.Tensor:
        """See Engine."""
        return self.own.step(ids)

    def greedy(self, ids: torch.Tensor, tokens: int) -> torch.Tensor:
        """See Engine."""
        return self.own.greedy(ids, tokens)

    def rewind(self, tokens: int = 0) -> None:
        """See Engine."""
        self.own.rewind(tokens)

    def bytes_read(self, context: int) -> dict[str, int]:
        """See Engine; of the rank's part."""
        return self.own.bytes_read(context)

    def facts(self) -> dict[str, Any]:
        """See Engine, of the rank's part; and `ranks`, `exchange`: how many, and what carries tensors between them."""
        rank = self.part.link.rank
        return self.own.facts() | {"ranks": rank.count, "exchange": rank.exchange}


def engine(part: Part, batch: int = 1, length: int | None = None) -> Shared:
    """An engine on each rank.

    Args:
        part: the rank's part of a model, made by load or share_out.
        batch: rows, each a text of its own.
        length: tokens of a row, prompt included; None: the model's context.

    Raises:
        LutlabError: the model is no causal language model, or the cache is longer than its context.
    """
    own = engine_of(part.model, batch, length)
    if isinstance(own, Eager):
        own = EagerPart(part, own.batch, own.length)
    return Shared(own, part)


def greedy(own: Engine, prompts: Sequence[Sequence[int]], tokens: int) -> torch.Tensor:
    """The likeliest next tokens of each prompt, [B, tokens] int64; ends are passed over.

    Raises:
        LutlabError: not as many prompts as rows, an empty one, or one longer than the cache; the cache of a row is
            full.
    """
    arguments.integer("tokens", tokens, 1, "the tokens to add to each prompt, as 128")
    first = own.prefill([torch.tensor(ids) for ids in prompts]).argmax(-1)
    return torch.cat((first[:, None], own.greedy(first, tokens - 1)), 1).cpu()
