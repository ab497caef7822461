"""A model whose linear layers are drawn as they are stored, a block at a time: one that is closed is shapes only.

Numbers follow from the seed and each layer's name alone (drawn.py), so that a block is the same each time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import nn

from lutlab.compress.drawn import Bits, dense, drawn
from lutlab.compress.sizes import empty
from lutlab.errors import LutlabError
from lutlab.formats.contract import Format
from lutlab.formats.dense import PackedDense
from lutlab.groups import Width
from lutlab.lazy import PreTrainedConfig, PreTrainedModel
from lutlab.models import fits, streamed
from lutlab.models.families import decoder_blocks, family_of, linear_layers, weight_of
from lutlab.modules import QuantLinear
from lutlab.quantizers.contract import Method, make_method
from lutlab.quantizers.none import NoQuantization
from lutlab.quantizers.stored import STORED

FULL: Width = (16, -1)


class Drawn:
    """A model whose linear layers are drawn block by block: `open` draws one (Blocks of models/resident.py).

    Args as of build; ranks: that share the model, each of which keeps a part of every layer.
    """

    def __init__(
        self,
        config: PreTrainedConfig,
        method: Method,
        chosen: Mapping[str, Width | None],
        dtype: torch.dtype,
        device: str,
        seed: int,
        name: str = "",
        ranks: int = 1,
    ) -> None:
        if method == make_method(STORED):
            raise LutlabError(
                "method=stored is what a checkpoint holds, and nothing is stored of a drawn model: name another method"
            )
        streamed.return_freed_memory()
        self.model = streamed.skeleton(config, dtype)
        self.dtype, self.device, self._chosen, self._seed = dtype, device, chosen, seed
        linears = dict(linear_layers(self.model))
        self.plan = {
            path: _empty(method, chosen[path], *weight_of(module).shape)
            for path, module in linears.items()
        }
        weights = {"weights": sum(one.bits_stored for one in self.plan.values()) // 8 // ranks}
        largest = max(math.prod(one.shape) for one in self.plan.values())
        # what a layer is packed, or dequantized to read a prompt in: 16 bits a weight
        parts = weights | fits.outside_parts(self.model) | {"scratch": 2 * largest}
        fits.check(name or config.model_type, parts, device)
        self._deviation = getattr(config, family_of(config).deviation)
        with torch.no_grad():
            _draw_others(self.model, set(linears.values()), self._deviation, device, seed)
        streamed.finish(self.model, device)

    def __len__(self) -> int:
        return len(decoder_blocks(self.model))

    @contextmanager
    def open(self, index: int) -> Iterator[nn.Module]:
        """A block with its layers; closed, they are shapes only."""
        family = family_of(self.model.config)
        block = decoder_blocks(self.model)[index]
        for layer in family.linears:
            self.draw(f"{family.blocks}.{index}.{layer}")
        try:
            yield block
        finally:
            for layer in family.linears:
                streamed.release(block.get_submodule(layer))

    def draw(self, path: str) -> nn.Module:
        """Put a layer in its place."""
        with torch.no_grad():
            made = drawn(self.plan[path], self._deviation, Bits(self._seed, path), self.device)
            layer = _layer(self.model.get_submodule(path), made, self.dtype, self.device)
        self.model.set_submodule(path, layer)
        return layer

    def width(self, path: str) -> Width:
        """Q and g of a layer."""
        return FULL if isinstance(self.plan[path], PackedDense) else self._chosen[path]


def _empty(method: Method, width: Width | None, rows: int, columns: int) -> Format:
    """The layout of a layer, on the meta device."""
    if width is None or not method.quantizes:
        return empty(NoQuantization(), *FULL, rows, columns)
    return empty(method, *width, rows, columns)


def _layer(module: nn.Module, packed: Format, dtype: torch.dtype, device: str) -> nn.Module:
    """The module that takes the place of one on the meta device; its bias is 0."""
    bias = None
    if module.bias is not None:
        bias = torch.zeros(packed.shape[0], dtype=dtype, device=device)
    if not isinstance(packed, PackedDense):
        return QuantLinear(packed, bias)
    weight = packed.weight.to(dtype)
    transposed = weight_of(module).stride() != module.weight.stride()  # GPT-2 stores [K, N]
    module.weight = nn.Parameter(
        weight.T.contiguous() if transposed else weight, requires_grad=False
    )
    if bias is not None:
        module.bias = nn.Parameter(bias, requires_grad=False)
    return module


def _draw_others(
    model: PreTrainedModel, linears: set[nn.Module], deviation: float, device: str, seed: int
) -> None:
    """Embeddings and head as dense weights, the rest as the model initialises it; what is tied is drawn once."""
    tied = model.all_tied_weights_keys
    for path, module in model.named_modules():
        own = module._parameters
        if module in linears or not any(one is not None for one in own.values()):
            continue
        for key, meta in own.items():
            if meta is None or f"{path}.{key}" in tied:
                continue
            if meta.dim() == 2:
                made = dense(tuple(meta.shape), deviation, Bits(seed, f"{path}.{key}"), device)
            else:
                made = torch.zeros(meta.shape, device=device)
            own[key] = nn.Parameter(made.to(meta.dtype), requires_grad=False)
        if all(one is None or one.dim() < 2 for one in own.values()):
            model._init_weights(module)  # norms
