"""Widths in which linear layers are stored: q and g of the model, of its kind of sub-layer, or of the layer alone.

skip over layers, which are patterns of names, over kinds of sub-layer (LUT-GEMM Appendix A.2, nuQmm section V.A) over
the model's q, g
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from lutlab.base.errors import LutlabError, nearest
from lutlab.base.groups import Bits, Width, whole
from lutlab.base.specs import LayerWidth, Sublayer
from lutlab.quantizers.contract import Method


def widths(
    kinds: Mapping[str, str],
    q: Bits,
    g: int,
    sublayers: Collection[Sublayer] = (),
    skip: Collection[str] = (),
    layers: Collection[LayerWidth] = (),
) -> dict[str, Width | None]:
    """Layer name -> (q, g), None where it stays in full precision.

    Args:
        kinds: layer name -> kind of sub-layer, as models.families.kinds gives it.
        q: bits of every layer whose kind is not in `sublayers`.
        g: its group size.
        sublayers: kinds of sub-layer with widths of their own.
        skip: patterns (fnmatch) of layer names that stay in full precision.
        layers: patterns of layer names with widths of their own; where several fit, the last one counts.

    Raises:
        LutlabError: a kind or a pattern that fits no layer.
    """
    known = sorted(set(kinds.values()))
    by_kind = {}
    for sublayer in sublayers:
        if sublayer.kind not in known:
            raise LutlabError(
                f"no sub-layers of kind '{sublayer.kind}': {nearest(sublayer.kind, known)}"
            )
        by_kind[sublayer.kind] = (sublayer.q, sublayer.g)
    chosen: dict[str, Width | None]
    chosen = {name: by_kind.get(kind, (q, g)) for name, kind in kinds.items()}
    for layer in layers:
        chosen |= dict.fromkeys(_fitting("layers", layer.pattern, kinds), (layer.q, layer.g))
    for pattern in skip:
        chosen |= dict.fromkeys(_fitting("skip", pattern, kinds))
    return chosen


def layer_widths(by_pattern: Mapping[str, Sequence[Any]], method: Method) -> tuple[LayerWidth, ...]:
    """Widths by patterns of layer names, in their order.

    Args:
        by_pattern: `{"*.layers.0.*": (4, 128)}`.
        method: the method, which has the range of its widths.

    Raises:
        LutlabError: a width that is not (q, g), or one of them is out of range.
    """
    for pattern, width in by_pattern.items():
        if not isinstance(width, list | tuple) or len(width) != 2:
            raise LutlabError(
                f"layers gives '{pattern}' the width {width!r}: give two numbers, q and g, as "
                '"layers={*.layers.0.*: [4, 128]}" or layers={"*.layers.0.*": (4, 128)} in Python'
            )
    return tuple(
        LayerWidth(pattern, *method.check_width(whole(q) if isinstance(q, float) else q, g))
        for pattern, (q, g) in by_pattern.items()
    )


def _fitting(setting: str, pattern: str, names: Collection[str]) -> list[str]:
    """The layer names that a pattern of a setting fits; LutlabError where there is none."""
    if fitting := [name for name in names if fnmatchcase(name, pattern)]:
        return fitting
    raise LutlabError(
        f"{setting} pattern '{pattern}' fits no layer; layers are named like {next(iter(names))}"
    )
