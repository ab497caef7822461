"""Parts of a packed weight [N, K], packed again: what one rank of a tensor-parallel model holds; and weights as one.

    rows(packed, spans)        W[n of the spans, :], one span below the other
    columns(packed, span)      W[:, k of the span], of stored columns: of a weight with an order, channels order[span]
    joined(parts)              W_1, W_2, … [N_i, K], one below the other: the inverse of rows

Nothing is rounded: dequantized, a part is the part of the whole, bit for bit. A part owns its buffers, so that the
whole may be a file's pages, of which only those of the part are read.

Columns may begin inside a group. The part then has finer groups, each with the scale of the group that it is of:

    g = 128, columns 64 ..   groups of gcd(128, 64) = 64: 0 | 1 1 | 2 2 | …        a span inside of one group: row-wise
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from lutlab.base.errors import LutlabError
from lutlab.base.groups import group_length
from lutlab.base.lazy import torch
from lutlab.base.tensors import BCQTensor, MixedTensor
from lutlab.formats import bcq, code_words
from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.contract import Format
from lutlab.formats.dense import PackedDense
from lutlab.formats.mixed import PackedMixed, outliers_of, row_scales
from lutlab.formats.second_order import SecondOrder
from lutlab.formats.uniform import PackedUniform

WORD = code_words.WORD
_LEAST = 8  # weights of a group, as groups.check_group_size has it


@functools.singledispatch
def rows(packed: Format, spans: Sequence[range]) -> Format:
    """The weight of some rows.

    Args:
        packed: [N, K], of format uniform or bcq, of first or second order, mixed or dense.
        spans: spans of rows, one below the other in the part.

    Raises:
        LutlabError: the spans part bands of a mixed weight; or no cut is known of the format.
    """
    raise _unknown(packed)


@functools.singledispatch
def columns(packed: Format, span: range) -> Format:
    """The weight of some stored columns; it has no order.

    Args:
        packed: [N, K], of format uniform or bcq, of first or second order, mixed or dense.
        span: span of columns.

    Raises:
        LutlabError: the span begins inside a group, at no multiple of 8 weights, of a mixed weight inside any; or no
            cut is known of the format.
    """
    raise _unknown(packed)


def _unknown(packed: Format) -> LutlabError:
    return LutlabError(
        f"a {type(packed).__name__} cannot be cut: lutlab cuts weights of the formats uniform, bcq, their second "
        "order, mixed and dense (rows.register and columns.register of formats/cut.py add one); decode on one device"
    )


def group_size(packed: Format) -> int:
    """Weights along K that share a scale; -1: a row, or there are no scales."""
    return getattr(packed, "group_size", -1)


def order(packed: Format) -> torch.Tensor | None:
    """[K] int32: stored column j holds input channel order[j]; None: channel j."""
    return getattr(packed, "order", None)


# ---- rows of uniform and binary codes, and weights as one ----

# Buffers, and the dimension of each that is rows; zero points in q bits are one stream of all rows.
_ROWS_AT = {"qweight": 0, "scale": 0, "planes": 1, "alpha": 1, "offset": 0}


def _of_rows(
    packed: PackedUniform | PackedBCQ, count: int, take: Callable[[str, int], torch.Tensor]
) -> PackedUniform | PackedBCQ:
    """A weight of so many other rows; take: name of a tensor and its dimension of rows -> what it becomes."""
    buffers = {n: take(n, dim) for n, dim in _ROWS_AT.items() if n in packed.stored_buffers}
    if isinstance(packed, PackedUniform) and packed.qzero is not None:
        zero, whole = take("zero_point", 0), packed.qzero.ndim > 1
        buffers["qzero"] = zero if whole else code_words.pack_stream(zero, packed.bits)
    return replace(packed, shape=(count, packed.shape[1])).with_buffers(buffers)


@rows.register(PackedUniform)
@rows.register(PackedBCQ)
def _(packed: PackedUniform | PackedBCQ, spans: Sequence[range]) -> PackedUniform | PackedBCQ:
    def take(name: str, dim: int) -> torch.Tensor:
        return _rows(getattr(packed, name), spans, dim)

    order = None if packed.order is None else _copy(packed.order)
    return replace(_of_rows(packed, sum(map(len, spans)), take), order=order)


def joined(parts: Sequence[Format]) -> Format:
    """The weight of all rows.

    Args:
        parts: weights of format uniform or bcq, all of one layout but for their numbers of rows.

    Raises:
        LutlabError: other formats, or layouts or orders of columns that differ.
    """
    first, *others = parts
    if not isinstance(first, PackedUniform | PackedBCQ):
        raise LutlabError(
            f"a {type(first).__name__} cannot be joined: only formats uniform and bcq"
        )
    layout = first.layout()
    for other in others:
        if other.layout() | {"out_features": first.shape[0]} != layout:
            raise LutlabError(
                f"weights of other layouts cannot be joined: {layout} and {other.layout()}"
            )
        if first.order is not None and not torch.equal(first.order, other.stored_buffers["order"]):
            raise LutlabError("weights whose columns are in different orders cannot be joined")

    def take(name: str, dim: int) -> torch.Tensor:
        return torch.cat([getattr(part, name) for part in parts], dim)

    return _of_rows(first, sum(part.shape[0] for part in parts), take)


# ---- columns of uniform codes ----


@columns.register
def _(packed: PackedUniform, span: range) -> PackedUniform:
    q, (first, words) = packed.bits, _words(span)
    qweight = packed.qweight[:, first // WORD * q : words * q]
    if _misfits(span, packed.shape[1]):
        codes = code_words.unpack_words(qweight, q, span.stop - first)
        qweight = code_words.pack_words(codes[:, span.start - first :], q)
    g, groups = _grouping(packed.group_size, packed.shape[1], span)
    zero, qzero, offset = packed.zero_point, packed.qzero, packed.offset
    if zero is not None and qzero is not None:
        zero = zero[:, groups]
        qzero = code_words.pack_stream(zero, q) if qzero.ndim == 1 else _copy(zero)
    return replace(
        packed,
        qweight=_copy(qweight),
        scale=_copy(packed.scale[:, groups]),
        qzero=qzero,
        offset=None if offset is None else _copy(offset[:, groups]),
        shape=(packed.shape[0], len(span)),
        group_size=g,
        order=None,
    )


# ---- columns of binary codes ----


@columns.register
def _(packed: PackedBCQ, span: range) -> PackedBCQ:
    first, words = _words(span)
    planes = packed.planes[:, :, first // WORD : words]
    g, groups = _grouping(packed.group_size, packed.shape[1], span)
    part = replace(
        packed,
        alpha=_copy(packed.alpha[:, :, groups]),
        offset=None if packed.offset is None else _copy(packed.offset[:, groups]),
        shape=(packed.shape[0], len(span)),
        group_size=g,
        order=None,
    )
    if not _misfits(span, packed.shape[1]):
        return replace(part, planes=_copy(planes))
    whole = bcq.unpack(replace(part, planes=planes, shape=(packed.shape[0], span.stop - first)))
    codes = whole.codes[:, span.start - first :]
    return bcq.pack(BCQTensor(codes, part.alpha, part.offset, packed.bits, g))


# ---- coefficients of second order: each row has its grids, all of its groups the same ----


@rows.register
def _(packed: SecondOrder, spans: Sequence[range]) -> SecondOrder:
    step, zero = (_rows(grid, spans, 1) for grid in packed.grids[:2])
    return packed.encoded(rows(packed.first_order(), spans), step, zero, packed.scale_bits)


@columns.register
def _(packed: SecondOrder, span: range) -> SecondOrder:
    step, zero = (_copy(grid) for grid in packed.grids[:2])
    return packed.encoded(columns(packed.first_order(), span), step, zero, packed.scale_bits)


# ---- mixed ----
# Second-order scales are of bands of rows and of groups, so a part begins and ends with them. Groups that are cut out
# of memory-aligned blocks are in no blocks any more: which of three scale codes has how many bits went by its place.

_OF_GROUPS = ("zero_point", "scale_code", "scale_zero", "scale_step")


def _owning(tensor: MixedTensor) -> PackedMixed:
    """Packed; packing keeps some of the whole's tensors as they are."""
    packed = PackedMixed.pack(tensor)
    return packed.with_buffers({name: _copy(b) for name, b in packed.stored_buffers.items()})


