"""Inputs of a block's linear layers on calibration text: hidden states go through one block at a time.

    H = X^T diag(v) X / M of each linear layer's inputs X [M, K];  layers that share an input share H
    v_t = first_token  for the first token of a window in front of keys and values, else 1

B windows a batch, S tokens a window, D hidden size. Blocks are called as the model calls them: arguments are captured
in front of the first block and replayed, since blocks return a bare tensor and need all their keywords. Where windows
are padded, each batch has its own arguments, the attention mask among them, and no padding is a row of X.

Later tokens attend to the first one far more than to any other (Xiao et al., "Efficient Streaming Language Models with
Attention Sinks", ICLR 2024), so an error of its key or value is in every output, and in a mean over tokens it is one of
S. IntactKV (Liu et al., arXiv 2403.01241) keeps keys and values of such tokens in full precision; here they count more,
and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lutlab.base.arguments import described, token_ids
from lutlab.base.errors import LutlabError
from lutlab.base.tensors import CalibStats
from lutlab.models.contract import SharedInput
from lutlab.models.families import decoder_blocks, with_positions

# Token ids [samples, S] int64, or what a tokenizer returns of padded texts: input_ids, attention_mask, …, of that shape
Windows = torch.Tensor | Mapping[str, torch.Tensor]
Call = tuple[tuple[Any, ...], Mapping[str, Any]]  # arguments of a block behind the hidden states
# Tokens that go through a block at once: enough to fill a matmul, few enough that activations stay small.
BATCH_TOKENS = 4096
# Least sum of squares of a layer's loudest channel: below it most channels would be taken for dead.
TINIEST = 2.0**-100


class _Stop(Exception):
    """Leaves a forward pass where the rest of it is not needed."""


@dataclass(frozen=True)
class BlockInputs:
    """Inputs of a block, batch by batch.

    Attributes:
        hidden: hidden states, [B, S, D] each.
        calls: the arguments beside them; batches without padding share one object.
        tokens: [B, S] bool, true where a token is no padding; None: everywhere.
        first_token: weight of a window's first token where keys and values are made of it; 1: that of any other.
    """

    hidden: list[torch.Tensor]
    calls: Sequence[Call]
    tokens: Sequence[torch.Tensor | None]
    first_token: float = 1.0

    def weights(self, index: int, shared: SharedInput) -> torch.Tensor | None:
        """[m] float32, how much each token of a batch counts in a shared input; None: all as one."""
        if self.first_token == 1 or not shared.attended:
            return None
        hidden, tokens = self.hidden[index], self.tokens[index]
        if tokens is None:
            tokens = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
        weights = torch.ones(tokens.shape, device=hidden.device)
        first = tokens.int().argmax(dim=1, keepdim=True)  # behind the padding
        return weights.scatter_(1, first, self.first_token)[tokens]

    def run(self, block: nn.Module, index: int) -> torch.Tensor:
        """One batch through a block: [B, S, D] -> [B, S, D]."""
        args, kwargs = self.calls[index]
        out = block(self.hidden[index], *args, **kwargs)
        return out[0] if isinstance(out, tuple) else out


def check_windows(model: PreTrainedModel, windows: Windows) -> None:
    """Refuse what are no windows for a model.

    Raises:
        LutlabError: no token ids of the model's vocabulary, or beside them something of another shape.
    """
    if not isinstance(windows, Mapping):
        token_ids("calibration", windows, model.config.vocab_size)
        return
    if "input_ids" not in windows:
        raise LutlabError(
            "calibration has no input_ids: give token ids, or what a tokenizer returns with return_tensors='pt'"
        )
    ids = token_ids("calibration", windows["input_ids"], model.config.vocab_size)
    for name, values in windows.items():
        tensor = isinstance(name, str) and isinstance(values, torch.Tensor)
        if not tensor or values.shape != ids.shape or values.is_meta:
            raise LutlabError(
                f"calibration has {name} of {described(values)} beside input_ids of {list(ids.shape)}: give what a "
                "tokenizer returns with return_tensors='pt' and padding=True"
            )


def capture(model: PreTrainedModel, windows: Windows, first_token: float = 1.0) -> BlockInputs:
    """Inputs of the first block. No block runs. first_token: as in BlockInputs.

    Raises:
        LutlabError: a window is longer than the model's context, or nothing but padding.
    """
    named = {"input_ids": windows} if isinstance(windows, torch.Tensor) else dict(windows)
    mask = named.get("attention_mask")
    if mask is not None and not mask.any(1).all():
        raise LutlabError("a calibration window is nothing but padding: remove the empty text")
    samples, seqlen = named["input_ids"].shape
    limit = getattr(model.config, "max_position_embeddings", None)
    if limit is not None and seqlen > limit:
        raise LutlabError(
            f"calibration windows of {seqlen} tokens exceed the model's context of {limit}: "
            f"take calibration.seqlen={limit} or less"
        )
    # equal batches, so that the arguments of one serve all where nothing is padded
    most = min(max(1, BATCH_TOKENS // seqlen), samples)
    size = max(n for n in range(1, most + 1) if samples % n == 0)
    hidden: list[torch.Tensor] = []
    calls: list[Call] = []

    def keep(_: nn.Module, args: tuple, kwargs: dict) -> None:
        if "hidden_states" in kwargs:
            args = (kwargs.pop("hidden_states"), *args)
        hidden.append(args[0])
        calls.append((args[1:], kwargs) if mask is not None or not calls else calls[0])
        raise _Stop

    hook = decoder_blocks(model)[0].register_forward_pre_hook(keep, with_kwargs=True)
    try:
        for start in range(0, samples, size):
            batch = {k: v[start : start + size].to(model.device) for k, v in named.items()}
            with suppress(_Stop):
                model(**with_positions(model, batch), use_cache=False)
    finally:
        hook.remove()
    tokens = [None] * len(hidden) if mask is None else mask.bool().to(model.device).split(size)
    return BlockInputs(hidden, calls, tokens, first_token)


def observe(
    block: nn.Module, inputs: BlockInputs, shared: Sequence[SharedInput]
) -> dict[SharedInput, CalibStats]:
    """Statistics of the inputs of some linear layers of a block; the pass ends where the last of them is reached.

    Raises:
        LutlabError: an activation is inf or nan.
    """
    sums = Sums()
    for index in range(len(inputs.hidden)):
        with _summed(block, inputs, index, shared, sums, stop=True):
            inputs.run(block, index)
    return sums.stats()


def advance(
    block: nn.Module, inputs: BlockInputs, shared: Sequence[SharedInput] = ()
) -> dict[SharedInput, CalibStats]:
    """Overwrite the inputs of a block by those of the next one; returns statistics of `shared` on the way.

    Raises:
        LutlabError: an activation is inf or nan.
    """
    sums = Sums()
    for index in range(len(inputs.hidden)):
        with _summed(block, inputs, index, shared, sums, stop=False):
            inputs.hidden[index] = inputs.run(block, index)
    return sums.stats()


def _summed(
    block: nn.Module,
    inputs: BlockInputs,
    index: int,
    shared: Sequence[SharedInput],
    sums: Sums,
    *,
    stop: bool,
) -> AbstractContextManager[None]:
    """Inside, what the layers of `shared` read in a batch is added to the sums; stop: as in _watched."""
    by_path = {shared_input.layers[0]: shared_input for shared_input in shared}

    def add(path: str, x: torch.Tensor) -> None:
        sums.add(by_path[path], x, inputs.weights(index, by_path[path]))

    return _watched(block, inputs.tokens[index], [*by_path], add, stop=stop)


def read(
    block: nn.Module, inputs: BlockInputs, index: int, paths: Sequence[str]
) -> dict[str, torch.Tensor]:
    """Inputs of modules of a block in one batch, by path: [m, K] float32 without padding. The pass ends at the last."""
    by_path: dict[str, torch.Tensor] = {}
    with _watched(block, inputs.tokens[index], paths, by_path.__setitem__, stop=True):
        inputs.run(block, index)
    return by_path


@contextmanager
def _watched(
    block: nn.Module,
    tokens: torch.Tensor | None,
    paths: Sequence[str],
    see: Callable[[str, torch.Tensor], None],
    *,
    stop: bool,
) -> Iterator[None]:
    """Inside, see(path, x [m, K]) is called in front of some modules; `stop` ends the block's pass at the last one."""

    def watch(path: str) -> Any:
        def hook(_: nn.Module, args: tuple[torch.Tensor, ...]) -> None:
            see(path, rows(args[0], tokens))
            if stop and path == paths[-1]:
                raise _Stop

        return block.get_submodule(path).register_forward_pre_hook(hook)

    hooks = [watch(path) for path in paths]
    try:
        with suppress(_Stop):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def rows(x: torch.Tensor, tokens: torch.Tensor | None) -> torch.Tensor:
    """Rows [m, K] float32 of x [..., K]: those of `tokens` [B, S] bool; None: all."""
    x = x.detach()
    x = x.flatten(0, -2)  # OPT's second layers read [B * S, K] already
    x = x if tokens is None else x[tokens.to(x.device).flatten()]
    return x.float()


