"""The one driver that quantizes a model, for every method: block by block, in forward order.

A calibrated method sees what each linear layer reads on calibration text (calibrate.py). Its `inputs` say whose
activations these are:

    quantized   of the model as quantized so far, so that a layer makes up for the errors before it (GPTQ, section 3);
                with true_sequential also for those of the layers before it in its own block
    full        of the full-precision model: one pass serves every method, q and g, and is kept on disk (StatsStore)

Where its `target` is not the weights, the method is given others that make up for the errors of the layers before
(target.py); the full-precision model then goes beside the quantized one, block by block. Where its
`hessian` is by gradients, tokens count by the end loss (gradients.py).

Of each layer it states the errors of its weight, and of what it puts out on calibration text:

    ||W^ - W||^2,    E||W^ x - W x||^2 = tr((W^ - W) H (W^ - W)^T),    H = E[x x^T]

W is the layer's own weight, whatever target the method was given: under another target than the weights the second
number has in it what the layer does on purpose, to make up for errors before it.
"""

from __future__ import annotations

import functools
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from lutlab.base.errors import LutlabError
from lutlab.base.groups import Width
from lutlab.base.progress import steps
from lutlab.base.specs import LayerStats
from lutlab.base.tensors import CalibStats
from lutlab.compress.calibrate import BlockInputs, Windows, advance, capture, observe
from lutlab.compress.gradients import Weights, quantized_rows, token_weights, weighted
from lutlab.compress.kept_blocks import BlockStore, StatsStore
from lutlab.compress.rescale import rescale_input
from lutlab.compress.target import Beside, Target
from lutlab.formats import name_of, pack
from lutlab.formats.contract import Format
from lutlab.formats.dense import PackedDense
from lutlab.models.families import Family, SharedInput, family_of, linear_layers, weight_of
from lutlab.models.resident import Blocks, Resident
from lutlab.modules import QuantLinear
from lutlab.quantizers.coefficients import exponent, quantized, times_power
from lutlab.quantizers.contract import Calibrated, Method, Rescaling
from lutlab.quantizers.none import NoQuantization

# Weights whose norms are taken at a time: bounds the float64 temporaries at some 10 MB.
_CHUNK_WEIGHTS = 2**20
Seen = Mapping[SharedInput, CalibStats]
_NONE: Mapping[Any, Any] = {}
log = logging.getLogger(__name__)


def quantize_model(
    model: PreTrainedModel,
    quantizer: Method,
    widths: Mapping[str, Width | None],
    calibration: Windows | None = None,
    *,
    blocks: Blocks | None = None,
    kept: BlockStore | None = None,
    seen: StatsStore | None = None,
    packed: Mapping[str, Format] | None = None,
) -> tuple[LayerStats, ...]:
    """Replace every linear layer of the decoder blocks by its quantized form, in place.

    Args:
        model: model in evaluation mode; with streamed blocks its decoder blocks may be on the meta device.
        quantizer: the method, with its options.
        widths: layer name -> (q, g), or None to keep it in full precision (widths.py).
        calibration: token ids [samples, S] int64, or what a tokenizer returns for padded texts, whose padding counts
            in no statistic. A method that needs none has errors of outputs by it.
        blocks: place that blocks come from and go to; None: all are in memory.
        kept: store of finished blocks; those that it holds intact are not quantized again.
        seen: store of the statistics of full-precision inputs.
        packed: layer name -> its packed weight, where it is quantized already, as by tuning/, and the method is not
            called.

    Returns:
        Errors, norms, widths and stored bits of each layer, in forward order.

    Raises:
        LutlabError: the model is quantized already, its architecture is unknown, a weight or an activation is not
            finite, the method needs calibration and has none, or a kept block is of another run.
    """
    if isinstance(quantizer, Calibrated) and calibration is None:
        raise LutlabError(
            "this method looks at activations: give calibration=<token ids [samples, seqlen]> (Python) or "
            "calibration.text=<protocol> (command line)"
        )
    _check_groups(model, widths)
    run = _Run(model, quantizer, widths, blocks or Resident(model), kept, packed or {})
    with torch.no_grad():
        if kept and all(map(kept.has, range(len(run.blocks)))):
            return run.restored(kept)
        if calibration is None:
            return run.without_inputs()
        if isinstance(quantizer, Calibrated) and quantizer.inputs == "quantized":
            return run.with_quantized_inputs(quantizer, calibration)
        return run.with_full_inputs(calibration, seen)


def _check_groups(model: PreTrainedModel, widths: Mapping[str, Width | None]) -> None:
    """Say where a group is longer than every row."""
    lengths = {g for _, g in filter(None, widths.values())}
    plain = [module for _, module in linear_layers(model) if not isinstance(module, QuantLinear)]
    longest = max((weight_of(module).shape[1] for module in plain), default=0)
    if longest and lengths and min(lengths) > longest:
        log.warning(
            "g=%s is longer than any row of this model, which has %d weights at most: a row is one group, as with g=-1",
            *(min(lengths), longest),
        )


