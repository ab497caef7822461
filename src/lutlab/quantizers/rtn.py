"""Round-to-nearest (RTN): a uniform grid from the smallest to the largest weight of a group.

    code = clamp(round(w / s) + zero, 0, 2^q - 1),  w ~ s * (code - zero)      LUT-GEMM Eq. 3 with z_hat = -s * zero

grid.py says how s and zero follow from a group, and what its two variants are.

W [N, K] -> codes [N, K] uint8, scale [N, G], zero_point [N, G] int16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lutlab.base.groups import Bits, blocks, check_bits, check_group_size, group_count
from lutlab.base.lazy import torch
from lutlab.base.registry import register
from lutlab.base.tensors import UniformTensor
from lutlab.quantizers.contract import Method, finite
from lutlab.quantizers.grid import Grid, Rule, ScaleDtype


@register("method", "rtn")
@dataclass(frozen=True)
class RTN(Method):
    """Options of the grid; grid.py says what they change.

    Attributes:
        variant: rule that makes a grid from a group's range.
        scale_dtype: dtype of stored scales.
        symmetric: true: the zero point of every group is 2^(q-1), which llama.cpp's Q4_0, Q5_0 and Q8_0 hold exactly.
    """

    version: ClassVar[int] = 1
    format: ClassVar[str] = "uniform"

    variant: Rule = "gptq"
    scale_dtype: ScaleDtype = "fp16"
    symmetric: bool = False

    def quantize(self, weight: torch.Tensor, q: Bits, g: int) -> UniformTensor:
        """[N, K] float -> UniformTensor with G = ceil(K / g) groups a row; computed in float32."""
        q, g = check_bits(q), check_group_size(g)
        weight = finite(weight, "method rtn takes its range from every weight")
        grid = Grid(self.variant, self.scale_dtype, self.symmetric)
        rows, in_features = weight.shape
        groups = group_count(g, in_features)
        codes = torch.empty(rows, in_features, dtype=torch.uint8, device=weight.device)
        scale = torch.empty(rows, groups, dtype=grid.dtype, device=weight.device)
        zero_point = torch.empty(rows, groups, dtype=torch.int16, device=weight.device)
        for columns, group_columns, block in blocks(weight, g):
            step, zero = grid.fit(block.amin(dim=2), block.amax(dim=2), q)
            level = torch.div(block, step.unsqueeze(2)).round_().add_(zero.unsqueeze(2))
            codes[:, columns] = level.clamp_(0, 2**q - 1).flatten(1).to(torch.uint8)
            scale[:, group_columns] = step.to(grid.dtype)
            zero_point[:, group_columns] = zero.to(torch.int16)
        return UniformTensor(codes, scale, zero_point, q, g)
