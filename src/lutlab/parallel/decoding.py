"""Whole models that several ranks share (tensor parallelism): loaded part by part, decoded together, and timed.

    shared = engine(load("opt-3bit", rank))          in a job of parallel/ranks.py, on every rank
    logits = shared.prefill([ids])                   of the whole model, on each
    latency(run, gpus=2, tokens=128, repeats=5)      of every repeat the slowest rank's time

What a rank computes says shard.py; the engine is that of one device, over the rank's part. Latency is of batch 1,
greedy, behind one token. Which part of it is exchange say the same steps with nothing sent: sums are wrong then, and
every product, norm and attention is the same; what ranks wait for each other counts as exchange, as in
parallel/products.py.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lutlab.base import arguments
from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import SUMS, check_sums, has_sums
from lutlab.base.quiet import quiet
from lutlab.base.specs import ModelRun
from lutlab.checkpoint.loading import load_mapped
from lutlab.checkpoint.stored import stored_folder
from lutlab.checkpoint.transformers import CURE
from lutlab.compress.driver import quantize_model
from lutlab.compress.synthetic import drawn_blocks
from lutlab.compress.widths import widths
from lutlab.generate import engine as engine_of
from lutlab.generate.contract import Engine
from lutlab.generate.eager import Eager
from lutlab.models.families import decoder_blocks, kinds
from lutlab.models.files import weight_files
from lutlab.models.load import LoadedModel, load_model
from lutlab.parallel import ranks
from lutlab.parallel.ranks import Rank
from lutlab.parallel.shard import Part, share_of_block, share_out
from lutlab.quantizers.contract import make_method
from lutlab.quantizers.stored import STORED

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
        model, blocks = load_mapped(folder, dtype)
    rank.agree(_identity(folder, rank, dtype))
    for block in decoder_blocks(model):  # refused before files are read for their sums
        share_of_block(block, model.config, rank)
    if has_sums(folder):
        used = ["config.json", *(path.name for path in weight_files(folder))]
        check_sums(folder, CURE, used, slice(rank.index, None, rank.count))
    elif not rank.index:
        log.warning("%s has no %s, so that damage to its files would not be noticed", folder, SUMS)
    part = share_out(model, blocks, rank)
    rank.arrive(LOAD_SECONDS)
    return part


def _identity(folder: Path, rank: Rank, dtype: torch.dtype | str) -> dict[str, str]:
    """Values that must agree between ranks that share a model; no weight is read for them."""
    import lutlab

    files = [path for path in weight_files(folder) if path.suffix == ".safetensors"]
    texts = [folder / "config.json", *([folder / SUMS] if has_sums(folder) else [])]
    return {
        "number of ranks": str(rank.count),
        "version of lutlab": lutlab.__version__,
        "dtype": str(dtype).removeprefix("torch."),
        **{path.name: path.read_text(encoding="utf-8", errors="replace") for path in texts},
        "weights": repr([(path.name, path.stat().st_size, _header(path)) for path in files]),
    }


def _header(path: Path) -> bytes:
    """Names, dtypes and shapes of a safetensors file, as they are written."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return file.read(min(length, path.stat().st_size))


def engine(part: Part, batch: int = 1, length: int | None = None) -> Engine:
    """The engine of one device, over a rank's part of a model; all ranks call each of its functions together.

    Its facts are of the rank's part, and have `ranks` and `exchange`: how many, and what carries tensors between them.

    Args:
        part: the rank's part of a model, made by load or share_out.
        batch: rows, each a text of its own.
        length: tokens of a row, prompt included; None: the model's context.

    Raises:
        LutlabError: the model is no causal language model, or the cache is longer than its context.
    """
    made = engine_of(part.model, batch, length)
    if isinstance(made, Eager):
        channels = sum(len(share.key_values) * share.head_size for share in part.shares)
        made.token_bytes = 2 * channels * part.model.dtype.itemsize
    made.of_ranks = {"ranks": part.rank.count, "exchange": part.rank.exchange}
    return made


def greedy(engine: Engine, prompts: Sequence[Sequence[int]], tokens: int) -> torch.Tensor:
    """The likeliest next tokens of each prompt, [B, tokens] int64; ends are passed over.

    Raises:
        LutlabError: not as many prompts as rows, an empty one, or one longer than the cache; the cache of a row is
            full.
    """
    arguments.integer("tokens", tokens, 1, "the tokens to add to each prompt, as 128")
    first = engine.prefill([torch.tensor(ids) for ids in prompts]).argmax(-1)
    return torch.cat((first[:, None], engine.greedy(first, tokens - 1)), 1).cpu()