@rows.register
def _(packed: PackedMixed, spans: Sequence[range]) -> PackedMixed:
    tensor = packed.unpack()
    band, total = tensor.scale_group, len(tensor.codes)
    for span in spans:
        _check_mixed("rows", span, band, total)
    if sum(len(span) % band > 0 for span in spans[:-1]):
        raise _mixed_misfit("rows", spans[0], band)
    row = torch.cat([torch.arange(span.start, span.stop) for span in spans])
    bands = torch.cat([torch.arange(s.start // band, -(-s.stop // band)) for s in spans])
    device = tensor.codes.device
    row, bands = row.to(device), bands.to(device)
    part = {name: getattr(tensor, name)[row] for name in ("codes", "zero_point", "scale_code")}
    part |= {name: getattr(tensor, name)[bands] for name in ("scale_zero", "scale_step")}
    if of_rows := row_scales(tensor):
        scale, zero = of_rows
        part |= {"row_scale": scale[row], "row_zero": zero[row]}
    if outliers := outliers_of(tensor):
        count, column, value = outliers
        first = count.long().cumsum(0) - count
        places = [torch.arange(int(first[n]), int(first[n] + count[n])) for n in row.tolist()]
        at = torch.cat(places).to(device)
        part |= {
            "outlier_count": count[row],
            "outlier_column": column[at],
            "outlier_value": value[at],
        }
    return _owning(replace(tensor, **part))


@columns.register
def _(packed: PackedMixed, span: range) -> PackedMixed:
    tensor = packed.unpack()
    g = tensor.group_size
    _check_mixed("columns", span, g, tensor.codes.shape[1])
    groups = slice(span.start // g, -(-span.stop // g))
    part = {name: getattr(tensor, name)[:, groups] for name in _OF_GROUPS}
    part |= {"codes": tensor.codes[:, span.start : span.stop], "widths": tensor.widths[groups]}
    if outliers := outliers_of(tensor):
        count, column, value = outliers
        inside = (column >= span.start) & (column < span.stop)
        row = torch.arange(len(count), device=column.device)
        row = row.repeat_interleave(count.long())[inside]
        part |= {
            "outlier_count": torch.bincount(row, minlength=len(count)).int(),
            "outlier_column": column[inside] - span.start,
            "outlier_value": value[inside],
        }
    whole = len(part["widths"]) == len(tensor.widths)
    return _owning(replace(tensor, **part, aligned=tensor.aligned and whole))


def _check_mixed(what: str, span: range, unit: int, total: int) -> None:
    if span.start % unit or (span.stop % unit and span.stop != total):
        raise _mixed_misfit(what, span, unit)


def _mixed_misfit(what: str, span: range, unit: int) -> LutlabError:
    return LutlabError(
        f"{what} {span.start} to {span.stop} of a weight of mixed groups cannot be cut out: {unit} of them share "
        "scales of second order; take fewer ranks, or another method"
    )


# ---- dense ----


@rows.register
def _(packed: PackedDense, spans: Sequence[range]) -> PackedDense:
    return PackedDense(_rows(packed.weight, spans))


@columns.register
def _(packed: PackedDense, span: range) -> PackedDense:
    return PackedDense(_copy(packed.weight[:, span.start : span.stop]))


# ---- what they share ----


def _rows(values: torch.Tensor, spans: Sequence[range], dim: int = 0) -> torch.Tensor:
    return torch.cat([values.narrow(dim, s.start, len(s)) for s in spans], dim)


def _copy(values: torch.Tensor) -> torch.Tensor:
    """Contiguous, and of storage of its own: a view would keep the whole alive."""
    return values.clone(memory_format=torch.contiguous_format)


def _words(span: range) -> tuple[int, int]:
    """The first column of the first word of 32 that a span touches, and the word behind its last."""
    return span.start // WORD * WORD, -(-span.stop // WORD)


def _misfits(span: range, in_features: int) -> bool:
    """Whether a span does not begin and end with words: its codes must move to other bits."""
    return bool(span.start % WORD or (span.stop % WORD and span.stop != in_features))


def _grouping(g: int, in_features: int, span: range) -> tuple[int, slice | list[int]]:
    """The group size of a part, and the groups of the whole that its own have their scales of."""
    length = group_length(g, in_features)
    first, last = span.start // length, (span.stop - 1) // length
    if first == last:
        return -1, slice(first, first + 1)
    if span.start % length == 0:
        return g, slice(first, last + 1)
    finer = math.gcd(length, span.start)
    if finer < _LEAST:
        raise LutlabError(
            f"columns from {span.start} on, of groups of {length}, cannot be cut out: groups of {finer} would be "
            f"needed, and they have at least {_LEAST} weights; cut at a multiple of {_LEAST}"
        )
    return finer, [at // length for at in range(span.start, span.stop, finer)]