class _Run:
    """State of one call: the model, its method and its widths."""

    def __init__(
        self,
        model: PreTrainedModel,
        quantizer: Method,
        widths: Mapping[str, Width | None],
        blocks: Blocks,
        kept: BlockStore | None,
        packed: Mapping[str, Format],
    ) -> None:
        self.model, self.quantizer, self.widths = model, quantizer, widths
        self.blocks, self.kept, self.packed = blocks, kept, packed
        self.family: Family = family_of(model.config)
        self.layers: list[LayerStats] = []
        self.weights: Weights = {}  # of tokens, where H is weighted by gradients
        # False after tuning: every width has its packed weight, and inputs are observed for errors of outputs alone
        self.solves = any(width and name not in packed for name, width in widths.items())

    def _indices(self) -> Iterator[int]:
        return steps(range(len(self.blocks)), "quantizing layer")

    def restored(self, kept: BlockStore) -> tuple[LayerStats, ...]:
        for index in self._indices():
            with self.blocks.open(index) as block:
                self.layers += kept.serve(index, block, next(block.parameters()).device)
        return tuple(self.layers)

    def without_inputs(self) -> tuple[LayerStats, ...]:
        for index in self._indices():
            with self.blocks.open(index) as block:
                if not self._restore(index, block):
                    self._quantize(index, block, self.family.inputs, {})
                    self._keep(index, block)
        return tuple(self.layers)

    def with_quantized_inputs(self, method: Calibrated, windows: Windows) -> tuple[LayerStats, ...]:
        beside = None
        if method.hessian == "gradients" and self.solves:
            self.weights = token_weights(self.model, windows, method.output_groups)
        inputs = capture(self.model, windows, method.first_token)
        passes = [self.family.inputs]  # each of shared inputs that are observed together
        if method.true_sequential:
            passes = [(shared,) for shared in self.family.inputs]
        if method.target != "weights" and self.solves:
            stream = method.target == "stream"
            beside = Beside(self.model.config, inputs, stream=stream, damp=method.damp)
        for index in self._indices():
            with self.blocks.open(index) as block:
                if beside:
                    beside.enter(block)
                if not self._restore(index, block):
                    if self.kept:
                        self.kept.forget_from(index + 1)  # they saw what this block gave before
                    for shared in passes:
                        self._observe_and_quantize(index, block, inputs, shared, beside)
                    self._keep(index, block)
                if index + 1 < len(self.blocks):
                    advance(block, inputs)
                    if beside:
                        beside.leave()
        return tuple(self.layers)

    def _observe_and_quantize(
        self,
        index: int,
        block: nn.Module,
        inputs: BlockInputs,
        shared: tuple[SharedInput, ...],
        beside: Beside | None,
    ) -> None:
        if beside:
            stats, targets = beside.observe(block, inputs, shared)
        else:
            stats, targets = observe(block, inputs, shared), {}
        path = functools.partial(self._path, index)
        guided = weighted(block, inputs, stats, self.weights, path) if self.weights else {}
        self._quantize(index, block, shared, stats, targets, guided)

    def with_full_inputs(
        self, windows: Windows, store: StatsStore | None
    ) -> tuple[LayerStats, ...]:
        shared = self.family.inputs
        unseen = [i for i in range(len(self.blocks)) if store is None or not store.has(i)]
        inputs = capture(self.model, windows) if unseen else None
        for index in self._indices():
            with self.blocks.open(index) as block:  # still in full precision
                stats: Seen = {}
                if inputs and index in unseen[-1:]:
                    stats = observe(block, inputs, shared)
                    inputs = None  # the blocks from here on were seen before
                elif inputs:
                    stats = advance(block, inputs, shared if index in unseen else ())
                if store and index in unseen:
                    store.save(index, stats)
                elif store:
                    stats = store.load(index, shared, next(block.parameters()).device)
                if not self._restore(index, block):
                    self._quantize(index, block, shared, stats)
                    self._keep(index, block)
        return tuple(self.layers)

    def _restore(self, index: int, block: nn.Module) -> bool:
        device = next(block.parameters()).device
        layers = self.kept.load(index, block, device) if self.kept else None
        self.layers += layers or []
        return layers is not None

    def _keep(self, index: int, block: nn.Module) -> None:
        if self.kept:
            names = [self._path(index, layer) for layer in self.family.linears]
            layers = [layer for layer in self.layers if layer.name in names]
            self.kept.save(index, block, layers)

    def _path(self, index: int, layer: str) -> str:
        return f"{self.family.blocks}.{index}.{layer}"

    def _quantize(
        self,
        index: int,
        block: nn.Module,
        inputs: tuple[SharedInput, ...],
        seen: Seen,
        targets: Mapping[SharedInput, Target] = _NONE,
        guided: Mapping[str, Sequence[CalibStats]] = _NONE,
    ) -> None:
        """Quantize the layers of some shared inputs of a block.

        Without targets these are the layers' own weights; guided: layer -> statistics of each group of its outputs, in
        the place of those of its input.
        """
        stats, method = dict(seen), self.quantizer
        if isinstance(method, Rescaling):
            for shared in inputs:
                widths = [self.widths[self._path(index, layer)] for layer in shared.layers]
                stats[shared] = rescale_input(
                    self.model.config, block, shared, widths, method, stats[shared]
                )
        for shared in inputs:
            of_input = stats.get(shared)
            prepared: list[Any] = []
            if of_input and isinstance(method, Calibrated) and not guided and self.solves:
                prepared = [method.prepare(of_input)]
            for layer in shared.layers:
                if guided and isinstance(method, Calibrated):
                    prepared = [method.prepare(group) for group in guided[layer]]
                name = self._path(index, layer)
                self._quantize_layer(name, block, layer, of_input, prepared, targets.get(shared))

    def _quantize_layer(
        self,
        name: str,
        block: nn.Module,
        layer: str,
        stats: CalibStats | None,
        prepared: Sequence[Any],
        target: Target | None,
    ) -> None:
        module = block.get_submodule(layer)
        if isinstance(module, QuantLinear):
            raise LutlabError(
                f"{name} is quantized already; load the model again to quantize it another way"
            )
        weight = weight_of(module).float().contiguous()
        width = self.widths[name] or (16, -1)
        try:
            packed, widened = self._packed(name, weight, prepared, target)
        except LutlabError as error:
            raise LutlabError(f"{name}: {error}") from error
        self.layers.append(_layer_stats(name, weight, packed, width, stats, widened))
        if isinstance(packed, PackedDense):
            # The layer stays, its weight rounded to the stored dtype.
            weight_of(module).copy_(packed.dequantize())
        else:
            bias = dict(module.named_parameters(recurse=False)).get("bias")
            block.set_submodule(layer, QuantLinear(packed, bias))

    def _packed(
        self, name: str, weight: torch.Tensor, prepared: Sequence[Any], target: Target | None
    ) -> tuple[Format, bool]:
        """The weight by the method, or as it is where it stays in full precision; and whether it had to be widened."""
        if name in self.packed:
            return self.packed[name], False
        width = self.widths[name]
        if width is None:
            tensor, widened = quantized(NoQuantization(), weight, 16, -1, name=name)
        else:
            weight = target(weight) if target else weight
            if len(prepared) > 1:
                tensor, widened = quantized_rows(
                    self.quantizer, weight, *width, prepared, name=name
                )
            else:
                tensor, widened = quantized(self.quantizer, weight, *width, *prepared, name=name)
        return pack(tensor), widened