# ---- seconds of decoding, and which part of them is the exchange ----


@dataclass(frozen=True)
class Latency:
    """Decoding of so many tokens, several times.

    Attributes:
        tokens: number of tokens of each repeat.
        seconds: seconds of each repeat, those of the slowest rank.
        apart: seconds of the same steps with nothing sent.
        facts: facts of rank 0's engine: ranks, exchange, kernel, cache, head, and `bytes_read` of its part.
    """

    tokens: int
    seconds: tuple[float, ...]
    apart: tuple[float, ...]
    facts: dict[str, Any]

    @property
    def ms_per_token(self) -> float:
        """Milliseconds a token of the median repeat."""
        return 1e3 * statistics.median(self.seconds) / self.tokens

    @property
    def communication(self) -> float:
        """Part of the time that is exchange: the median over repeats, each against its own neighbour."""
        pairs = zip(self.apart, self.seconds, strict=True)
        return max(0.0, 1 - statistics.median(apart / whole for apart, whole in pairs))


def latency(run: ModelRun, gpus: int, tokens: int, repeats: int) -> Latency:
    """Decode with a row's model, shared by so many GPUs, or processes where the row's device is cpu.

    Args:
        run: a row. A saved folder (method=stored) is read part by part, a drawn one (model.packed) drawn block by
            block; any other model is made whole in the memory of each process before it is cut.
        gpus: number of ranks.
        tokens: number of tokens to decode.
        repeats: timed, after one that is not.

    Raises:
        LutlabError: the model needs calibration, cannot be shared by so many, or a rank failed.
    """
    if run.calibration or run.budget:
        raise LutlabError(
            "a model that is calibrated is quantized once, not by each rank: lutlab.save it, and measure the folder "
            "(model=folder model.id=<folder> method=stored)"
        )
    device = "cpu" if run.device == "cpu" else "cuda"
    return ranks.run(_of_rank, gpus, device, (run, tokens, repeats), DECODE_SECONDS, LOAD_SECONDS)


def _of_rank(rank: Rank, run: ModelRun, tokens: int, repeats: int) -> Latency:
    if run.method == STORED:
        part = load(stored_folder(run.model), rank, getattr(torch, run.dtype))
    elif run.model.packed:
        drawn = drawn_blocks(run, rank.device, rank.count)
        part = share_out(drawn.model, drawn, rank)
    else:
        whole = quantized(run)
        part = share_out(whole.model, whole.blocks, rank)
    rank.arrive(LOAD_SECONDS)
    return timed(part, tokens, repeats)


def quantized(run: ModelRun) -> LoadedModel:
    """The whole model of a row, on the CPU."""
    loaded = load_model(run.model, getattr(torch, run.dtype), "cpu", run.seed)
    chosen = widths(kinds(loaded.model.config), run.q, run.g, run.sublayers, run.skip, run.layers)
    quantize_model(loaded.model, make_method(run.method, **dict(run.options)), chosen)
    return loaded


def timed(part: Part, tokens: int, repeats: int) -> Latency:
    """Time a model of which each rank has its part.

    By an engine for each kind of step: a CUDA graph holds what was sent when it was captured.
    """
    whole, apart = (engine(part, 1, tokens) for _ in range(2))
    prompt = [[getattr(part.model.config, "bos_token_id", None) or 0]]

    def seconds_of(engine: Engine) -> float:
        """Seconds of the slowest rank; all begin together. Tokens end on the CPU, and so does the GPU's work."""
        part.rank.line_up()
        began = time.perf_counter()
        part.silent = engine is apart
        try:
            greedy(engine, prompt, tokens)
        finally:
            part.silent = False
        return part.rank.largest(time.perf_counter() - began)

    rounds = [[seconds_of(each) for each in (whole, apart)] for _ in range(1 + repeats)]
    seconds, silent = zip(*rounds[1:], strict=True)  # behind one that prepares
    facts = whole.facts() | {"prompt_tokens": 1, "bytes_read": whole.bytes_read(tokens)}
    return Latency(tokens, seconds, silent, facts)
