"""GPTQ to BCQ: errors are made up for as in GPTQ, and each group takes the nearest codewords of its own binary codes.

    W_hat_j = nearest of { sum_b +-alpha_b (+ z) } to W'_j,   alpha (and z) of a group fitted on its W' when it begins

LUT-GEMM section 5.1 quantizes with GPTQ and converts the uniform codes to BCQ (Eq. 5, method gptq here). Fitting the
codes non-uniformly inside GPTQ stores fewer bits and, up to q = 3 and in groups, errs less at outputs; a code book of a
whole row (g = -1) is fitted before any error is passed on, and at q = 2 W' outgrows it. compensation.py derives W' and
says what the options of GPTQ change; from_grid.py is the solver.

With offset by default: it costs 16 bits a group, and buys more than those bits do as smaller groups.

W [N, K] -> codes [N, K] uint8, alpha [q, N, G], z [N, G] or None; with act_order also order [K] int32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lutlab.errors import LutlabError
from lutlab.groups import group_count
from lutlab.lazy import torch
from lutlab.limits import Count
from lutlab.quantizers.codewords import Codewords
from lutlab.quantizers.compensated import Compensated
from lutlab.quantizers.compensation import Factored, checked, compensate
from lutlab.quantizers.from_grid import solve_from_grid
from lutlab.quantizers.grid import ScaleDtype
from lutlab.registry import register
from lutlab.tensors import BCQTensor

FIT_FLOATS = 2**22  # weights of rows that are fitted at once: the solver holds some 20 bytes each


@register("method", "gptq_bcq")
@dataclass(frozen=True)
class GPTQBCQ(Compensated):
    """Options of the binary codes; the others are in compensated.py.

    Attributes:
        offset: fit z too.
        rounds: most rounds of the solver.
        alpha_dtype: dtype of alpha and z.
    """

    version: ClassVar[int] = 1
    format: ClassVar[str] = "bcq"

    offset: bool = True
    rounds: Count = 5
    alpha_dtype: ScaleDtype = "fp16"

    def quantize(self, weight: torch.Tensor, q: int, g: int, prepared: Factored) -> BCQTensor:
        """[N, K] float and the factored inputs -> BCQTensor with G = ceil(K / g) groups a row.

        Raises:
            LutlabError: q or g out of range; a weight is inf or nan; a coefficient is beyond alpha_dtype's range.
        """
        weight = checked(weight, q, g)
        books = _Codewords(weight, q, g, self)
        codes, order = compensate(weight, g, prepared, books, self.block_size, self.static_groups)
        return BCQTensor(codes, books.alpha, books.offset, q, g, order)


class _Codewords(Codewords):
    """Codewords of a weight [N, K], fitted group by group."""

    def __init__(self, weight: torch.Tensor, q: int, g: int, options: GPTQBCQ) -> None:
        rows, in_features = weight.shape
        groups = group_count(g, in_features)
        dtype = torch.float16 if options.alpha_dtype == "fp16" else torch.float32
        alpha = weight.new_empty(q, rows, groups, dtype=dtype)
        offset = weight.new_empty(rows, groups, dtype=dtype) if options.offset else None
        super().__init__(alpha, offset)
        self.options = options

    def fit(self, group: int, values: torch.Tensor) -> None:
        options = self.options
        parts = [
            solve_from_grid(
                rows.t().contiguous(),
                self.q,
                rounds=options.rounds,
                offset=options.offset,
                dtype=self.alpha.dtype,
            )
            for rows in values.split(max(1, FIT_FLOATS // len(values)), dim=1)
        ]
        alpha = torch.cat([part[0] for part in parts], dim=1)
        offset = torch.cat([part[1] for part in parts]) if options.offset else None
        for coefficient in (alpha,) if offset is None else (alpha, offset):
            if not torch.isfinite(coefficient).all():
                raise LutlabError(
                    f"weights up to {float(values.abs().max()):.3g} need coefficients beyond "
                    f"{self.options.alpha_dtype}: use alpha_dtype=fp32 or rescale the weights"
                )
        self.take(group, alpha, offset)
