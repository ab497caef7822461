"""Options of methods that compensate errors, column by column (compensation.py says what they change)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from lutlab.errors import LutlabError
from lutlab.lazy import torch
from lutlab.limits import Count
from lutlab.quantizers.compensation import Factored, factor
from lutlab.quantizers.contract import Calibrated
from lutlab.tensors import CalibStats


@dataclass(frozen=True)
class Compensating(Calibrated):
    """Options of every method that compensates errors, whatever the order of its columns.

    Attributes:
        damp: share of the mean diagonal of H that is added to its diagonal.
        block_size: columns after which all later ones are brought up to date, at most; speed only.
        inputs: model whose activations H is of (compress/driver.py).
        true_sequential: whether a layer sees those before it in the same block quantized too; needs inputs=quantized.
        target: what a layer comes near to: its own weight; its output in the full-precision
            model; that, and what the residual stream lacks of it. The latter two need inputs=quantized and
            true_sequential (compress/target.py).
    """

    damp: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.01
    block_size: Count = 128
    inputs: Literal["full", "quantized"] = "quantized"
    true_sequential: bool = False
    target: Literal["weights", "outputs", "stream"] = "weights"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.true_sequential and self.inputs == "full":
            raise LutlabError(
                "true_sequential follows the layers quantized so far, inputs=full none: use inputs=quantized"
            )
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
        hessian: whether every token counts the same in H, or by the squared gradient of the end
            loss, for each group of outputs on its own (compress/gradients.py); needs inputs=quantized.
        output_groups: number of groups of outputs that have an H of their own under hessian=gradients.
    """

    act_order: bool = False
    static_groups: bool = False
    hessian: Literal["inputs", "gradients"] = "inputs"
    output_groups: Count = 4

    def __post_init__(self) -> None:
        super().__post_init__()
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
