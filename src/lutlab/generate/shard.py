"""One rank's part of a model: transformers' own modules, whose linear layers are smaller and exchange what they lack.

    part = share_out(model, blocks, rank)        part.model(input_ids) on all ranks: the logits of the whole, on each

Which rank has what says models/share.py. A layer that is cut by columns adds its sums up over the ranks behind each
call (two a block), the head gathers the logits; hooks do it, so that a layer stays the QuantLinear or Linear that
engines know. A bias behind such a sum is rank 0's. Where columns have an order, each rank needs channels of all: x is
completed first, which is one exchange more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad

from lutlab.errors import LutlabError
from lutlab.formats import cut
from lutlab.formats.contract import Format
from lutlab.formats.dense import PackedDense
from lutlab.lazy import PreTrainedConfig, PreTrainedModel
from lutlab.measure.ranks import Rank
from lutlab.models.families import decoder_blocks, family_of, weight_of
from lutlab.models.resident import Blocks
from lutlab.models.share import Columns, Rows, Share, Width, even, share_of
from lutlab.models.streamed import assign
from lutlab.modules import QuantLinear


class Part:
    """A rank's part of a model, and how it meets the others.

    Attributes:
        model: the model, of which this rank has a part.
        rank: this rank.
        shares: its part of each block.
        silent: nothing is sent and sums are wrong, which times the rest of a step.
    """

    def __init__(self, model: PreTrainedModel, rank: Rank) -> None:
        self.model, self.rank, self.silent = model, rank, False
        self.shares: list[Share] = []

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of the ranks' tensors, in the place of this one's."""
        values = values.contiguous()
        if not self.silent:
            self.rank.sum(values)
        return values

    def gather(self, part: torch.Tensor) -> torch.Tensor:
        """[n, …] of each rank -> [count, n, …]."""
        whole = part.new_zeros(self.rank.count * len(part), *part.shape[1:])
        if not self.silent:
            self.rank.gather(whole, part.contiguous())
        return whole.view(self.rank.count, *part.shape)


def share_out(model: PreTrainedModel, blocks: Blocks, rank: Rank) -> Part:
    """Leave a rank's part of a model in its place, on the rank's device.

    Args:
        model: a causal language model; embeddings, norms and head have their weights.
        blocks: blocks of the model; one is opened at a time, and nothing of it is kept but the part.
        rank: all ranks call this, with the same model.

    Raises:
        LutlabError: heads or channels cannot be shared by so many ranks, a weight cannot be cut where it has to be, or
            the family is not known here.
    """
    part = Part(model, rank)
    for index, own in enumerate(decoder_blocks(model)):
        with blocks.open(index) as block:
            share = share_of_block(block, model.config, rank)
            layers = {
                path: _layer(block.get_submodule(path), one, part)
                for path, one in share.parts.items()
            }
            inside = tuple(f"{path}." for path in layers)
            state = block.state_dict()
            rest = {n: t.clone() for n, t in state.items() if not n.startswith(inside)}
        for path, layer in layers.items():
            own.set_submodule(path, layer)
        assign(own, "", rest)
        _count(own, model.config.model_type, share)
        part.shares.append(share)
    _share_head(part)
    model.to(rank.device)
    return part


def share_of_block(block: nn.Module, config: PreTrainedConfig, rank: Rank) -> Share:
    """The part of a block that a rank has; the block may be on the meta device. Raises LutlabError: it cannot be shared
    so.
    """
    family = family_of(config)
    widths = {path: _width(block.get_submodule(path)) for path in family.linears}
    return share_of(family, widths, config.num_attention_heads, rank.index, rank.count)


def _width(layer: nn.Module) -> Width:
    packed = _packed(layer)
    return Width(*packed.shape, cut.group_size(packed), cut.order(packed) is not None)


