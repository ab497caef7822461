"""The full-precision model beside the one that is quantized, block by block: what layers read in both.

Memory: a copy of one block, the hidden states of all calibration windows a second time, and of the layers that are
observed their cross moments (target.py) and what they read in one batch.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import nn
from transformers import PreTrainedConfig

from lutlab.compress.calibrate import BlockInputs, Sums, advance, read
from lutlab.compress.target import HELD_OUT, Moments, Target
from lutlab.errors import LutlabError
from lutlab.models.contract import SharedInput
from lutlab.models.families import stream_of
from lutlab.tensors import CalibStats


class Beside:
    """One block of the full-precision model at a time, and what it reads.

    Attributes:
        stream: whether targets are of the residual stream, where layers add to it.
    """

    def __init__(self, config: PreTrainedConfig, inputs: BlockInputs, *, stream: bool) -> None:
        self.config, self.stream = config, stream
        self._inputs = BlockInputs(list(inputs.hidden), inputs.calls, inputs.tokens)
        self._block: nn.Module | None = None

    def enter(self, block: nn.Module) -> None:
        """Keep a copy of a block that is still in full precision."""
        self._block = copy.deepcopy(block)

    def leave(self) -> None:
        """Go on to what the next block reads, and drop the copy."""
        advance(self._block, self._inputs)
        self._block = None

    def observe(
        self, block: nn.Module, inputs: BlockInputs, shared: Sequence[SharedInput]
    ) -> tuple[dict[SharedInput, CalibStats], dict[SharedInput, Target]]:
        """Statistics of the inputs of some linear layers of a block as it is now, and the targets of their weights.

        Raises:
            LutlabError: an activation is inf or nan; or there is one window only.
        """
        streams = {one: stream_of(self.config, one) if self.stream else None for one in shared}
        paths = [path for path in streams.values() if path is not None]
        paths = list(dict.fromkeys([*paths, *(one.layers[0] for one in shared)]))
        every, held = _Sums(), _Sums()
        for index, kept in enumerate(_held_out(inputs)):
            now = read(block, inputs, index, paths)
            full = read(self._block, self._inputs, index, paths)
            ahead = {path: full.pop(path) - now[path] for path in paths}
            for one, path in streams.items():
                x, error = now[one.layers[0]], ahead[one.layers[0]]
                stream = None if path is None else ahead[path]
                every.add(one, x, error, stream)
                held.add(one, x[kept], error[kept], None if stream is None else stream[kept])
        stats = every.inputs.stats()
        of_all, of_held = every.moments(stats), held.moments(held.inputs.stats())
        return stats, {one: Target(of_all[one], of_held[one]) for one in shared}


def _held_out(inputs: BlockInputs) -> Iterator[torch.Tensor]:
    """Mask [m] bool of each batch, on the CPU: the rows that belong to held-out windows."""
    windows = sum(map(len, inputs.hidden))
    if windows < 2:
        raise LutlabError(
            "target: of the calibration windows one is held out: give at least two, as calibration.samples=128"
        )
    start = 0
    for hidden, tokens in zip(inputs.hidden, inputs.tokens, strict=True):
        held = torch.arange(start, start + len(hidden)) % HELD_OUT == 0
        start += len(hidden)
        each = held.repeat_interleave(hidden.shape[1])
        yield each if tokens is None else each[tokens.flatten().cpu()]


class _Sums:
    """Running sums of the moments of each shared input."""

    def __init__(self) -> None:
        self.inputs = Sums()
        self._products: dict[tuple[SharedInput, str], torch.Tensor] = {}

    def add(
        self, one: SharedInput, x: torch.Tensor, error: torch.Tensor, stream: torch.Tensor | None
    ) -> None:
        """Add a batch: x [m, K], error = x_full - x [m, K], stream = h_full - h [m, N]."""
        self.inputs.add(one, x)
        for name, ahead in (("inputs", error), ("stream", stream)):
            if ahead is None:
                continue
            if (one, name) not in self._products:
                self._products[one, name] = x.new_zeros(ahead.shape[1], x.shape[1])
            self._products[one, name].addmm_(ahead.T, x)

    def moments(self, stats: Mapping[SharedInput, CalibStats]) -> dict[SharedInput, Moments]:
        """Mean moments of each shared input, the sums over its number of tokens."""
        found: dict[SharedInput, dict[str, torch.Tensor]] = {one: {} for one in stats}
        for (one, name), total in self._products.items():
            found[one][name] = total / stats[one].tokens
        return {
            one: Moments(stats[one].tokens, stats[one].hessian, **means)
            for one, means in found.items()
        }
