"""Hessians in which a token counts by how much the end loss hangs on what a layer puts out there.

    L      cross entropy of the next token, summed over tokens, of the full-precision model
    w_k    [M], of output group k of a layer: mean over its outputs n of (dL / dy_n)^2, divided by its mean over tokens
    H_k    X^T diag(w_k) X / M: the rows of group k are quantized with it, each group with factors of its own

Kim et al., "GuidedQuant: Large Language Model Quantization via Exploiting End Loss Guidance" (ICML 2025), section 3:
the Fisher information of an output channel, averaged over the channels of a group. A group that no loss hangs on has
w = 1.

One backward pass of the whole model, a batch of windows at a time, before any block is quantized; kept of it are w_k,
4 bytes a token, layer and group. A block is then passed once more for the Hessians, K^2 a layer and group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from lutlab.base.errors import LutlabError
from lutlab.base.groups import Bits
from lutlab.base.tensors import CalibStats, Coded, QuantizedTensor, stacked
from lutlab.compress.calibrate import BlockInputs, Windows, read
from lutlab.models.contract import SharedInput
from lutlab.models.families import linear_layers, task_of
from lutlab.quantizers.coefficients import quantized
from lutlab.quantizers.contract import Method

# Tokens whose logits are in memory at once.
BATCH_TOKENS = 2048
Weights = Mapping[str, torch.Tensor]  # layer name -> w [M, groups] float32


def batches(model: PreTrainedModel, windows: torch.Tensor) -> list[torch.Tensor]:
    """Windows [samples, S] as few at a time as a pass with logits holds, on the model's device."""
    size = max(1, BATCH_TOKENS // windows.shape[1])
    return [batch.to(model.device) for batch in windows.split(size)]


def output_gradients(
    model: PreTrainedModel, windows: torch.Tensor, see: Callable[[str, torch.Tensor], None]
) -> None:
    """Call see(layer name, dL/dy [B, S, N] or [B * S, N]) of every quantizable layer, batch by batch in order."""

    def watch(name: str) -> Any:
        def forward(_: object, inputs: object, output: torch.Tensor) -> None:
            output.register_hook(lambda gradient: see(name, gradient))

        return forward

    hooks = [module.register_forward_hook(watch(name)) for name, module in linear_layers(model)]
    try:
        with torch.enable_grad():
            for batch in batches(model, windows):
                embedded = model.get_input_embeddings()(batch).detach().requires_grad_()
                logits = model(inputs_embeds=embedded, use_cache=False).logits[:, :-1]
                loss = torch.nn.functional.cross_entropy(
                    logits.flatten(0, 1).float(), batch[:, 1:].flatten(), reduction="sum"
                )
                torch.autograd.grad(loss, embedded)
    finally:
        for hook in hooks:
            hook.remove()


def token_weights(model: PreTrainedModel, windows: Windows, groups: int) -> Weights:
    """The w_k of every layer, on windows [samples, S] int64; of a layer of less outputs than groups, one an output.

    Raises:
        LutlabError: the model is streamed or predicts no next token, windows are padded, or a gradient is not finite.
    """
    if any(parameter.is_meta for parameter in model.parameters()):
        raise LutlabError(
            "hessian=gradients passes back through the whole model, and this one is streamed: drop stream=true"
        )
    if (task := task_of(model)) != "causal_lm" or not isinstance(windows, torch.Tensor):
        raise LutlabError(
            f"hessian=gradients takes the loss of the next token on windows without padding, and this is for {task}: "
            "use hessian=inputs"
        )
    squares: dict[str, list[torch.Tensor]] = {name: [] for name, _ in linear_layers(model)}

    def see(name: str, gradient: torch.Tensor) -> None:
        parts = gradient.flatten(0, -2).float().square().tensor_split(groups, dim=1)
        squares[name].append(torch.stack([p.mean(1) for p in parts if p.shape[1]], dim=1))

    output_gradients(model, windows, see)
    return {name: _of_mean_one(name, torch.cat(some)) for name, some in squares.items()}


def _of_mean_one(name: str, squares: torch.Tensor) -> torch.Tensor:
    mean = squares.mean(dim=0)
    if not torch.isfinite(mean).all():
        raise LutlabError(
            f"calibration: the gradients of {name} are inf or nan: load the model with dtype=float32"
        )
    return torch.where(mean > 0, squares / mean, 1.0)


def weighted(
    block: torch.nn.Module,
    inputs: BlockInputs,
    stats: Mapping[SharedInput, CalibStats],
    weights: Weights,
    path: Callable[[str], str],
) -> dict[str, list[CalibStats]]:
    """Layer -> statistics with the H_k of each of its output groups, for the layers of `stats`.

    All tokens of the hidden states count; path: name of a layer in the model, of its path in the block.
    """
    layers = {layer: shared for shared in stats for layer in shared.layers}
    sums = {
        layer: [torch.zeros_like(stats[shared].hessian) for _ in weights[path(layer)][0]]
        for layer, shared in layers.items()
    }
    start = 0
    for index in range(len(inputs.hidden)):
        now = read(block, inputs, index, [shared.layers[0] for shared in stats])
        end = start + len(next(iter(now.values())))
        for layer, shared in layers.items():
            x = now[shared.layers[0]]
            each = weights[path(layer)][start:end].to(x.device)
            of_window = inputs.weights(index, shared)
            each = each if of_window is None else each * of_window[:, None]
            for total, counts in zip(sums[layer], each.T, strict=True):
                total.addmm_((x * counts[:, None]).T, x)
        start = end
    return {
        layer: [
            dataclasses.replace(stats[shared], weighted=total.div_(stats[shared].tokens))
            for total in sums[layer]
        ]
        for layer, shared in layers.items()
    }


def quantized_rows(
    method: Method, weight: torch.Tensor, q: Bits, g: int, prepared: Sequence[Any], *, name: str
) -> tuple[QuantizedTensor, bool]:
    """coefficients.quantized for rows in as many groups as `prepared` has factors."""
    groups = zip(weight.tensor_split(len(prepared)), prepared, strict=True)
    parts = [quantized(method, rows, q, g, factors, name=name) for rows, factors in groups]
    # of Compensated methods, which alone have hessian=gradients
    tensors = cast("list[Coded]", [tensor for tensor, _ in parts])
    return stacked(tensors), any(widened for _, widened in parts)
