"""Hessian uniform: GPTQ's uniform codes with what is known to help them at 3 and 4 bits, and nothing of its own.

    method=hessian_uniform      method=gptq sweeps=3 true_sequential=true target=stream first_token=50 scale_bits=4
                                damp=1 sweep_damp=1

gptq keeps the defaults of its paper, for the tables that repeat papers. docs/methods.md has what each option is worth
on a real model. hessian_bcq is the same for binary codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lutlab.base.limits import CountFrom0
from lutlab.base.registry import register
from lutlab.quantizers.coefficient_grids import CodeBits
from lutlab.quantizers.compensation import Damp
from lutlab.quantizers.gptq import GPTQ


@register("method", "hessian_uniform")
@dataclass(frozen=True)
class HessianUniform(GPTQ):
    """Options of gptq.py and compensation.py, seven of them with other defaults."""

    version: ClassVar[int] = 2

    damp: Damp = 1.0
    true_sequential: bool = True
    target: Literal["weights", "outputs", "stream"] = "stream"
    first_token: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 50.0
    sweeps: CountFrom0 = 3
    sweep_damp: Damp = 1.0
    scale_bits: CodeBits = 4