def stats_of(x: torch.Tensor) -> CalibStats:
    """Statistics of one layer's inputs X [M, K].

    Raises:
        LutlabError: X is inf or nan.
    """
    layer = SharedInput("", ("the layer",))
    sums = Sums()
    sums.add(layer, rows(x, None))
    return sums.stats()[layer]


class Sums:
    """Running sums over the inputs X of each shared input: X^T X, X^T diag(v) X, |X| and their number."""

    def __init__(self) -> None:
        self._sums: dict[SharedInput, CalibStats] = {}

    def add(
        self, shared: SharedInput, x: torch.Tensor, weights: torch.Tensor | None = None
    ) -> None:
        """Add the inputs x [m, K] float32 of one batch; weights: v [m] float32, None where all tokens count as one."""
        channels = x.shape[1]
        if shared not in self._sums:
            square = x.new_zeros(channels, channels)
            weighted = None if weights is None else torch.zeros_like(square)
            self._sums[shared] = CalibStats(square, x.new_zeros(channels), 0, weighted)
        sums = self._sums[shared]
        sums.hessian.addmm_(x.T, x)
        sums.mean_abs.add_(x.abs().sum(0))
        if sums.weighted is not None and weights is not None:
            sums.weighted.addmm_((x * weights[:, None]).T, x)
        self._sums[shared] = replace(sums, tokens=sums.tokens + len(x))

    def stats(self) -> dict[SharedInput, CalibStats]:
        """Statistics of each shared input, means over its tokens."""
        stats = {}
        for shared, sums in self._sums.items():
            if not torch.isfinite(sums.metric).all():
                raise LutlabError(
                    f"calibration: the inputs of {shared.layers[0]} are inf or nan (or their squares overflow "
                    "float32): the model overflows on this text; load it with dtype=float32, or check its weights"
                )
            if sums.hessian.diagonal().max() < TINIEST and bool(sums.mean_abs.any()):
                raise LutlabError(
                    f"calibration: the inputs of {shared.layers[0]} are so small that their squares leave float32: "
                    "multiply the weights that make them"
                )
            for total in (sums.hessian, sums.mean_abs, sums.weighted):
                if total is not None:
                    total.div_(sums.tokens)
            stats[shared] = sums
        return stats
