"""One rank's part of a model: transformers' own modules, whose linear layers are smaller and exchange what they lack.

    part = share_out(model, blocks, rank)        part.model(input_ids) on all ranks: the logits of the whole, on each

    q k v, gate up, fc1      rows of W (column parallel): whole heads, some channels; nothing is sent      (Megatron-LM)
    o_proj, down, fc2        columns of W (row parallel): a part of every sum, which all ranks add
    lm_head                  rows of W: some of the vocabulary, gathered

Norms and embeddings are everyone's. Key-value heads are shared out too; where they are fewer than ranks, each is held
by several. Intermediate channels are cut where the groups of the layer that reads them end, so they may be uneven: 86
groups on 4 ranks are 22, 22, 21 and 21.

Hooks exchange, two sums a block, so that a layer stays the QuantLinear or Linear that engines know. A bias behind such
a sum is rank 0's. Where columns have an order, each rank needs channels of all: x is completed first, which is one
exchange more.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.nn.functional import pad

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedConfig, PreTrainedModel
from lutlab.formats import cut
from lutlab.formats.contract import Format
from lutlab.formats.dense import PackedDense
from lutlab.models.contract import KINDS, Family
from lutlab.models.families import decoder_blocks, family_of, weight_of
from lutlab.models.resident import Blocks
from lutlab.models.streamed import assign
from lutlab.modules import QuantLinear
from lutlab.parallel.ranks import Rank

_UNIT = 32  # channels that are not parted where no group says more: the bits of a word


# ---- who has what ----


@dataclass(frozen=True)
class Width:
    """A linear layer: W [rows, columns], the group size along columns (-1: a row), whether columns have an order."""

    rows: int
    columns: int
    group: int = -1
    ordered: bool = False


@dataclass(frozen=True)
class Share:
    """One rank's part of a block.

    Attributes:
        heads: range of the heads of queries.
        key_values: range of the heads of keys and values.
        head_size: channels of a head.
        rows: path of a linear layer in the block -> spans of the rows of its weight, one below the other.
        columns: path of each other layer -> the span of stored columns of its weight, and that of the channels of x
            that the layers before it leave on this rank: others than those of the columns where these have an order.
    """

    heads: range
    key_values: range
    head_size: int
    rows: Mapping[str, tuple[range, ...]]
    columns: Mapping[str, tuple[range, range]]


def even(total: int, unit: int, count: int, what: str) -> list[range]:
    """A range for each rank, whole units but for the last; the first ranks have one more where they do not divide.

    Examples:
        >>> [len(span) // 128 for span in even(11008, 128, 4, "channels")]
        [22, 22, 21, 21]

    Raises:
        LutlabError: there are fewer units than ranks.
    """
    units = -(-total // unit)
    if units < count:
        raise LutlabError(
            f"{total} {what} in units of {unit} cannot be shared by {count} ranks: {units} can have some; take fewer"
        )
    ends = [0]
    for index in range(count):
        ends.append(ends[-1] + units // count + (index < units % count))
    return [range(a * unit, min(b * unit, total)) for a, b in itertools.pairwise(ends)]


def share_of(
    family: Family, widths: Mapping[str, Width], heads: int, index: int, count: int
) -> Share:
    """The part of a block of rank `index` of `count`; `widths` has all linear layers by their paths in the block.

    Raises:
        LutlabError: heads, key-value heads or channels cannot be shared by so many, or the block has another build.
    """
    (attention, out), (feed_forward, down) = (_pair(family, kind) for kind in KINDS)
    rows: dict[str, tuple[range, ...]] = {}
    size = widths[out].columns // heads
    parts = 3 if len(attention) == 1 else 1  # GPT-2's c_attn: q, k and v below each other
    queries, key_values = _heads(heads, widths[attention[-1]].rows // (parts * size), index, count)
    spans = [range(h.start * size, h.stop * size) for h in (queries, key_values, key_values)]
    if len(attention) == len(spans):
        rows |= {path: (span,) for path, span in zip(attention, spans, strict=True)}
    else:
        third = widths[attention[0]].rows // parts
        rows[attention[0]] = tuple(_shift(span, at * third) for at, span in enumerate(spans))
    total = widths[down].columns
    inner = even(total, _unit(widths[down]), count, "intermediate channels")[index]
    for path in feed_forward:  # of GLM's gate_up_proj two spans
        starts = range(0, widths[path].rows, total)
        rows[path] = tuple(_shift(inner, start) for start in starts)
    columns = {
        out: (_columns(widths[out], spans[0], index, count), spans[0]),
        down: (_columns(widths[down], inner, index, count), inner),
    }
    return Share(queries, key_values, size, rows, columns)


def _pair(family: Family, kind: str) -> tuple[tuple[str, ...], str]:
    """Layers that read the hidden state, and the one that writes it, of a kind of sub-layer."""
    shared = [group.layers for group in family.inputs if group.kind == kind]
    if [len(layers) for layers in shared] not in ([1, 1], [2, 1], [3, 1]) or family.heads:
        raise LutlabError(
            f"models of type {family.model_types[0]} cannot be shared by ranks: expected a causal language model whose "
            f"blocks have layers of {kind} that read the hidden state and then one that writes it"
        )
    return shared[0], shared[1][0]


def _heads(heads: int, key_values: int, index: int, count: int) -> tuple[range, range]:
    """Heads of queries of a rank, and of the keys and values that they read."""
    if heads % count or (key_values % count and count % key_values):
        raise LutlabError(
            f"{heads} attention heads with {key_values} of keys and values cannot be shared by {count} ranks: heads "
            "must be a multiple of the ranks, key-value heads a multiple or a divisor; take a number of ranks that is"
        )
    size, shared = heads // count, max(1, key_values // count)
    first = index * key_values // count
    return range(index * size, (index + 1) * size), range(first, first + shared)


def _shift(span: range, by: int) -> range:
    return range(span.start + by, span.stop + by)


def _unit(width: Width) -> int:
    """Columns that a cut keeps together."""
    return width.group if 0 < width.group < width.columns else _UNIT


def _columns(width: Width, channels: range, index: int, count: int) -> range:
    """The columns of the channels that a rank has; with an order, as many of all channels."""
    if not width.ordered:
        return channels
    return even(width.columns, _unit(width), count, "columns")[index]


# ---- what a rank is left with ----


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
    for index, place in enumerate(decoder_blocks(model)):
        with blocks.open(index) as block:
            share = share_of_block(block, model.config, rank)
            layers = {
                path: _of_rows(block.get_submodule(path), spans, part)
                for path, spans in share.rows.items()
            } | {
                path: _of_columns(block.get_submodule(path), *spans, part)
                for path, spans in share.columns.items()
            }
            inside = tuple(f"{path}." for path in layers)
            state = block.state_dict()
            rest = {n: t.clone() for n, t in state.items() if not n.startswith(inside)}
        for path, layer in layers.items():
            place.set_submodule(path, layer)
        assign(place, "", rest)
        _count(place, model.config.model_type, share)
        part.shares.append(share)
    _share_head(part)
    cast("nn.Module", model).to(rank.device)  # transformers' decorator hides the argument
    return part


def share_of_block(block: nn.Module, config: PreTrainedConfig, rank: Rank) -> Share:
    """The part of a block, which may be on the meta device, that a rank has; with the errors of share_of."""
    family = family_of(config)
    widths = {}
    for path in family.linears:
        packed, _ = _stored(block.get_submodule(path))
        ordered = cut.order(packed) is not None
        widths[path] = Width(*packed.shape, cut.group_size(packed), ordered)
    return share_of(family, widths, config.num_attention_heads, rank.index, rank.count)


def _stored(layer: nn.Module) -> tuple[Format, torch.Tensor | None]:
    """Weight and bias of a linear layer; a weight that is not quantized [N, K] need not be contiguous."""
    packed = layer.packed if isinstance(layer, QuantLinear) else PackedDense(weight_of(layer))
    return packed, cast("torch.Tensor | None", layer.bias)  # no module


def _of_rows(layer: nn.Module, spans: Sequence[range], part: Part) -> nn.Module:
    """The layer of a rank that has rows of it."""
    packed, bias = _stored(layer)
    if bias is not None:
        bias = torch.cat([bias[span.start : span.stop] for span in spans])
    return _linear(cut.rows(packed, spans), bias, part.rank.device)


def _of_columns(layer: nn.Module, span: range, mine: range, part: Part) -> nn.Module:
    """The layer of a rank that has columns of it, with its hooks."""
    (packed, bias), device = _stored(layer), part.rank.device
    if bias is not None:
        bias = None if part.rank.index else bias.clone()
    made = _linear(cut.columns(packed, span), bias, device)
    order = cut.order(packed)
    if order is not None:
        channels = order[span.start : span.stop].long().to(device)
        made.register_forward_pre_hook(_completing(mine, packed.shape[1], channels, part))
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


def _completing(mine: range, total: int, channels: torch.Tensor, part: Part) -> Callable[..., Any]:
    """A hook: x with the channels `mine` of this rank -> the channels that its columns have, out of all ranks'."""

    def complete(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        (x,) = inputs
        whole = x.new_zeros(*x.shape[:-1], total)
        whole[..., mine.start : mine.stop] = x
        return (part.sum(whole)[..., channels],)

    return complete


# Where attention counts heads by itself instead of asking its tensors.
_QUERIES = {"opt": "self_attn", "gpt2": "attn", "gpt_neo": "attn.attention"}
_GROUPED = dict.fromkeys(("llama", "mistral", "qwen2", "qwen3", "glm"), "self_attn")


def _count(block: nn.Module, model_type: str, share: Share) -> None:
    """Tell a block's attention how many heads it has."""
    paths = _QUERIES | _GROUPED
    if model_type not in paths:
        raise LutlabError(
            f"lutlab does not know where the attention of a '{model_type}' counts its heads, so ranks cannot share it: "
            f"known are {', '.join(paths)} (parallel/shard.py)"
        )
    attention: Any = block.get_submodule(paths[model_type])  # a class of each family's
    if model_type in _GROUPED:
        attention.num_key_value_groups = len(share.heads) // len(share.key_values)
        return
    attention.num_heads = len(share.heads)
    if model_type == "gpt2":
        attention.split_size = len(share.heads) * share.head_size


def _share_head(part: Part) -> None:
    """Give a rank its part of the vocabulary."""
    model, rank = part.model, part.rank
    head, count = model.get_output_embeddings(), rank.count
    if isinstance(head, QuantLinear):
        raise LutlabError(
            "ranks share an output head in full precision only, and this one is quantized: save the model without "
            "embeddings="
        )
    spans = even(head.out_features, 1, count, "tokens of the vocabulary")
    span = spans[rank.index]
    weight, bias = head.weight.detach()[span.start : span.stop], head.bias
    if head.weight is not model.get_input_embeddings().weight:
        weight = weight.clone()  # else a view of what everyone has
    bias = None if bias is None else bias[span.start : span.stop]
    made = _linear(PackedDense(weight), bias, rank.device)

    def gathered(module: nn.Module, inputs: object, y: torch.Tensor) -> torch.Tensor:
        of_ranks = part.gather(pad(y, (0, len(spans[0]) - len(span))))
        return torch.cat([of_ranks[i][..., : len(each)] for i, each in enumerate(spans)], -1)

    made.register_forward_hook(gathered)
    model.set_output_embeddings(made)
