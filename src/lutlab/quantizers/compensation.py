"""Error compensation: a column is rounded after it has absorbed what the rounding of earlier columns did to outputs.

    minimise tr(E H E^T),  E = W - W_hat,  H = X^T X / M
    H = (I + A) D (I + A)^T, A strictly upper triangular:   tr(E H E^T) = sum_j D_j ||E_j + sum_{i<j} E_i A_ij||^2
    W'_j = W_j + sum_{i<j} E_i A_ij,  W_hat_j = nearest(W'_j):   every column pays D_j ||W'_j - W_hat_j||^2, no more

Frantar et al., "OPTQ" (GPTQ, ICLR 2023), section 3. Their Cholesky factor of H^-1 is D^-1/2 (I + A)^-1, so rounding
follows the same path (Chee et al., "QuIP", 2023, show it). Here one Cholesky factor of H itself, with rows and columns
in reverse, is all: no inverse, a quarter of the arithmetic. It is made on one thread: LAPACK's last bits, and codes by
them, go by the number of threads.

Their weights still to be rounded are at the optimum given the errors so far; W'_j is that only once its turn comes. A
group G that is about to begin is moved there by one small triangular solve, W_G + (W'_G - W_G) (I + A_GG)^-1.

    damp           times the mean of H's diagonal is added to the diagonal
    act_order      columns go by falling diagonal of H; groups are then of consecutive columns in this order
    static_groups  code books of groups of neighbouring channels, from W before any column is rounded; otherwise a
                   group's code book is fitted when its first column is reached, on weights that make up for every
                   error so far (the GPTQ repository: for those before the last multiple of 128 columns)

Columns that no input reaches (diagonal 0) count for nothing: they are set to 0 and rounded with the rest.

W [N, K] is worked on as [K, N], block by block. After a block one product reaches all columns after it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

from pydantic import Field

from lutlab.base.errors import LutlabError
from lutlab.base.groups import Bits, check_bits, check_group_size, group_length
from lutlab.base.lazy import torch
from lutlab.base.limits import Count
from lutlab.base.tensors import CalibStats
from lutlab.quantizers.contract import Calibrated, finite
from lutlab.quantizers.one_thread import one_thread

log = logging.getLogger(__name__)
Damp = Annotated[float, Field(ge=0, allow_inf_nan=False)]

# Where H is not positive definite in float32, damping is raised by this factor until it is, from at least FIRST_DAMP.
RAISE, FIRST_DAMP = 10.0, 1e-4
PASSED_ON = "an error is passed on to every weight of its row"  # why no weight may be inf


@dataclass(frozen=True)
class Factored:
    """H of one shared input, factored; column j is input channel order[j].

    feedback: [K, K] float32, (I + A)^T: row j weighs the errors of the columns before j; lower triangular.
    pivots: [K] float32, D: what a squared error of column j costs once later columns have made up for it.
    dead: [K] bool, by channel; damp: what was used, in means of the diagonal.
    hessian: [K, K] float32, H itself, by channel and not damped; no copy.
    """

    feedback: torch.Tensor
    pivots: torch.Tensor
    order: torch.Tensor
    dead: torch.Tensor
    damp: float
    hessian: torch.Tensor


def factor(hessian: torch.Tensor, damp: float, order: torch.Tensor | None = None) -> Factored:
    """[K, K] float32 -> (I + A)^T of the damped H, in the order [K] in which columns go; None: that of channels.

    Raises:
        LutlabError: H is not finite or has a negative diagonal.
    """
    diagonal = hessian.diagonal()
    if not torch.isfinite(hessian).all() or bool((diagonal < 0).any()):
        raise LutlabError(
            "the second moments of a layer's inputs are not finite or negative: activations overflow in this dtype; "
            "use dtype=float32 or other calibration text"
        )
    if order is None:
        order = torch.arange(len(hessian), device=hessian.device)
    dead, mean = diagonal == 0, float(diagonal.mean(dtype=torch.float64))
    back = order.flip(0)
    reverse = hessian.index_select(0, back).index_select(1, back)
    undamped = reverse.diagonal().masked_fill(dead[back], 1.0)
    while True:
        reverse.diagonal().copy_(undamped + damp * mean)
        with one_thread():
            lower, info = torch.linalg.cholesky_ex(reverse)
        if int(info) == 0 and bool(torch.isfinite(lower.diagonal()).all()):
            break
        raised = max(damp * RAISE, FIRST_DAMP)
        log.warning(
            "the second moments are not positive definite with damp=%g: raised to %g", damp, raised
        )
        damp = raised
    del reverse, undamped  # of the size of H: at K = 11008 half a gigabyte that the next copy needs
    roots = lower.diagonal().clone()
    feedback = lower.div_(roots).t().flip(0, 1)
    return Factored(feedback, roots.square().flip(0), order, dead, damp, hessian)


class CodeBooks(Protocol):
    """The code books of N rows, one a group: what a method brings along."""

    def fit(self, group: int, values: torch.Tensor) -> None:
        """Fit the books of a group on its weights [length, N]."""

    def round(self, group: int, column: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Level [N] of any type, and the nearest value [N] float32, of a column [N]."""

    def codes(self, levels: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
        """[columns, N] uint8 of levels [columns, N] that belong to groups [columns]."""


def checked(weight: torch.Tensor, q: Bits, g: int) -> tuple[torch.Tensor, int]:
    """Weight [N, K] as float32, and q, which is whole.

    Raises:
        LutlabError: q or g out of range; a weight is inf or nan.
    """
    q = check_bits(q)
    check_group_size(g)
    return finite(weight, PASSED_ON), q


def compensate(
    weight: torch.Tensor,
    g: int,
    factored: Factored,
    books: CodeBooks,
    block_size: int,
    static_groups: bool = False,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Round every column, in order.

    Args:
        weight: [N, K] finite float32.
        g: weights of a group; -1 = all of K.
        factored: factored Hessian of the inputs of this layer.
        books: code books, fitted here group by group.
        block_size: columns after which all later ones are brought up to date, at most; speed only.
        static_groups: whether every group gets its code book before any column is rounded.

    Returns:
        codes [N, K] uint8, and the channel of each of their columns, [K] int32, or None where column k is channel k.
    """
    in_features = weight.shape[1]
    length = group_length(g, in_features)
    order = factored.order
    channels = torch.arange(in_features, device=weight.device)
    if factored.dead.any():
        weight = weight.masked_fill(factored.dead, 0.0)
    # One group holds every channel, whatever their order, and nothing is rounded before it is fitted.
    up_front = static_groups or length == in_features
    if up_front:
        for group, first in enumerate(range(0, in_features, length)):
            books.fit(group, weight[:, first : first + length].t().contiguous())
    groups = torch.div(order if up_front else channels, length, rounding_mode="floor")
    sweep = _Sweep(weight, factored, books, groups, None if up_front else length)
    codes = sweep.run(block_size)
    if torch.equal(order, channels):
        return codes, None
    if up_front:
        return torch.empty_like(codes).index_copy_(1, order, codes), None
    return codes, order.to(torch.int32)


class Columns:
    """Columns of a matrix [K, N] rounded one after another, each after it has taken in the changes of those before it.

        current_j += sum_{i<j} feedback_ji change_i,  change_i = value_i before - value_i rounded

    A column is contiguous. A block of columns is halved again and again: the left half is rounded, one product brings
    its changes to the right half. So most of the arithmetic is in products, and not in operations on single columns.

    feedback: [K, K] float32, of which only what is below the diagonal is read.
    current: [K, N] float32, what a column is rounded from; columns: the same, one by one.
    changes: [K, N] float32, the value of a column before; once it is rounded, what its value lost.
    nearest: function from the number of a column and what it is rounded from, [N], to its level and nearest value [N].
    scale: [K, 1], factor of the rows of feedback; None: 1.
    levels: of the columns rounded so far.
    """

    def __init__(
        self,
        feedback: torch.Tensor,
        current: torch.Tensor,
        changes: torch.Tensor,
        nearest: Callable[[int, torch.Tensor], tuple[torch.Tensor, torch.Tensor]],
        scale: torch.Tensor | None = None,
    ) -> None:
        self.feedback, self.current, self.changes = feedback, current, changes
        self.nearest, self.scale = nearest, scale
        self.columns = current.unbind(0)
        self.levels: list[torch.Tensor] = []

    def halve(self, first: int, last: int) -> None:
        """Round columns first .. last-1, which have the changes of all columns before them."""
        if last - first == 1:
            level, value = self.nearest(first, self.columns[first])
            self.levels.append(level)
            change = self.changes[first]
            torch.sub(change, value, out=change)
            return
        middle = first + (last - first) // 2
        self.halve(first, middle)
        self.pass_on(first, middle, last)
        self.halve(middle, last)

    def pass_on(self, first: int, middle: int, last: int) -> None:
        """Bring the changes of columns first .. middle-1 to columns middle .. last-1."""
        if middle < last:
            weights = self.feedback[middle:last, first:middle]
            if self.scale is not None:
                weights = weights * self.scale[middle:last]  # only this much is wanted at once
            self.current[middle:last].addmm_(weights, self.changes[first:middle])


class _Sweep(Columns):
    """One pass over the columns of a weight. length: of the groups to fit on the way; None: all are fitted.

    `changes` is W where a column waits and E where it is rounded: nothing reads W of a rounded column again.
    """

    def __init__(
        self,
        weight: torch.Tensor,
        factored: Factored,
        books: CodeBooks,
        groups: torch.Tensor,
        length: int | None,
    ) -> None:
        original = weight.t().index_select(0, factored.order)  # W [K, N]
        self.books, self.length = books, length
        self.groups, self.group_of = groups, groups.tolist()
        super().__init__(factored.feedback, original.clone(), original, self._nearest)

    def run(self, block_size: int) -> torch.Tensor:
        """Codes [N, K] in the order of the columns."""
        in_features, rows = self.current.shape
        codes = torch.empty(rows, in_features, dtype=torch.uint8, device=self.current.device)
        for first, last in _blocks(in_features, self.length or 1, block_size):
            self._groups(first, last)
            self.pass_on(first, last, in_features)
            at = slice(first, last)
            codes[:, at] = self.books.codes(torch.stack(self.levels), self.groups[at]).t()
            self.levels.clear()
        return codes

    def _nearest(self, k: int, column: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.books.round(self.group_of[k], column)

    def _groups(self, first: int, last: int) -> None:
        """Round columns first .. last-1, which have the errors of all columns before them.

        Several groups are halved between two of them: a group is up to date when its book is fitted. Fits and the
        products between groups and blocks are large; the columns of a group are thousands of small operations.
        """
        if self.length and last - first > self.length:
            middle = first + self.length * max(1, (last - first) // self.length // 2)
            self._groups(first, middle)
            self.pass_on(first, middle, last)
            self._groups(middle, last)
            return
        if self.length and first % self.length == 0:
            at = slice(first, first + self.length)
            self.books.fit(self.group_of[first], self._optimum(at))
        with one_thread():
            self.halve(first, last)

    def _optimum(self, at: slice) -> torch.Tensor:
        """Weights [length, N] of a group, moved to where the errors of the columns before it are made up for best."""
        original = self.changes[at]
        moved = torch.linalg.solve_triangular(
            self.feedback[at, at],
            self.current[at] - original,
            upper=False,
            unitriangular=True,
        )
        return moved.add_(original)


def _blocks(in_features: int, length: int, block_size: int) -> Iterator[tuple[int, int]]:
    """Ranges of at most block_size columns that hold whole groups or lie within one."""
    span = max(length, block_size // length * length)
    for start in range(0, in_features, span):
        stop = min(start + span, in_features)
        for first in range(start, stop, block_size):
            yield first, min(first + block_size, stop)


# ---- options of the methods that compensate ----


@dataclass(frozen=True)
class Compensating(Calibrated):
    """Options of every method that compensates errors, whatever the order of its columns.

    Attributes:
        damp: damping: this share of the Hessian's mean diagonal is added to its diagonal, for a target too.
        block_size: largest number of columns processed before the remaining ones are updated; it affects speed only.
        inputs: model whose activations the Hessian H is computed from: as quantized so far, or in full precision.
        true_sequential: true: a layer sees the layers before it in its block quantized; needs inputs=quantized.
        target: goal that a layer is fitted to: its own weights; its output in the full-precision model; or that output
            and what the residual stream still lacks. The last two need inputs=quantized and true_sequential=true.
        first_token: weight of the first token of a calibration window in the Hessian of keys and values, that of every
            other token being 1; more than 1 needs inputs=quantized. Later tokens attend to the first one most.
    """

    damp: Damp = 0.01
    block_size: Count = 128
    inputs: Literal["full", "quantized"] = "quantized"
    true_sequential: bool = False
    target: Literal["weights", "outputs", "stream"] = "weights"
    first_token: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first_token > 1 and self.inputs == "full":
            raise LutlabError(
                f"first_token={self.first_token:g} weighs what the layers quantized so far are seen with: use "
                "inputs=quantized, or first_token=1"
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
        act_order: true: columns are rounded in the order of falling diagonal of the Hessian.
        static_groups: true: groups hold neighbouring columns, and their grids are made before the first column is
            rounded.
        hessian: weight of each token in the Hessian: inputs, equal; gradients, the squared gradient of the end loss,
            per group of outputs; that needs inputs=quantized.
        output_groups: number of groups of outputs with a Hessian of their own; read with hessian=gradients.
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
        """H, factored in the order in which columns go."""
        if not self.act_order:
            return factor(stats.metric, self.damp)
        # A stable sort leaves channels of equal diagonal in their own order on every machine.
        falling = torch.sort(stats.metric.diagonal(), descending=True, stable=True)
        return factor(stats.metric, self.damp, falling.indices)