def _packed(layer: nn.Module) -> Format:
    """The weight of a linear layer, quantized or not; of the latter [N, K], which need not be contiguous."""
    return layer.packed if isinstance(layer, QuantLinear) else PackedDense(weight_of(layer))


def _layer(layer: nn.Module, held: Rows | Columns, part: Part) -> nn.Module:
    """The layer of a rank, with its hooks."""
    packed, bias, device = _packed(layer), layer.bias, part.rank.device
    if isinstance(held, Rows):
        if bias is not None:
            bias = torch.cat([bias[span.start : span.stop] for span in held.spans])
        return _linear(cut.rows(packed, held.spans), bias, device)
    if bias is not None:
        bias = None if part.rank.index else bias.clone()
    made = _linear(cut.columns(packed, held.span), bias, device)
    order = cut.order(packed)
    if order is not None:
        channels = order[held.span.start : held.span.stop].long().to(device)
        made.register_forward_pre_hook(_completing(held.given, packed.shape[1], channels, part))
    made.register_forward_hook(lambda module, inputs, y: part.sum(y))
    return made


def _linear(packed: Format, bias: torch.Tensor | None, device: str) -> nn.Module:
    if not isinstance(packed, PackedDense):
        return QuantLinear(packed, bias).to(device)
    rows, columns = packed.shape
    made = nn.Linear(columns, rows, bias=bias is not None, device="meta")
    made.weight = nn.Parameter(packed.weight.to(device), requires_grad=False)
    if bias is not None:
        made.bias = nn.Parameter(bias.detach().to(device), requires_grad=False)
    return made


def _completing(given: range, total: int, channels: torch.Tensor, part: Part) -> Callable[..., Any]:
    """A hook: x with the channels `given` of this rank -> the channels that its columns have, out of all ranks'."""

    def complete(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        (x,) = inputs
        whole = x.new_zeros(*x.shape[:-1], total)
        whole[..., given.start : given.stop] = x
        return (part.sum(whole)[..., channels],)

    return complete


# Where attention counts heads by itself instead of asking its tensors.
_QUERIES = {"opt": "self_attn", "gpt2": "attn", "gpt_neo": "attn.attention"}
_GROUPED = dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "glm"), "self_attn")


def _count(block: nn.Module, model_type: str, share: Share) -> None:
    """Tell a block's attention how many heads it has."""
    if model_type in _GROUPED:
        attention = block.get_submodule(_GROUPED[model_type])
        attention.num_key_value_groups = len(share.heads) // len(share.key_values)
    elif model_type in _QUERIES:
        attention = block.get_submodule(_QUERIES[model_type])
        attention.num_heads = len(share.heads)
        if model_type == "gpt2":
            attention.split_size = len(share.heads) * share.head_size
    else:
        raise LutlabError(
            f"lutlab does not know where the attention of a '{model_type}' counts its heads, so ranks cannot share it: "
            f"known are {', '.join((*_QUERIES, *_GROUPED))} (generate/shard.py)"
        )


def _share_head(part: Part) -> None:
    """Give a rank its part of the vocabulary."""
    model, rank = part.model, part.rank
    head, count = model.get_output_embeddings(), rank.count
    spans = even(head.out_features, 1, count, "tokens of the vocabulary")
    own = spans[rank.index]
    weight, bias = head.weight.detach()[own.start : own.stop], head.bias
    if head.weight is not model.get_input_embeddings().weight:
        weight = weight.clone()  # else a view of what everyone has
    bias = None if bias is None else bias[own.start : own.stop]
    made = _linear(PackedDense(weight), bias, rank.device)

    def gathered(module: nn.Module, inputs: tuple[torch.Tensor, ...], y: torch.Tensor) -> Any:
        of_ranks = part.gather(pad(y, (0, len(spans[0]) - len(own))))
        return torch.cat([of_ranks[i][..., : len(span)] for i, span in enumerate(spans)], -1)

    made.register_forward_hook(gathered)
    model.set_output_embeddings(made)
