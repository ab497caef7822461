"""A checkpoint's own weights: a model that is quantized already, by lutlab or another project.

Nothing is quantized. checkpoint/stored.py reads the folder; q and g of a row are the checkpoint's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NoReturn

from lutlab.base.errors import LutlabError
from lutlab.base.groups import Bits
from lutlab.base.lazy import torch
from lutlab.base.registry import register
from lutlab.quantizers.contract import Method

STORED = "stored"


@register("method", STORED)
@dataclass(frozen=True)
class Stored(Method):
    """Weights as they lie in model=folder; format: of all that others quantized."""

    version: ClassVar[int] = 1
    format: ClassVar[str] = "uniform"
    quantizes: ClassVar[bool] = False

    def quantize(self, weight: torch.Tensor, q: Bits, g: int) -> NoReturn:
        """Nothing: there is no weight to quantize.

        Raises:
            LutlabError: every call: the weights are quantized already.
        """
        raise LutlabError(
            "method=stored measures the weights of a quantized folder as they are, and quantizes none: load it with "
            "lutlab.load(folder), or on the command line with method=stored model=folder model.id=<folder>"
        )
