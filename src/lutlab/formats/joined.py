"""Packed weights [N_1, K], [N_2, K], ... as one, whose rows are theirs, one below the other: the inverse of cut.rows.

Groups run along K, so that nothing of a row changes: dequantized, the rows are the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lutlab.errors import LutlabError
from lutlab.formats import code_words
from lutlab.formats.bcq import PackedBCQ
from lutlab.formats.contract import Format
from lutlab.formats.uniform import PackedUniform
from lutlab.lazy import torch


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
        if first.order is not None and not torch.equal(first.order, other.order):
            raise LutlabError("weights whose columns are in different orders cannot be joined")
    shape = (sum(part.shape[0] for part in parts), first.shape[1])

    def rows(name: str, dim: int = 0) -> torch.Tensor:
        return torch.cat([part.buffers[name] for part in parts], dim)

    if isinstance(first, PackedBCQ):
        offset = None if first.offset is None else rows("offset")
        held = {"planes": rows("planes", 1), "alpha": rows("alpha", 1), "offset": offset}
        return replace(first, shape=shape, **held)
    zero = torch.cat([part.zero_point for part in parts])
    if first.qzero.ndim == 1:
        zero = code_words.pack_stream(zero, first.bits)
    return replace(first, shape=shape, qweight=rows("qweight"), scale=rows("scale"), qzero=zero)