def _layer_stats(
    name: str,
    weight: torch.Tensor,
    packed: Format,
    width: Width,
    stats: CalibStats | None,
    widened: bool,
) -> LayerStats:
    """Errors, norms, widths (q, g) and stored bits of a layer.

    Without the statistics of its inputs, errors of outputs are left out; widened: its coefficients had to be stored in
    float32.
    """
    power = exponent(weight)  # so that the squares of outputs stay in float32's range
    sums: defaultdict[str, float] = defaultdict(float)
    rows = max(1, _CHUNK_WEIGHTS // weight.shape[1])
    for before, after in zip(weight.split(rows), packed.dequantize().split(rows), strict=True):
        error = after.double() - before.double()
        sums["squared_error"] += error.square().sum().item()
        sums["squared_norm"] += before.double().square().sum().item()
        if stats is not None:
            sums["output_error"] += _weighted(error.float(), stats.hessian, power)
            sums["output_norm"] += _weighted(before, stats.hessian, power)
    return LayerStats(
        name,
        *packed.shape,
        squared_error=sums["squared_error"],
        squared_norm=sums["squared_norm"],
        bits_stored=packed.bits_stored,
        q=width[0],
        g=width[1],
        format=f"{name_of(packed)} {packed.kind}".rstrip(),
        bits_bcq=packed.bcq_bits,
        bits_average=packed.bits_average,
        output_error=sums.get("output_error"),
        output_norm=sums.get("output_norm"),
        widened=widened,
    )


def _weighted(rows: torch.Tensor, hessian: torch.Tensor, power: int) -> float:
    """tr(D H D^T) of D [N, K], taken of 2^-power D: the mean over calibration tokens of the squared norm of D x."""
    rows = times_power(rows, -power)
    return (rows @ hessian).mul_(rows).sum(dtype=torch.float64).item() * 4.0**power
