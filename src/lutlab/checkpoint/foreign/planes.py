"""Bit planes of others, BPDQ and AnyBCQ: binary codes with an offset, as the format bcq holds them.

    W[n, k] = bias[k // g, n] + sum_b alpha[k // g, b, n] * B_b[n, k]

Plane b of row n is words of 32 bits: bit i of word t is input channel 32 t + i. Neither layout reorders channels.

    BPDQ      B_b in {0, 1}
    B         [K / 32, q, N] int32
    c         [G, q + 1, N] float16 | bfloat16 | float32: alpha of the q planes, then bias

    AnyBCQ    B_b in {-1, +1}, a set bit is +1; planes are nested: q of p are read, the first q
    qweight   [K / 32, p, N] int32
    alpha_<q> [G, q, N], beta_<q> [G, N] of the same dtypes, for each q of seed_precision .. parent_precision, p
    q_bias    [G, N], which nothing fills and nothing reads

BPDQ is GPTQModel with a patch; its config.json says quant_method gptq or bpdq, and checkpoint_format (or format) bpdq.
`bits` there is the width of the grid where the search starts; q is `meta.bpdq.msbits`. AnyBCQ's config.json has no
quantization_config, but {"anybcq": {"seed_precision", "parent_precision", "group_size", …}}. parent_precision is read,
the largest; in a copy of the folder whose config.json names a smaller one, that.

{0, 1} becomes {-1, +1} with alpha / 2 and bias + sum_b alpha_b / 2, each in the narrowest dtype that holds it. They are
made and added in float64, which is exact for float16, and for bfloat16 and float32 where coefficients of a group are
within 2^40 and 2^24 of each other. So a weight is the equation above, rounded once to float32. The projects' kernels
round more: BPDQ's each weight to bfloat16 (one version adds in float16 before), AnyBCQ's every sum to float16.

As github.com/KingdalfGoodman/BPDQ, 2e9a47f, writes and reads it (bpdq.patch, bpdq_torch.py), and AnyBCQ in a copy of
NAVER's repository, github.com/stevehenny/anybcq, 8eaac90 (AnyBCQLinear.py, packer.py, swap_linear.py, run_clm.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import torch
from lutlab.base.tensors import BCQTensor
from lutlab.checkpoint.foreign.layout import Layout, Numbers, Shapes, Size, Tensors, Width
from lutlab.formats.code_words import WORD, unpack_words
from lutlab.models.files import check_finite

MOST = 8  # planes of a weight


class BPDQLayout(Layout):
    """Layout of one checkpoint of BPDQ."""

    mark = "B"
    needed = ("B", "c")
    tensor = BCQTensor

    def bits_of(self, shapes: Shapes, size: Size) -> int:
        """The number of planes in B, one of those that the config states."""
        rows, columns = size
        q = shapes["B"][1] if len(shapes["B"]) == 3 else 0
        stated = self.bits or range(1, MOST + 1)
        fits = shapes["B"] == (columns // WORD, q, rows) and columns % WORD == 0
        if not fits or q not in stated or shapes["c"][1:] != (q + 1, rows):
            raise LutlabError(
                f"B of {list(shapes['B'])} and c of {list(shapes['c'])} for [N, K] = {[rows, columns]} are not "
                f"[K / {WORD}, q, N] and [G, q + 1, N] with q of {', '.join(map(str, stated))} planes (msbits of "
                f"config.json, or 1 to {MOST}): the checkpoint is damaged, or belongs to another config"
            )
        return q

    def groups(self, shapes: Shapes) -> int:
        """By c, which has the coefficients."""
        return shapes["c"][0]

    def unpack(self, tensors: Tensors, size: Size, width: Width) -> Numbers:
        """As codes of {-1, +1}, whose alpha is half of that of {0, 1}, the other half in the offset."""
        c = _exact(self.floats(tensors, "c"), "c").permute(1, 2, 0)
        alpha = c[:-1] / 2
        offset = c[-1] + alpha.sum(0)
        codes = _codes(self.words(tensors, "B"), width[0], size)
        return codes, _narrowest(alpha), _narrowest(offset, torch.float64), None


class AnyBCQLayout(Layout):
    """Layout of one checkpoint of AnyBCQ, of which one precision is read.

    Args beside a Layout's:
        q: precision that is read.
    """

    mark = "qweight"
    unread = (
        "q_bias",
        *(f"{name}_{p}" for name in ("alpha", "beta") for p in range(1, MOST + 1)),
    )
    tensor = BCQTensor

    def __init__(self, q: int, sizes: tuple[int, ...] = ()) -> None:
        super().__init__((q,), sizes)
        self._q, self._alpha, self._beta = q, f"alpha_{q}", f"beta_{q}"
        self.needed = (self.mark, self._alpha, self._beta)

    def bits_of(self, shapes: Shapes, size: Size) -> int:
        """The precision that is read, of which there must be as many planes and alphas."""
        (rows, columns), q, alpha = size, self._q, shapes[self._alpha]
        planes = shapes[self.mark][1] if len(shapes[self.mark]) == 3 else 0
        fits = shapes[self.mark] == (columns // WORD, planes, rows) and columns % WORD == 0
        if not fits or planes < q or alpha[1:] != (q, rows):
            raise LutlabError(
                f"{self.mark} of {list(shapes[self.mark])} and {self._alpha} of {list(alpha)} for [N, K] = "
                f"{[rows, columns]} are not [K / {WORD}, planes, N] with at least {q} planes and [G, {q}, N], by "
                f"parent_precision={q} of config.json: the checkpoint is damaged, or belongs to another config"
            )
        return q

    def groups(self, shapes: Shapes) -> int:
        """By the alpha of the precision that is read."""
        return shapes[self._alpha][0]

    def unpack(self, tensors: Tensors, size: Size, width: Width) -> Numbers:
        """The first q planes, with the alpha and beta of that precision."""
        self.shaped(tensors, self._beta, len(tensors[self._alpha]), size[0])
        alpha = _exact(self.floats(tensors, self._alpha), self._alpha).permute(1, 2, 0)
        beta = _exact(self.floats(tensors, self._beta), self._beta).T
        codes = _codes(self.words(tensors, self.mark), width[0], size)
        return codes, _narrowest(alpha), _narrowest(beta), None


def _exact(coefficients: torch.Tensor, name: str) -> torch.Tensor:
    """Coefficients in float64. Raises LutlabError: they are not finite."""
    check_finite(coefficients, name)
    return coefficients.double()


def _narrowest(exact: torch.Tensor, *wider: torch.dtype) -> torch.Tensor:
    """Coefficients [..., N, G] float64 in the first of float16, float32 and `wider` that holds each.

    Raises:
        LutlabError: none does.
    """
    for dtype in (torch.float16, torch.float32, *wider):
        if torch.equal(exact.to(dtype).double(), exact):
            return exact.to(dtype)
    raise LutlabError(
        f"half of a coefficient below {torch.finfo(torch.float32).tiny:.2g} is no float32: set such coefficients to 0"
    )


def _codes(words: torch.Tensor, q: int, size: Size) -> torch.Tensor:
    """Words [K / 32, planes, N] int32 -> codes [N, K] uint8, bit b of plane b, of the first q planes."""
    codes = torch.zeros(size, dtype=torch.uint8)
    for b in range(q):
        codes |= unpack_words(words[:, b].T, 1, size[1]) << b
    return codes


def bpdq_layout(config: Mapping[str, Any]) -> BPDQLayout:
    """The layout of checkpoint_format bpdq.

    Raises:
        LutlabError: a number of planes that lutlab does not hold.
    """
    meta = config.get("meta")
    of_method = config.get("bpdq") or (meta.get("bpdq") if isinstance(meta, dict) else None)
    stated = of_method.get("msbits") if isinstance(of_method, dict) else None
    if stated is not None and not _is_width(stated):
        raise LutlabError(
            f"msbits={stated!r} of a BPDQ checkpoint is no number of planes that lutlab holds, 1 to {MOST}: give a "
            "checkpoint of such a number"
        )
    return BPDQLayout([stated] if stated else (), _sizes(config))


def anybcq_layout(config: Mapping[str, Any]) -> AnyBCQLayout:
    """The layout of a config.json with `anybcq`.

    Raises:
        LutlabError: its precisions are missing, or of a number of planes that lutlab does not hold.
    """
    seed, parent = config.get("seed_precision"), config.get("parent_precision")
    if not (_is_width(seed) and _is_width(parent) and seed <= parent):
        raise LutlabError(
            f"seed_precision={seed!r} and parent_precision={parent!r} of anybcq in config.json are no least and "
            f"largest number of planes, 1 to {MOST}: fetch config.json again"
        )
    return AnyBCQLayout(parent, tuple(_sizes(config)))


def _is_width(stated: Any) -> TypeGuard[int]:
    return isinstance(stated, int) and not isinstance(stated, bool) and 1 <= stated <= MOST


def _sizes(config: Mapping[str, Any]) -> list[int]:
    return [size for size in (config.get("group_size"),) if isinstance(size, int)]
