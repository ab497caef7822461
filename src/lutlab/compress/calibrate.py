"""Inputs of a block's linear layers on calibration text: hidden states go through one block at a time.

    H = X^T X / M of each linear layer's inputs X [M, K];  layers that share an input share H

B windows a batch, S tokens a window, D hidden size. Blocks are called as the model calls them: arguments are captured
in front of the first block and replayed, since decoder blocks return a bare tensor and need all their keywords.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lutlab.errors import LutlabError
from lutlab.models.contract import SharedInput
from lutlab.models.families import decoder_blocks
from lutlab.tensors import CalibStats

# Tokens that go through a block at once: enough to fill a matmul, few enough that activations stay small.
BATCH_TOKENS = 4096


class _Stop(Exception):
    """Leaves a forward pass where the rest of it is not needed."""


@dataclass(frozen=True)
class BlockInputs:
    """Inputs of a block: hidden states of all windows, a list of [B, S, D], and the arguments they all share."""

    hidden: list[torch.Tensor]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def run(self, block: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        """One batch through a block: [B, S, D] -> [B, S, D]."""
        out = block(batch, *self.args, **self.kwargs)
        return out[0] if isinstance(out, tuple) else out


def capture(model: PreTrainedModel, windows: torch.Tensor) -> BlockInputs:
    """Inputs of the first block for `windows` [samples, S] int64. No block runs.

    Raises:
        LutlabError: a window is longer than the model's context.
    """
    samples, seqlen = windows.shape
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is not None and seqlen > limit:
        raise LutlabError(
            f"calibration windows of {seqlen} tokens exceed the model's context of {limit}: "
            f"take calibration.seqlen={limit} or less"
        )
    # equal batches, so that the arguments of one serve all
    wanted = max(1, BATCH_TOKENS // seqlen)
    size = max(n for n in range(1, min(wanted, samples) + 1) if samples % n == 0)
    found: list[tuple[tuple, dict]] = []

    def keep(_: nn.Module, args: tuple, kwargs: dict) -> None:
        found.append((args, kwargs))
        raise _Stop

    hook = decoder_blocks(model)[0].register_forward_pre_hook(keep, with_kwargs=True)
    hidden = []
    try:
        for batch in windows.split(size):
            try:
                model(input_ids=batch.to(model.device), use_cache=False)
            except _Stop:
                args, kwargs = found.pop()
                if "hidden_states" in kwargs:
                    args = (kwargs.pop("hidden_states"), *args)
                hidden.append(args[0])
    finally:
        hook.remove()
    return BlockInputs(hidden, args[1:], kwargs)


def observe(
    block: nn.Module, inputs: BlockInputs, shared: Sequence[SharedInput]
) -> dict[SharedInput, CalibStats]:
    """Statistics of the inputs of some linear layers of a block; the pass ends where the last of them is reached.

    Raises:
        LutlabError: an activation is inf or nan.
    """
    with _observing(block, shared, stop=True) as seen:
        for batch in inputs.hidden:
            try:
                inputs.run(block, batch)
            except _Stop:
                continue
    return seen.stats()


def advance(
    block: nn.Module, inputs: BlockInputs, shared: Sequence[SharedInput] = ()
) -> tuple[BlockInputs, dict[SharedInput, CalibStats]]:
    """Inputs of the next block, and statistics of `shared` on the way. The hidden states are overwritten.

    Raises:
        LutlabError: as observe.
    """
    with _observing(block, shared, stop=False) as seen:
        for index, batch in enumerate(inputs.hidden):
            inputs.hidden[index] = inputs.run(block, batch)
    return inputs, seen.stats()


def stats_of(x: torch.Tensor) -> CalibStats:
    """Statistics of one layer's inputs X [M, K].

    Raises:
        LutlabError: X is inf or nan.
    """
    layer = SharedInput("", ("the layer",))
    sums = _Sums()
    sums.add(layer, x)
    return sums.stats()[layer]


class _Sums:
    """Running sums over the inputs X of each shared input."""

    def __init__(self) -> None:
        self.hessian: dict[SharedInput, torch.Tensor] = {}
        self.absolute: dict[SharedInput, torch.Tensor] = {}
        self.tokens: dict[SharedInput, int] = {}

    def add(self, shared: SharedInput, x: torch.Tensor) -> None:
        """x: [..., K]."""
        x = x.detach().flatten(0, -2).float()
        if shared not in self.hessian:
            self.hessian[shared] = x.new_zeros(x.shape[1], x.shape[1])
            self.absolute[shared] = x.new_zeros(x.shape[1])
            self.tokens[shared] = 0
        self.hessian[shared].addmm_(x.T, x)
        self.absolute[shared] += x.abs().sum(0)
        self.tokens[shared] += len(x)

    def stats(self) -> dict[SharedInput, CalibStats]:
        """The means."""
        found = {}
        for shared, hessian in self.hessian.items():
            if not torch.isfinite(hessian).all():
                raise LutlabError(
                    f"calibration: the inputs of {shared.layers[0]} are inf or nan (or their squares overflow "
                    "float32): the model overflows on this text; load it with dtype=float32, or check its weights"
                )
            tokens = self.tokens[shared]
            absolute = self.absolute[shared].div_(tokens)
            found[shared] = CalibStats(hessian.div_(tokens), absolute, tokens)
        return found


@contextmanager
def _observing(block: nn.Module, shared: Sequence[SharedInput], *, stop: bool) -> Iterator[_Sums]:
    """Collect sums in front of the first layer of each shared input; `stop` leaves the pass at the last one."""
    sums = _Sums()

    def watch(one: SharedInput, last: bool) -> Any:
        def see(_: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            sums.add(one, args[0])
            if stop and last:
                raise _Stop

        return block.get_submodule(one.layers[0]).register_forward_pre_hook(see)

    hooks = [watch(one, one == shared[-1]) for one in shared]
    try:
        yield sums
    finally:
        for hook in hooks:
            hook.remove()
