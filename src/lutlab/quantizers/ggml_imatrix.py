"""llama.cpp's types with an importance matrix: errors of column k count by E[x_k^2], as llama-imatrix measures it.

The inputs are those of the full-precision model on the calibration text. The rest is ggml.py, whose version and
options these are; of types that do not look at it (Q8_0) the blocks are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import torch
from lutlab.base.registry import register
from lutlab.base.tensors import CalibStats
from lutlab.quantizers.contract import Calibrated
from lutlab.quantizers.ggml import GGML


@register("method", "ggml_imatrix")
@dataclass(frozen=True)
class GGMLImatrix(GGML, Calibrated):
    """Options of ggml.py."""

    inputs = "full"

    def prepare(self, stats: CalibStats) -> torch.Tensor:
        """Mean squares of the inputs, [K] float32."""
        squares = stats.hessian.diagonal()
        if not torch.isfinite(squares).all():
            raise LutlabError("calibration: mean squares of inputs are inf or nan: check the text")
        return squares
