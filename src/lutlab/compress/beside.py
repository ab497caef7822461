"""The full-precision model beside the one that is quantized, block by block: what layers read in both.

Memory: a copy of one block, the hidden states of all calibration windows a second time, and of the layers that are
observed their cross moments (target.py) and what they read in one batch.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedConfig

from lutlab.compress.calibrate import BlockInputs, Sums, advance, read
from lutlab.compress.target import Moments, Target
from lutlab.models.contract import SharedInput, holds
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
        """Statistics of the inputs of some linear layers of the block as it is now, and the targets of their weights.

        Raises:
            LutlabError: as calibrate.observe.
        """
        streams = {one: self._stream(one) for one in shared}
        paths = [path for path in streams.values() if path is not None]
        paths = list(dict.fromkeys([*paths, *(one.layers[0] for one in shared)]))
        sums, products = Sums(), _Products()
        for index in range(len(inputs.hidden)):
            now, full = (
                read(block, inputs, index, paths),
                read(self._block, self._inputs, index, paths),
            )
            ahead = {path: full.pop(path) - now[path] for path in paths}
            for one, stream in streams.items():
                x = now[one.layers[0]]
                sums.add(one, x)
                products.add((one, "inputs"), ahead[one.layers[0]], x)
                if stream is not None:
                    products.add((one, "stream"), ahead[stream], x)
        stats = sums.stats()
        means = {key: total / stats[key[0]].tokens for key, total in products.total.items()}
        return stats, {
            one: Target(
                Moments(stats[one].hessian, means[one, "inputs"], means.get((one, "stream")))
            )
            for one in shared
        }

    def _stream(self, shared: SharedInput) -> str | None:
        """Path of the module that reads the stream which the layers add to; None where that is in no target."""
        if not self.stream:
            return None
        return next((path for path, where in shared.adds_to if holds(where, self.config)), None)


class _Products:
    """Running sums of products A^T X, by key."""

    def __init__(self) -> None:
        self.total: dict[tuple[SharedInput, str], torch.Tensor] = {}

    def add(self, key: tuple[SharedInput, str], ahead: torch.Tensor, x: torch.Tensor) -> None:
        """ahead: [m, N]; x: [m, K]."""
        if key not in self.total:
            self.total[key] = x.new_zeros(ahead.shape[1], x.shape[1])
        self.total[key].addmm_(ahead.T, x)
