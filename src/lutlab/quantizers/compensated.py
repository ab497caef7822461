"""Options of methods that compensate errors, column by column (compensation.py says what they change)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from lutlab.errors import LutlabError, nearest
from lutlab.lazy import torch
from lutlab.quantizers.compensation import Factored, factor
from lutlab.quantizers.contract import Calibrated
from lutlab.tensors import CalibStats

INPUTS = ("quantized", "full")
TARGETS = ("weights", "outputs", "stream")
HESSIANS = ("inputs", "gradients")


@dataclass(frozen=True)
class Compensating(Calibrated):
    """Options of every method that compensates errors, whatever the order of its columns.

    Attributes:
        damp: share of the mean diagonal of H that is added to its diagonal.
        block_size: columns after which all later ones are brought up to date, at most; speed only.
        inputs: full | quantized: model whose activations H is of (compress/driver.py).
        true_sequential: whether a layer sees those before it in the same block quantized too; needs inputs=quantized.
        target: weights | outputs | stream: what a layer comes near to: its own weight; its output in the full-precision
            model; that, and what the residual stream lacks of it. The latter two need inputs=quantized and
            true_sequential (compress/target.py).
    """

    damp: float = 0.01
    block_size: int = 128
    inputs: str = "quantized"
    true_sequential: bool = False
    target: str = "weights"

    def __post_init__(self) -> None:
        if isinstance(self.damp, bool) or not isinstance(self.damp, (int, float)):
            raise LutlabError(f"damp={self.damp!r} is not a number: 0.01 is the paper's")
        if not (math.isfinite(self.damp) and self.damp >= 0):
            raise LutlabError(f"damp={self.damp!r}: give a share of the mean diagonal, 0 or more")
        if (
            isinstance(self.block_size, bool)
            or not isinstance(self.block_size, int)
            or self.block_size < 1
        ):
            raise LutlabError(f"block_size={self.block_size!r}: give an integer of at least 1")
        refuse_other_than_bool(self, "true_sequential")
        if self.inputs not in INPUTS:
            raise LutlabError(f"unknown inputs '{self.inputs}': {nearest(self.inputs, INPUTS)}")
        if self.true_sequential and self.inputs == "full":
            raise LutlabError(
                "true_sequential follows the layers quantized so far, inputs=full none: use inputs=quantized"
            )
        if self.target not in TARGETS:
            raise LutlabError(f"unknown target '{self.target}': {nearest(self.target, TARGETS)}")
        if self.target == "weights":
            return
        if self.inputs == "full":
            raise LutlabError(
                f"target={self.target} makes up for errors of the layers before, which inputs=full has none of: use "
                "inputs=quantized true_sequential=true"
            )
        if not self.true_sequential:
            raise LutlabError(
                f"target={self.target} makes up for the errors of every layer before, those of the same block among "
                "them: give true_sequential=true"
            )


@dataclass(frozen=True)
class Compensated(Compensating):
    """Options of GPTQ and what is built like it: groups of equal width.

    Attributes:
        act_order: columns in the order of falling diagonal of H.
        static_groups: groups of neighbouring columns, whose grids are made before the first column is rounded.
        hessian: inputs | gradients: whether every token counts the same in H, or by the squared gradient of the end
            loss, for each group of outputs on its own (compress/gradients.py); needs inputs=quantized.
        output_groups: number of groups of outputs that have an H of their own under hessian=gradients.
    """

    act_order: bool = False
    static_groups: bool = False
    hessian: str = "inputs"
    output_groups: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_other_than_bool(self, "act_order", "static_groups")
        if self.hessian not in HESSIANS:
            raise LutlabError(
                f"unknown hessian '{self.hessian}': {nearest(self.hessian, HESSIANS)}"
            )
        groups = self.output_groups
        if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1:
            raise LutlabError(
                f"output_groups={groups!r}: give the groups of outputs that have an H of their own, at least 1"
            )
        if self.hessian == "inputs":
            return
        if self.inputs == "full":
            raise LutlabError(
                "hessian=gradients weights what the layers quantized so far are seen with: use inputs=quantized"
            )
        if self.act_order:
            raise LutlabError(
                "hessian=gradients gives each group of outputs an H, and act_order the columns of a layer one order: "
                "drop one of them"
            )

    def prepare(self, stats: CalibStats) -> Factored:
        """Factor H, once for all layers that share an input, and for every q and g.

        Raises:
            LutlabError: H is not finite or has a negative diagonal.
        """
        if not self.act_order:
            return factor(stats.hessian, self.damp)
        # A stable sort leaves channels of equal diagonal in their own order on every machine.
        falling = torch.sort(stats.hessian.diagonal(), descending=True, stable=True)
        return factor(stats.hessian, self.damp, falling.indices)


def refuse_other_than_bool(options: Calibrated, *names: str) -> None:
    """Raise LutlabError unless these fields are true or false."""
    for name in names:
        if not isinstance(getattr(options, name), bool):
            raise LutlabError(f"{name}={getattr(options, name)!r}: give true or false")


def check_sweeps(sweeps: object) -> None:
    """Raise LutlabError unless it is a number of sweeps of the refinement: an integer, 0 or more."""
    if isinstance(sweeps, bool) or not isinstance(sweeps, int) or sweeps < 0:
        raise LutlabError(
            f"sweeps={sweeps!r}: give an integer of at least 0; 2 are most of what there is to gain"
        )
