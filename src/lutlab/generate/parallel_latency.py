"""Seconds of decoding with a model that several ranks share, and which part of them is the exchange.

    latency(run, gpus=2, tokens=128, repeats=5)      of every repeat the slowest rank's time
    communication = 1 - seconds of the same steps with nothing sent / seconds

Batch 1, greedy, behind one token. With nothing sent sums are wrong, and every product, norm and attention is the same;
what ranks wait for each other counts as exchange, as in measure/tensor_parallel.py.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lutlab.compress.driver import quantize_model
from lutlab.compress.synthetic import drawn_blocks
from lutlab.compress.widths import widths
from lutlab.errors import LutlabError
from lutlab.generate.parallel import DECODE_SECONDS, LOAD_SECONDS, Shared, engine, greedy, load
from lutlab.generate.shard import Part, share_out
from lutlab.measure import ranks
from lutlab.measure.ranks import Rank
from lutlab.models.families import kinds
from lutlab.models.load import LoadedModel, folder_of, load_model
from lutlab.quantizers.contract import make_method
from lutlab.quantizers.stored import STORED
from lutlab.specs import ModelRun


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
    return timed(part_of(rank, run), tokens, repeats)


def part_of(rank: Rank, run: ModelRun) -> Part:
    """A rank's part of a row's model."""
    if run.method == STORED:
        return load(folder_of(run.model), rank, getattr(torch, run.dtype))
    if run.model.packed:
        drawn = drawn_blocks(run, rank.device, rank.count)
        part = share_out(drawn.model, drawn, rank)
    else:
        whole = quantized(run)
        part = share_out(whole.model, whole.blocks, rank)
    rank.arrive(LOAD_SECONDS)
    return part


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

    def decode(own: Shared) -> None:
        part.link.silent = own is apart
        try:
            greedy(own, prompt, tokens)
        finally:
            part.link.silent = False

    rounds = [
        [_seconds(part.link.rank, functools.partial(decode, own)) for own in (whole, apart)]
        for _ in range(1 + repeats)
    ]
    seconds, silent = zip(*rounds[1:], strict=True)  # behind one that prepares
    facts = whole.facts() | {"prompt_tokens": 1, "bytes_read": whole.bytes_read(tokens)}
    return Latency(tokens, seconds, silent, facts)


def _seconds(rank: Rank, work: Callable[[], None]) -> float:
    """Seconds of the slowest rank; all begin together. Work ends with tokens on the CPU, and so with the GPU's."""
    rank.line_up()
    began = time.perf_counter()
    work()
    return rank.largest(time.perf_counter() - began)
