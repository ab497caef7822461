"""Tuning block by block: scales and codes of one block, towards what the full-precision block gives.

    loss = mean (block(x) - y)^2 / mean (y - mean of y)^2      x from the quantized blocks before, already tuned
                                                               y of the full-precision model, on its own inputs

Codes are trained straight through a latent weight V, whose nearest codeword is taken in every pass:

    W[n, k] = the codeword of row n's group nearest to V[n, k]        dL/dV = dL/dW

Scales move as in scales.py, and V in the same unit, the rounding error of its group. V begins at the stored weight, so
that step 0 is the layer as it came. It does not begin at the weight in full precision, nor where coordinate descent
would put each weight, r_k / H_kk from the stored one: both lie at or behind the edges of most cells, where the first
steps turn many codes at once (docs/how-to/tune.md has by how much).

Every eighth window is held out, and of each block the state of least loss on those is kept, its first one included.

Memory: of one block some 40 bytes a weight, of all windows the hidden states of both models, in float32. Products and
moves are in float32 whatever the model's dtype, and a block goes back to that.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import logging
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import nn
from torch.utils._pytree import tree_map
from transformers import PreTrainedModel

from lutlab.base.specs import Tuning
from lutlab.base.tensors import BCQTensor, UniformTensor
from lutlab.compress.calibrate import BATCH_TOKENS, BlockInputs, Call, capture
from lutlab.compress.kept_blocks import TuningStore, content_sha256
from lutlab.formats import pack
from lutlab.formats.contract import Format
from lutlab.models import fits
from lutlab.models.families import decoder_blocks, family_of, linear_layers, weight_of
from lutlab.modules import QuantLinear
from lutlab.quantizers.contract import Method
from lutlab.tuning.loop import fit
from lutlab.tuning.losses import HELD_OUT
from lutlab.tuning.scales import (
    Coded,
    ScaledLinear,
    Stored,
    check_coded,
    codewords,
    first_order,
)

# Bytes a weight while its block is trained: the latent weight, a copy while it moves, gradient, two moments of Adam's
# and the best one in float32, the decoded weight; the code, where it lies among codewords (int64), the packed one.
_BYTES_A_WEIGHT = 7 * 4 + 1 + 8 + 1
_CURE = "give fewer or shorter calibration windows, lower tuning.batch, or take a larger device"
log = logging.getLogger(__name__)


def check_tunable(quantizer: Method) -> None:
    """Raise LutlabError unless a method gives weights whose codes can be trained."""
    check_coded(quantizer, "tuning.block_steps moves codes and scales")


def check_memory(model: PreTrainedModel, windows: torch.Tensor, tuning: Tuning) -> None:
    """Say what tuning a full-precision model takes; raise TooLargeError where the device does not hold it."""
    blocks = decoder_blocks(model)
    linears = [weight_of(module) for _, module in linear_layers(model)]
    weights = sum(weight.numel() for weight in linears) // len(blocks)
    ends = sum(sum(weight.shape) for weight in linears) // len(blocks)
    tokens = min(tuning.batch, len(windows)) * windows.shape[1]
    parts = {
        "a copy of the model": sum(parameter.nbytes for parameter in model.parameters()),
        "hidden states": 2 * 4 * windows.numel() * model.config.hidden_size,
        "a block": _BYTES_A_WEIGHT * weights,
        "its activations": 2 * 4 * tokens * ends,  # and their gradients, roughly
    }
    check_fits("tuning block by block", parts, model.device, _CURE)


def check_fits(what: str, parts: Mapping[str, int], device: torch.device, cure: str) -> None:
    """Say what a tuning takes; raise TooLargeError where the device does not hold it."""
    shares = ", ".join(f"{name} {size / 1e9:.2f}" for name, size in parts.items() if size)
    log.info("%s takes some %.2f GB: %s", what, sum(parts.values()) / 1e9, shares)
    fits.check(what, parts, f"{device}", cure=cure)


@torch.no_grad()
def tune_blocks(
    start: PreTrainedModel,
    full: PreTrainedModel,
    windows: torch.Tensor,
    tuning: Tuning,
    *,
    kept: TuningStore | None = None,
) -> dict[str, Any]:
    """Train the quantized layers of a model block by block, in place.

    Args:
        start: quantized, in evaluation mode; its layers have, afterwards, other codes and scales of the same layout.
        full: the model in full precision.
        windows: token ids [samples, S] int64, at least 2.
        tuning: options, with block_steps of 1 at least.
        kept: store of finished blocks and of the state of the one that is being trained.

    Returns:
        The curve of each block, and the share of its codes that changed.

    Raises:
        LutlabError: the error of a block is inf or nan before anything was trained.
    """
    steps, learning_rate = tuning.block_steps, tuning.block_learning_rate
    pace = dataclasses.replace(tuning, steps=steps, learning_rate=learning_rate)
    run = _Run(full, windows, pace, kept)
    quantized, targets, facts = run.hidden(start), run.hidden(full), []
    for index, block in enumerate(decoder_blocks(start)):
        run.advance(copy.deepcopy(decoder_blocks(full)[index]).float(), targets)
        dtypes = {name: parameter.dtype for name, parameter in block.named_parameters()}
        block.float()
        facts.append(run.tune(f"block-{index:04}", block, quantized, targets))
        run.advance(block, quantized)
        for name, parameter in block.named_parameters():
            parameter.data = parameter.data.to(dtypes[name])
    return {"blocks": facts}


class _Run:
    """Windows on their way through two models; hidden states are [samples, S, D] float32."""

    def __init__(
        self,
        full: PreTrainedModel,
        windows: torch.Tensor,
        pace: Tuning,
        kept: TuningStore | None,
    ) -> None:
        self.full, self.windows, self.pace, self.kept = full, windows, pace, kept
        self.family = family_of(full.config)
        self.size = max(1, BATCH_TOKENS // windows.shape[1])  # windows at once, as capture has it
        held_out = torch.arange(len(windows)) % HELD_OUT == 0
        self.trained = (~held_out).nonzero().squeeze(1)
        self.held_out = held_out.nonzero().squeeze(1)
        self.calls: dict[int, Call] = {}
        self.before = ""  # digest of the blocks so far

    def hidden(self, model: PreTrainedModel) -> torch.Tensor:
        """Hidden states in front of the first block."""
        return torch.cat(capture(model, self.windows).hidden).float()

    def _call(self, windows: int) -> Call:
        """A block's arguments beside the hidden states of so many windows."""
        if windows not in self.calls:
            call = capture(self.full, self.windows[:windows]).calls[0]
            self.calls[windows] = tree_map(_in_float32, call)
        return self.calls[windows]

    def through(self, block: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
        """[B, S, D] -> [B, S, D]."""
        parts = [*hidden.split(self.size)]
        calls = [self._call(len(part)) for part in parts]
        inputs = BlockInputs(parts, calls, [None] * len(parts))
        return torch.cat([inputs.run(block, index) for index in range(len(parts))])

    def advance(self, block: nn.Module, hidden: torch.Tensor) -> None:
        """Overwrite the inputs of a block by its outputs."""
        for part in hidden.split(self.size):
            part.copy_(self.through(block, part))

    def tune(
        self,
        name: str,
        block: nn.Module,
        hidden: torch.Tensor,
        targets: torch.Tensor,
    ) -> dict[str, Any]:
        """Train the quantized layers of a block, or load its finished state; returns its facts."""
        named = ((layer, block.get_submodule(layer)) for layer in self.family.linears)
        modules = {layer: module for layer, module in named if isinstance(module, QuantLinear)}
        # check_tunable refuses methods of other formats
        packed = {layer: cast("Stored", module.packed) for layer, module in modules.items()}
        header = json.dumps([name, dataclasses.asdict(self.pace), len(self.windows), self.before])
        digest = content_sha256(header, _buffers(packed))
        facts = self._restored(name, digest, packed)
        if facts is None:
            layers = {n: CodedLinear(packed[n], m.bias) for n, m in modules.items()}
            put_layers(block, layers)
            facts = self._fitted(name, block, layers, hidden, targets)
            if facts["kept_step"]:
                packed |= {layer: module.rounded() for layer, module in layers.items()}
            if self.kept:
                self.kept.write(name, _buffers(packed), {"tuned": digest, "facts": facts})
        self.before = content_sha256(digest, _buffers(packed))
        put_layers(block, {n: QuantLinear(packed[n], m.bias) for n, m in modules.items()})
        return facts

    def _restored(self, name: str, digest: str, packed: dict[str, Stored]) -> dict[str, Any] | None:
        """Facts of a block that was finished from this very beginning, whose weights replace those of `packed`."""
        tensors, facts = (self.kept and self.kept.intact(name)) or ({}, {})
        if facts.get("tuned") != digest:
            return None
        for layer, weight in packed.items():
            buffers = {n: tensors.get(f"{layer}.{n}") for n in weight.buffers}
            device = next(iter(weight.stored_buffers.values())).device
            packed[layer] = weight.with_buffers(buffers).to(device)
        return facts["facts"]

    def _fitted(
        self,
        name: str,
        block: nn.Module,
        layers: Mapping[str, CodedLinear],
        hidden: torch.Tensor,
        targets: torch.Tensor,
    ) -> dict[str, Any]:
        """Train a block's layers; the curve, and the share of codes that changed."""
        spread = targets.var((0, 1), correction=0).mean()

        def error(samples: torch.Tensor) -> torch.Tensor:
            difference = self.through(block, hidden[samples]) - targets[samples]
            return difference.square().mean() / spread

        def held_out() -> float:
            batches = self.held_out.split(self.pace.batch)
            return sum(error(b).item() * len(b) for b in batches) / len(self.held_out)

        before = {layer: module.rounded().unpack().codes for layer, module in layers.items()}
        curve = fit(
            name,
            by_path({layer: module.trained() for layer, module in layers.items()}),
            lambda indices: error(self.trained[indices]),
            len(self.trained),
            self.pace,
            units=by_path({layer: module.units() for layer, module in layers.items()}),
            held_out=held_out,
            kept=self.kept,
        )
        after = {layer: module.rounded().unpack().codes for layer, module in layers.items()}
        changed = sum(int((after[layer] != codes).sum()) for layer, codes in before.items())
        weights = sum(codes.numel() for codes in before.values())
        return {**curve, "codes_changed": changed / max(1, weights)}


def put_layers(module: nn.Module, layers: Mapping[str, nn.Module]) -> None:
    """Replace layers of a block or a model by others of the same names."""
    for name, layer in layers.items():
        module.set_submodule(name, layer)


def by_path(named: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """{layer: {name: value}} -> {layer.name: value}."""
    return {f"{layer}.{n}": value for layer, values in named.items() for n, value in values.items()}


def _buffers(packed: Mapping[str, Format]) -> dict[str, torch.Tensor]:
    """Stored tensors of some layers, in main memory."""
    buffers = by_path({layer: weight.stored_buffers for layer, weight in packed.items()})
    return {path: buffer.cpu() for path, buffer in buffers.items()}


def _in_float32(value: Any) -> Any:
    """An argument of a block: floating point tensors in float32, all else as it is."""
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.float() if floating else value


# ---- the layer that is trained ----


class CodedLinear(ScaledLinear):
    """A linear layer of codes and scales that can be trained.

    Attributes:
        latent: parameter [N, G, g], whose nearest codewords are the weight.
    """

    def __init__(self, packed: Stored, bias: torch.Tensor | None) -> None:
        super().__init__(packed, bias)
        self.tensor = self.packed.unpack()
        self.latent = nn.Parameter(self._by_group(self.packed.dequantize()))

    def trained(self) -> dict[str, nn.Parameter]:
        """Scales and latent weight."""
        return super().trained() | {"latent": self.latent}

    def units(self) -> dict[str, torch.Tensor]:
        """How far each of those moves at a rate of 1, by name: [N, G], of the latent weight [N, G, 1]."""
        deviation = codewords(self.tensor).std(2, correction=0, keepdim=True)
        return super().units() | {"latent": deviation / 2**self.tensor.bits}

    def rounded(self) -> Stored:
        """The weight as it would be stored now: of the same layout."""
        return self.stored(cast("Coded", pack(self._chosen()[0])))

    def decoded(self) -> torch.Tensor:
        """[N, K] float32, as it would be stored now."""
        return self._chosen()[1]

    @torch.no_grad()
    def _chosen(self) -> tuple[BCQTensor | UniformTensor, torch.Tensor]:
        """Codes and scales as stored now, and the weight [N, K] float32 by input channels."""
        stored = first_order(super().rounded()).stored_buffers
        scales: dict[str, Any] = {name: stored[name] for name in self.scales}
        tensor = dataclasses.replace(self.tensor, **scales)
        words, code_of = codewords(tensor).sort(2)
        edges = (words[..., 1:] + words[..., :-1]) / 2
        level = torch.searchsorted(edges, self.latent)
        self.codes = self._columns(code_of.gather(2, level)).to(torch.uint8)
        weight = self._columns(words.gather(2, level))
        if tensor.order is not None:
            weight = torch.empty_like(weight).index_copy_(1, tensor.order.long(), weight)
        return dataclasses.replace(tensor, codes=self.codes), weight

    def gradients(self, gradient: torch.Tensor) -> list[torch.Tensor]:
        """dL/dW [N, K] -> dL/d of each of what is trained."""
        return [*super().gradients(gradient), self._by_group(gradient)]

    def _by_group(self, weight: torch.Tensor) -> torch.Tensor:
        """[N, K] by input channels -> [N, G, g] by columns."""
        order = self.packed.order
        return self._grouped(weight if order is None else weight[:, order.long()])

    def _columns(self, grouped: torch.Tensor) -> torch.Tensor:
        """[N, G, g] -> [N, K]."""
        return grouped.flatten(1)[:, : self.packed.shape[1]]
