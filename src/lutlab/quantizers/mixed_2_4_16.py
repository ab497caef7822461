"""2/4/16 bits in a weight matrix: sensitive groups of input channels at 4 bits, the rest at 2, outliers in float16.

Li et al., "Fast and Efficient 2-bit LLM Inference on GPU: 2/4/16-bit in a Weight Matrix with Asynchronous
Dequantization" (ICCAD 2024), sections 3 and 4. q is the mean width of codes: a share (q - 2) / 2 of the groups has 4
bits, the same for all output channels, so that the paper's 25 % is q=2.5, its 10 % q=2.2, and q=2 has none. Of G groups
that share is rounded down; at 25 % it is one in each block of four (formats/mixed_blocks.py).

    sensitivity of group i (Eq. 9)      S_i = sum over its columns j and all rows of w^2 / [H^-1]_j^2

    cholesky    H^-1 enters as its upper Cholesky factor, as in the code of SparseGPT: D_j w^2, D of compensation.py.
                The reading under which Eq. 9 works; most of what it picks is what the sweep rounds last
    inverse     the diagonal of H^-1, squared: the letters of Eq. 9
    diagonal    H_jj w^2                        range    the squared range of a group, summed over rows; no H
    random      drawn with `seed`               last     the last groups of the row: control for the place in the sweep

random with wide_last=true is the other control of position: groups without merit, rounded last.
`neighbours` takes one group of every four neighbours at 25 %, so that a kernel reads x in order.

W [N, K], g -> MixedTensor; mixed.py has the sweep and its options.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from lutlab.base.errors import LutlabError
from lutlab.base.groups import Bits
from lutlab.base.lazy import torch
from lutlab.base.limits import a_seed
from lutlab.base.registry import register
from lutlab.quantizers.compensation import Factored
from lutlab.quantizers.mixed import Mixed
from lutlab.quantizers.mixed_books import NARROW, WIDE

_BLOCK = 4  # groups, of which one is wide at 25 %
_QUARTER = NARROW + (WIDE - NARROW) / _BLOCK  # the q of that


@register("method", "mixed_2_4_16")
@dataclass(frozen=True)
class Mixed2416(Mixed):
    """Options beside those of mixed.py; the module says what they change.

    Attributes:
        sensitivity: rule that chooses the groups with 4 bits.
        neighbours: true: at 25 % of wide groups one of every four neighbours is wide.
        seed: seed of the draw of sensitivity=random.
    """

    version: ClassVar[int] = 1

    sensitivity: Literal["cholesky", "inverse", "diagonal", "range", "random", "last"] = "cholesky"
    neighbours: bool = False
    seed: Annotated[int, a_seed] = 0

    def choose(self, weight: torch.Tensor, q: Bits, g: int, inputs: Factored) -> torch.Tensor:
        """4 bits for the most sensitive groups, 2 for the others.

        Raises:
            LutlabError: q is not 2.5 with neighbours.
        """
        groups = weight.shape[1] // g
        if self.neighbours and q != _QUARTER:
            raise LutlabError(
                f"neighbours=true is one group of four at 4 bits: give q=2.5, not {q}"
            )
        sensitivity = self.sensitivities(weight, g, inputs)
        _, count = self.count(groups, q)
        if self.neighbours:
            blocks = sensitivity.split(_BLOCK)
            chosen = [_BLOCK * at + int(some.argmax()) for at, some in enumerate(blocks)]
        else:
            chosen = torch.sort(sensitivity, descending=True, stable=True).indices[:count].tolist()
        widths = torch.full((groups,), NARROW, dtype=torch.uint8, device=weight.device)
        widths[chosen] = WIDE
        return widths

    def count(self, groups: int, q: Bits) -> tuple[int, int]:
        """None of 3 bits, and a share (q - 2) / 2 of 4 bits."""
        if q == _QUARTER:
            return 0, math.ceil(groups / _BLOCK)
        return 0, math.floor(groups * (q - NARROW) / (WIDE - NARROW) + 1e-9)

    def sensitivities(self, weight: torch.Tensor, g: int, inputs: Factored) -> torch.Tensor:
        """S [G] of a weight [N, G * g] float32."""
        groups = weight.shape[1] // g
        if self.sensitivity == "random":
            draw = torch.Generator().manual_seed(self.seed)
            return torch.rand(groups, generator=draw).to(weight.device)
        if self.sensitivity == "last":
            return torch.arange(groups, device=weight.device)
        if self.sensitivity == "range":
            grouped = weight.view(len(weight), groups, g)
            return (grouped.amax(dim=2) - grouped.amin(dim=2)).square().sum(dim=0)
        matters = {
            "cholesky": lambda: inputs.pivots,
            "diagonal": lambda: inputs.hessian.diagonal(),
            "inverse": lambda: _diagonal_of_inverse(inputs).pow(-2),
        }[self.sensitivity]()
        return (weight.square().sum(dim=0) * matters).view(groups, g).sum(dim=1)


def _diagonal_of_inverse(inputs: Factored) -> torch.Tensor:
    """[K] diagonal of the damped H's inverse: H = F^T D F with F of compensation.py, so F^-1 D^-1 F^-T."""
    unit = torch.eye(len(inputs.hessian), device=inputs.hessian.device)
    inverse = torch.linalg.solve_triangular(inputs.feedback, unit, upper=False, unitriangular=True)
    return (inverse.square() / inputs.pivots).sum(dim=1)
