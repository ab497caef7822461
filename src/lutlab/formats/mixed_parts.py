"""Parts of a weight of mixed groups, before it is packed: bands of rows, and groups of columns (cut.py).

Second-order scales are of bands of rows and of groups, so a part begins and ends with them. Groups that are cut out of
memory-aligned blocks are in no blocks any more: which of three scale codes has how many bits went by its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lutlab.errors import LutlabError
from lutlab.lazy import torch
from lutlab.tensors import MixedTensor

_OF_GROUPS = ("zero_point", "scale_code", "scale_zero", "scale_step")


def rows(tensor: MixedTensor, spans: Sequence[range]) -> MixedTensor:
    """A tensor of some rows.

    Raises:
        LutlabError: a span does not begin or end with a band.
    """
    band, total = tensor.scale_group, len(tensor.codes)
    for span in spans:
        _check("rows", span, band, total)
    if sum(len(span) % band > 0 for span in spans[:-1]):
        raise _misfit("rows", spans[0], band)
    row = torch.cat([torch.arange(span.start, span.stop) for span in spans])
    bands = torch.cat([torch.arange(s.start // band, -(-s.stop // band)) for s in spans])
    device = tensor.codes.device
    row, bands = row.to(device), bands.to(device)
    found = {name: getattr(tensor, name)[row] for name in ("codes", "zero_point", "scale_code")}
    found |= {name: getattr(tensor, name)[bands] for name in ("scale_zero", "scale_step")}
    if tensor.row_scale is not None:
        found |= {"row_scale": tensor.row_scale[row], "row_zero": tensor.row_zero[row]}
    if tensor.outlier_count is not None:
        counts = tensor.outlier_count.long()
        first = counts.cumsum(0) - counts
        places = [torch.arange(int(first[n]), int(first[n] + counts[n])) for n in row.tolist()]
        at = torch.cat(places).to(device)
        found |= {
            "outlier_count": tensor.outlier_count[row],
            "outlier_column": tensor.outlier_column[at],
            "outlier_value": tensor.outlier_value[at],
        }
    return replace(tensor, **found)


def columns(tensor: MixedTensor, span: range) -> MixedTensor:
    """A tensor of some columns.

    Raises:
        LutlabError: the span does not begin or end with a group.
    """
    g = tensor.group_size
    _check("columns", span, g, tensor.codes.shape[1])
    groups = slice(span.start // g, -(-span.stop // g))
    found = {name: getattr(tensor, name)[:, groups] for name in _OF_GROUPS}
    found |= {"codes": tensor.codes[:, span.start : span.stop], "widths": tensor.widths[groups]}
    if tensor.outlier_count is not None:
        found |= _outliers(tensor, span)
    whole = len(found["widths"]) == len(tensor.widths)
    return replace(tensor, **found, aligned=tensor.aligned and whole)


def _outliers(tensor: MixedTensor, span: range) -> dict[str, torch.Tensor]:
    """Outliers of a span of columns."""
    column = tensor.outlier_column
    inside = (column >= span.start) & (column < span.stop)
    row = torch.arange(len(tensor.codes), device=column.device)
    row = row.repeat_interleave(tensor.outlier_count.long())[inside]
    return {
        "outlier_count": torch.bincount(row, minlength=len(tensor.codes)).int(),
        "outlier_column": column[inside] - span.start,
        "outlier_value": tensor.outlier_value[inside],
    }


def _check(what: str, span: range, unit: int, total: int) -> None:
    if span.start % unit or (span.stop % unit and span.stop != total):
        raise _misfit(what, span, unit)


def _misfit(what: str, span: range, unit: int) -> LutlabError:
    return LutlabError(
        f"{what} {span.start} to {span.stop} of a weight of mixed groups cannot be cut out: {unit} of them share "
        "scales of second order; take fewer ranks, or another method"
    )
