"""Part of a model that one of several ranks has: heads, intermediate channels, rows of the head (Megatron-LM).

    q k v, gate up, fc1      rows of W (column parallel): whole heads, some channels; nothing is sent
    o_proj, down, fc2        columns of W (row parallel): a part of every sum, which all ranks add
    lm_head                  rows of W: some of the vocabulary, gathered

Norms and embeddings are everyone's. Key-value heads are shared out too; where they are fewer than ranks, each is held
by several. Intermediate channels are cut where the groups of the layer that reads them end, so they may be uneven: 86
groups on 4 ranks are 22, 22, 21 and 21.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from lutlab.errors import LutlabError
from lutlab.models.contract import KINDS, Family

_UNIT = 32  # channels that are not parted where no group says more: the bits of a word


@dataclass(frozen=True)
class Width:
    """A linear layer: W [rows, columns], the group size along columns (-1: a row), whether columns have an order."""

    rows: int
    columns: int
    group: int = -1
    ordered: bool = False


@dataclass(frozen=True)
class Rows:
    """Rows of W, one span below the other."""

    spans: tuple[range, ...]


@dataclass(frozen=True)
class Columns:
    """Stored columns of W.

    Attributes:
        span: range of the columns.
        given: range of the channels of x that the layers before it leave on this rank; others than those of the columns
            where these have an order.
    """

    span: range
    given: range


@dataclass(frozen=True)
class Share:
    """One rank's part of a block.

    Attributes:
        heads: range of the heads of queries.
        key_values: range of the heads of keys and values.
        head_size: channels of a head.
        parts: path of a linear layer in the block -> the part of its weight.
    """

    heads: range
    key_values: range
    head_size: int
    parts: Mapping[str, Rows | Columns]


def even(total: int, unit: int, count: int, what: str) -> list[range]:
    """A range for each rank, whole units but for the last; the first ranks have one more where they do not divide.

    Examples:
        >>> [len(one) // 128 for one in even(11008, 128, 4, "channels")]
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
    """The part of a block that rank `index` of `count` has; widths: path in the block -> each of its linear layers.

    Raises:
        LutlabError: heads, key-value heads or channels cannot be shared by so many, or the block has another build.
    """
    (attention, out), (feed_forward, down) = (_pair(family, kind) for kind in KINDS)
    parts: dict[str, Rows | Columns] = {}
    size = widths[out].columns // heads
    held, kept = _heads(heads, _key_value_heads(attention, widths, size), index, count)
    spans = [_channels(one, size) for one in (held, kept, kept)]
    if len(attention) == len(spans):
        parts |= {path: Rows((span,)) for path, span in zip(attention, spans, strict=True)}
    else:  # GPT-2's c_attn: q, k and v below each other
        third = widths[attention[0]].rows // len(spans)
        shifted = (_shift(span, at * third) for at, span in enumerate(spans))
        parts[attention[0]] = Rows(tuple(shifted))
    parts[out] = _columns(widths[out], spans[0], index, count)

    total = widths[down].columns
    own = even(total, _unit(widths[down]), count, "intermediate channels")[index]
    for path in feed_forward:  # of GLM's gate_up_proj two spans
        starts = range(0, widths[path].rows, total)
        parts[path] = Rows(tuple(_shift(own, start) for start in starts))
    parts[down] = _columns(widths[down], own, index, count)
    return Share(held, kept, size, parts)


def _pair(family: Family, kind: str) -> tuple[tuple[str, ...], str]:
    """Layers that read the hidden state, and the one that writes it, of a kind of sub-layer."""
    shared = [one.layers for one in family.inputs if one.kind == kind]
    if [len(one) for one in shared] not in ([1, 1], [2, 1], [3, 1]) or family.heads:
        raise LutlabError(
            f"models of type {family.model_types[0]} cannot be shared by ranks: expected a causal language model whose "
            f"blocks have layers of {kind} that read the hidden state and then one that writes it"
        )
    return shared[0], shared[1][0]


def _key_value_heads(attention: tuple[str, ...], widths: Mapping[str, Width], size: int) -> int:
    if len(attention) == 1:
        return widths[attention[0]].rows // (3 * size)
    return widths[attention[1]].rows // size


def _heads(heads: int, key_values: int, index: int, count: int) -> tuple[range, range]:
    """Heads of queries of a rank, and of the keys and values that they read."""
    if heads % count or (key_values % count and count % key_values):
        raise LutlabError(
            f"{heads} attention heads with {key_values} of keys and values cannot be shared by {count} ranks: heads "
            "must be a multiple of the ranks, key-value heads a multiple or a divisor; take a number of ranks that is"
        )
    own, shared = heads // count, max(1, key_values // count)
    first = index * key_values // count
    return range(index * own, (index + 1) * own), range(first, first + shared)


def _channels(heads: range, size: int) -> range:
    return range(heads.start * size, heads.stop * size)


def _shift(span: range, by: int) -> range:
    return range(span.start + by, span.stop + by)


def _unit(width: Width) -> int:
    """Columns that a cut keeps together."""
    return width.group if 0 < width.group < width.columns else _UNIT


def _columns(width: Width, given: range, index: int, count: int) -> Columns:
    """The columns of the channels that a rank has; with an order, as many of all channels."""
    if not width.ordered:
        return Columns(given, given)
    return Columns(even(width.columns, _unit(width), count, "columns")[index], given)
