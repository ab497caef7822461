"""Widths in which linear layers are stored: q and g of the model, of its kind of sub-layer, or of the layer alone.

one layer's patterns (skip) over kinds of sub-layer (LUT-GEMM Appendix A.2, nuQmm section V.A) over the model's q, g
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase

from lutlab.errors import LutlabError, nearest
from lutlab.groups import Bits, Width
from lutlab.specs import Sublayer


def widths(
    kinds: Mapping[str, str],
    q: Bits,
    g: int,
    sublayers: Collection[Sublayer] = (),
    skip: Collection[str] = (),
) -> dict[str, Width | None]:
    """Layer name -> (q, g), None where it stays in full precision.

    Args:
        kinds: layer name -> kind of sub-layer, as models.families.kinds gives it.
        q: bits of every layer whose kind is not in `sublayers`.
        g: its group size.
        sublayers: kinds of sub-layer with widths of their own.
        skip: patterns (fnmatch) of layer names that stay in full precision.

    Raises:
        LutlabError: a kind or a pattern that fits no layer.
    """
    known = sorted(set(kinds.values()))
    own = {}
    for sublayer in sublayers:
        if sublayer.kind not in known:
            raise LutlabError(
                f"no sub-layers of kind '{sublayer.kind}': {nearest(sublayer.kind, known)}"
            )
        own[sublayer.kind] = (sublayer.q, sublayer.g)
    for pattern in skip:
        if not any(fnmatchcase(name, pattern) for name in kinds):
            raise LutlabError(
                f"skip pattern '{pattern}' fits no layer; layers are named like {next(iter(kinds))}"
            )
    return {
        name: None if any(fnmatchcase(name, pattern) for pattern in skip) else own.get(kind, (q, g))
        for name, kind in kinds.items()
    }
