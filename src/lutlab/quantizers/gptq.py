"""GPTQ (OPTQ): the uniform grid of RTN, with errors made up for by the columns still to be rounded.

    code_j = clamp(round(W'_j / s) + zero, 0, 2^q - 1),  W'_j = W_j + sum_{i<j} E_i A_ij,  E_i = W_i - s (code_i - zero)

Frantar et al., "OPTQ: Accurate Quantization for Generative Pre-trained Transformers" (ICLR 2023), section 3.
compensation.py derives A and says what the options change; grid.py says how s and zero follow from a group of W'.

W [N, K] -> codes [N, K] uint8, scale [N, G], zero_point [N, G] int16; with act_order also order [K] int32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from lutlab.groups import group_count
from lutlab.quantizers.compensated import Compensated
from lutlab.quantizers.compensation import Factored, checked, compensate
from lutlab.quantizers.grid import Grid
from lutlab.registry import register
from lutlab.tensors import UniformTensor

if TYPE_CHECKING:
    import torch


@register("method", "gptq")
@dataclass(frozen=True)
class GPTQ(Compensated):
    """Options of the grid; the others are in compensated.py.

    Attributes:
        variant: gptq | awq, the rule by which a grid is made (grid.py).
        scale_dtype: fp16 | fp32 (grid.py).
    """

    version: ClassVar[int] = 1
    format: ClassVar[str] = "uniform"

    variant: str = "gptq"
    scale_dtype: str = "fp16"

    def __post_init__(self) -> None:
        super().__post_init__()
        Grid(self.variant, self.scale_dtype)  # refuses unknown options

    def quantize(self, weight: torch.Tensor, q: int, g: int, prepared: Factored) -> UniformTensor:
        """[N, K] float and the factored inputs -> UniformTensor with G = ceil(K / g) groups a row.

        Raises:
            LutlabError: q or g out of range; a weight is inf or nan; a scale is beyond scale_dtype's range.
        """
        weight = checked(weight, q, g)
        grids = _Grids(weight, q, g, Grid(self.variant, self.scale_dtype))
        codes, order = compensate(weight, g, prepared, grids, self.block_size, self.static_groups)
        return UniformTensor(codes, *grids.stored(), q, g, order)


class _Grids:
    """The grids of all groups: step, lowest and highest level, [G, N] float32. A level is code - zero."""

    def __init__(self, weight: torch.Tensor, q: int, g: int, grid: Grid) -> None:
        rows, in_features = weight.shape
        self.q, self.grid = q, grid
        self.step = weight.new_empty(group_count(g, in_features), rows)
        self.lowest, self.highest = self.step.clone(), self.step.clone()

    def fit(self, group: int, values: torch.Tensor) -> None:
        step, zero = self.grid.fit(values.amin(dim=0), values.amax(dim=0), self.q)
        self.step[group] = step
        self.lowest[group] = -zero
        self.highest[group] = 2**self.q - 1 - zero

    def round(self, group: int, column: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        step = self.step[group]
        level = (column / step).round_().clamp_(self.lowest[group], self.highest[group])
        return level, level * step

    def codes(self, levels: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        import torch

        return (levels - self.lowest.index_select(0, groups)).to(torch.uint8)

    def stored(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Scale [N, G] and zero point [N, G] int16."""
        import torch

        scale = self.step.t().to(self.grid.dtype).contiguous()
        return scale, -self.lowest.t().to(torch.int16).contiguous()
