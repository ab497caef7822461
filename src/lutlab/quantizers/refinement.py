"""Refinement: a quantized weight moved, group by group, to where its outputs err less; never to where they err more.

    minimise tr(E H E^T),  E = W - W_hat,  W_hat = sum_p a_p B_p in a group     B_p [length] by the group's codes
    coefficients   (B^T H_gg B) step = B^T (H E)_g, rounded as stored; taken where the error falls with them
    codes          one column after another: W_hat_j = nearest(W_hat_j + (H E)_j / H_jj), with (H E) brought up to date

A sweep does both for every group, given everything else. Each is a step of coordinate descent on the one error of a
row, with the coefficients as they are stored; a row keeps a group as it was unless its error falls, as float32 finds
it. The sums behind a fall are of |E| |H| |E|, millions of times E H E^T where inputs are few and weights large: a row
that a sweep has lowered by next to nothing is looked at again in float64, and taken back if it rose.

Least squares in H and coordinate descent on codes are those of LNQ (Kim et al., "GuidedQuant", ICML 2025), there with a
free code book a row. H is not damped here of its own accord, so that the error is that of the outputs; least squares
leave directions that no input has alone, and a column that no input reaches is rounded to 0. Damped as for GPTQ, it is
the error on other text that falls: H of few windows knows directions that the next text does not have.

A sweep takes 2 N K^2 operations for H E, and (2 q + 3) N K g for what happens within groups: with one group a row, some
q + 3 times as many. Rows do not know of each other: they are taken in blocks of BLOCK_FLOATS, so that at K = 11008 what
is held beside W and H stays below half a gigabyte, one group a row or many.

`joint` ends with all coefficients of a row at once, its codes as they are:

    (B^T H B) step = B^T (H E)     of each row; B [K, P], the p planes of each of G groups in their place, P = p G

A sweep fits one group, given the others: where groups are many and inputs correlated, it comes near this optimum
slowly. Of fc2 of opt-embedded-s (K = 512, q = 2, two sweeps) this takes another 4 % of the output error at g = 32, and
1 % at g = 128, where a third sweep takes as much; repeated in every sweep it takes no more. It costs
N K^2 (1 + p / 2) + N P K p / 2 + N P^3 / 6 multiplications, of half of H since B^T H B is symmetric; with the small
products that these are, at K = 2048 as much as two sweeps at g = 128, as seven at g = 32. That matrix is [P, P] float64
a row, 0.5 MB at K = 11008, q = 2, g = 128.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

from lutlab.base.groups import group_length
from lutlab.base.lazy import torch
from lutlab.quantizers.alternating import least_squares
from lutlab.quantizers.compensation import CodeBooks, Columns, Factored
from lutlab.quantizers.one_thread import one_thread

SPAN = 128  # columns after which H E is made anew, at least; groups of fewer share one product
PIVOT = 1e-6  # of B^T H B, by its mean diagonal: below, float32 cannot tell a plane from the others
RIDGE = 1e-6  # of B^T H B, by its mean diagonal: joint steps along planes that depend on others stay near 0
NOISE = 1e-6  # of the sums that are the fall of an error: float32 cannot tell less from a rise
DOUBT = 2**-14  # of sum_j H_jj E_j^2: below, the fall of a row is looked at again in float64
BLOCK_FLOATS = 2**24  # of E in a block of rows, or eight times of a group: 64 MiB


class Books(CodeBooks, Protocol):
    """Coefficients of the groups of N rows, p of them in a group, and how columns are rounded to them."""

    def planes(self, codes: torch.Tensor) -> list[torch.Tensor]:
        """B of codes [length, N] uint8: p of [length, N] float32, or [length, 1] where all rows have the same."""

    def coefficients(self, group: int) -> torch.Tensor:
        """Coefficients a [p, N] float64 of a group, as stored."""

    def fitted(self, before: torch.Tensor, gram: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
        """Coefficients a [p, N] float64 as they can be stored, near before + step, gram step = rhs."""

    def store(self, group: int, coefficients: torch.Tensor) -> None:
        """Take a [p, N] float64, of `fitted`, as the group's; columns are rounded to it from now on."""


class JointBooks(Books, Protocol):
    """Books whose coefficients may be fitted all at once."""

    def rounded(self, coefficients: torch.Tensor) -> torch.Tensor:
        """Coefficients of any shape as stored."""


def refined(
    weight: torch.Tensor,
    codes: torch.Tensor,
    order: torch.Tensor | None,
    books_of: Callable[[slice], Books],
    factored: Factored,
    g: int,
    sweeps: int,
    joint: bool = False,
    errors: torch.Tensor | None = None,
    damp: float = 0.0,
) -> torch.Tensor:
    """Codes [N, K] uint8 after some sweeps; the coefficients are changed in place with them.

    Args:
        weight: [N, K] finite floats.
        codes: [N, K] uint8, of the coefficients as they are.
        order: [K], channels of the columns of codes, of which groups are then; None: as they are.
        books_of: the coefficients of some rows.
        factored: factored Hessian of the inputs.
        g: weights of a group; -1 = all of K.
        sweeps: passes over all groups.
        joint: end with all coefficients of a row at once; the books are JointBooks then.
        errors: [N] float64, to be set to E H E^T of each row; None: nobody asks.
        damp: ridge of H here, in means of its diagonal; a copy of H bears it, 0.5 GB at K = 11008.
    """
    weight, hessian, out = weight.detach().float(), factored.hessian, torch.empty_like(codes)
    if damp:
        hessian = hessian.clone()
        hessian.diagonal().add_(damp * float(hessian.diagonal().mean(dtype=torch.float64)))
    if order is not None:
        hessian = hessian.index_select(0, order).index_select(1, order)
    length = group_length(g, len(hessian))
    block = max(1, BLOCK_FLOATS // max(len(hessian), 8 * length))
    for first in range(0, len(weight), block):
        rows = slice(first, first + block)
        target = weight[rows].masked_fill(factored.dead, 0.0)
        target = target if order is None else target.index_select(1, order)
        state = _Refinement(target, codes[rows], books_of(rows), hessian, length)
        for _ in range(sweeps):
            state.checked(state.sweep)
        if joint:
            state.checked(state.join)
        out[rows] = state.codes.t()
        if errors is not None:
            errors[rows] = state.exact()
    return out


class _Refinement:
    """codes [K, N] uint8; error [K, N] float32, E; both kept up to date."""

    def __init__(
        self,
        weight: torch.Tensor,
        codes: torch.Tensor,
        books: Books,
        hessian: torch.Tensor,
        length: int,
    ) -> None:
        self.books, self.hessian, self.length = books, hessian, length
        starts = range(0, len(hessian), length)
        self.groups = [
            (i, slice(at, min(at + length, len(hessian)))) for i, at in enumerate(starts)
        ]
        self.weight, self.codes = weight.t(), codes.t().contiguous()
        self.error = self.weight.clone(memory_format=torch.contiguous_format)
        for group, at in self.groups:
            self.error[at] -= _combined(books.planes(self.codes[at]), books.coefficients(group))
        self.diagonal = hessian.diagonal().unsqueeze(1)
        self.inverse = self.diagonal.reciprocal().masked_fill(self.diagonal == 0, 0.0)

    def checked(self, move: Callable[[], torch.Tensor]) -> None:
        """Take rows back that rise; `move` gives the fall of each row's error as float32 finds it, [N]."""
        codes, coefficients, size = self.codes.clone(), self._coefficients(), self._size()
        fall = move()
        small = (fall > 0) & (fall < DOUBT * (size + self._size()))
        rows = small.nonzero().squeeze(1)
        if len(rows):
            now = self._exact(rows, self.codes, self._coefficients())
            rows = rows[now > self._exact(rows, codes, coefficients)]
        if not len(rows):
            return
        self.codes[:, rows] = codes[:, rows]
        for group, at in self.groups:
            after = self.books.coefficients(group)
            after[:, rows] = coefficients[group][:, rows]
            self.books.store(group, after)
            self.error[at] = self.weight[at] - _combined(self.books.planes(self.codes[at]), after)

    def _coefficients(self) -> torch.Tensor:
        """Coefficients [G, p, N] float64."""
        return torch.stack([self.books.coefficients(group) for group, _ in self.groups])

    def _size(self) -> torch.Tensor:
        """sum_j H_jj E_j^2 of each row, [N]."""
        total = self.error.new_zeros(self.error.shape[1])
        with one_thread():
            for error, size in zip(self.error.split(SPAN), self.diagonal.split(SPAN), strict=True):
                total += (error * error).mul_(size).sum(dim=0)  # of what the cache holds
        return total

    def exact(self) -> torch.Tensor:
        """E H E^T of each row in float64, [N]."""
        every = torch.arange(self.error.shape[1], device=self.error.device)
        return self._exact(every, self.codes, self._coefficients())

    def _exact(
        self, rows: torch.Tensor, codes: torch.Tensor, coefficients: torch.Tensor
    ) -> torch.Tensor:
        """E H E^T of some rows in float64, [n]."""
        error = self.weight[:, rows].double()
        for group, at in self.groups:
            planes = self.books.planes(codes[at][:, rows])
            for plane, a in zip(planes, coefficients[group][:, rows], strict=True):
                error[at] -= plane.double() * a
        total = error.new_zeros(len(rows))
        for first in range(0, len(error), SPAN):
            span = slice(first, first + SPAN)
            total += ((self.hessian[span].double() @ error) * error[span]).sum(dim=0)
        return total

    def sweep(self) -> torch.Tensor:
        """Refine every group once."""
        in_features = len(self.hessian)
        fallen = self.error.new_zeros(self.error.shape[1])
        span = max(self.length, SPAN // self.length * self.length)
        for first in range(0, in_features, span):
            last = min(first + span, in_features)
            pull = self.hessian[first:last] @ self.error
            for group, at in self.groups[first // self.length : -(-last // self.length)]:
                change, fall = self._refined(group, at, pull[at.start - first : at.stop - first])
                self.error[at] += change
                fallen += fall
                if at.stop < last:
                    later = self.hessian[at.stop : last, at]
                    pull[at.stop - first :].addmm_(later, change)
        return fallen

    def join(self) -> torch.Tensor:
        """Fit all coefficients of a row at once."""
        groups, books = self.groups, cast("JointBooks", self.books)  # as `refined` asks
        before = self._coefficients()
        after, p = before.clone(), before.shape[1]
        fallen = self.error.new_zeros(before.shape[2])
        # B, H B of a group and copies of them; four of [P, P] float64
        floats = 4 * p * len(self.hessian) + 8 * (p * len(groups)) ** 2
        block = max(1, BLOCK_FLOATS // floats)
        for first in range(0, before.shape[2], block):
            rows = slice(first, first + block)
            pull = (self.hessian @ self.error[:, rows]).t()
            planes = self._planes(rows, p)
            now = before[:, :, rows].flatten(0, 1).t()
            step, gram, rhs = joint_step(planes, self.hessian, pull)
            stored = books.rounded(now + step)
            fallen[rows] = fall = falls(stored - now, gram, rhs)
            taken = (fall > 0).unsqueeze(1)
            after[:, :, rows] = torch.where(taken, stored, now).t().unflatten(0, (-1, p))
        for group, at in groups:
            step = after[group] - before[group]
            self.error[at] -= _combined(books.planes(self.codes[at]), step)
            books.store(group, after[group])
        return fallen

    def _planes(self, rows: slice, p: int) -> torch.Tensor:
        """B of some rows: [n, G, p, length] float32, filled with zeros."""
        count = self.error[:, rows].shape[1]
        out = self.error.new_zeros(count, len(self.groups), p, self.length)
        for group, at in self.groups:
            for index, plane in enumerate(self.books.planes(self.codes[at, rows])):
                out[:, group, index, : len(plane)] = plane.t()
        return out

    def _refined(
        self, group: int, at: slice, pull: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Refine a group, of which pull [length, N] is H E.

        Its value before less that after, [length, N], and the fall of each row's error, [N].
        """
        books, hessian, inverse = self.books, self.hessian[at, at], self.inverse[at]
        planes, before = books.planes(self.codes[at]), books.coefficients(group)
        pushed = [hessian @ plane for plane in planes]
        after, step = self._fitted(before, planes, pushed, pull)
        books.store(group, after)

        moved = _combined(planes, step)
        value = _combined(planes, before).add_(moved)
        target = (pull - _combined(pushed, step)).mul_(inverse).add_(value)
        target.masked_fill_(inverse == 0, 0.0)
        columns = Columns(hessian, target, value, lambda _, c: books.round(group, c), inverse)
        for first in range(0, len(target), SPAN):
            last = min(first + SPAN, len(target))
            with one_thread():
                columns.halve(first, last)
            columns.pass_on(first, last, len(target))
        levels = torch.stack(columns.levels)

        change = columns.changes.sub_(moved)  # what rounding took, less what least squares gave
        terms = (hessian @ change).add_(pull, alpha=2.0).mul_(change)
        with one_thread():  # the order of a sum goes by how threads share the rows
            fall = -terms.sum(dim=0)
            better = fall > NOISE * terms.abs().sum(dim=0)
        codes = books.codes(levels, torch.full((len(levels),), group, device=levels.device))
        self.codes[at] = torch.where(better, codes, self.codes[at])
        books.store(group, torch.where(better, after, before))
        return change.mul_(better), fall.mul_(better)

    def _fitted(
        self,
        before: torch.Tensor,
        planes: list[torch.Tensor],
        pushed: list[torch.Tensor],
        pull: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Coefficients [p, N] float64 and the step to them, 0 in rows where the error would not fall."""
        gram = before.new_empty(len(planes), *before.shape)
        rhs = torch.empty_like(before)
        with one_thread():
            for p, plane in enumerate(planes):
                rhs[p] = (plane * pull).sum(dim=0)
                for r in range(p, len(planes)):
                    gram[p, r] = gram[r, p] = (plane * pushed[r]).sum(dim=0)
        after = self.books.fitted(before, gram, rhs)
        step = after - before
        rises = (step * ((gram * step).sum(dim=1) - 2 * rhs)).sum(dim=0)
        keeps = ~(rises < 0)
        return torch.where(keeps, before, after), step.masked_fill_(keeps, 0.0)


def solved(gram: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
    """The step [p, N] of gram step = rhs; 0 along planes that depend on others."""
    size = gram.diagonal().mean(dim=1)
    scale = torch.where(size > 0, size.reciprocal(), 0.0)
    return least_squares(gram * scale, rhs * scale, torch.zeros_like(rhs), PIVOT)


def _combined(planes: list[torch.Tensor], coefficients: torch.Tensor) -> torch.Tensor:
    """sum_p a_p B_p, [length, N] float32."""
    total = planes[0] * coefficients[0].float()
    for plane, coefficient in zip(planes[1:], coefficients[1:], strict=True):
        total.addcmul_(plane, coefficient.float())
    return total


# ---- joint least squares ----


def joint_step(
    planes: torch.Tensor, hessian: torch.Tensor, pull: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The step of all coefficients of n rows, and what its error is quadratic in.

    Args:
        planes: [n, G, p, length] float32; a short last group is filled with zeros.
        hessian: [K, K] float32.
        pull: [n, K] float32, H E.

    Returns:
        step [n, P], B^T H B [n, P, P], B^T H E [n, P], float64, by group and in it by plane.
    """
    count, groups, p, length = planes.shape
    in_features, size = len(hessian), groups * p
    gram = planes.new_zeros(count, groups, p, groups, p, dtype=torch.float64)
    padded = planes.new_zeros(count, p, groups * length)
    for group in range(groups):
        first = group * length
        flat = planes[:, group, :, : in_features - first].reshape(count * p, -1)
        pushed = flat @ hessian[first : first + flat.shape[1], first:]
        padded[:, :, first:in_features] = pushed.view(count, p, -1)
        later = padded[:, :, first:].view(count, p, -1, length).transpose(1, 2)
        products = later @ planes[:, group:].transpose(2, 3)  # [n, G - group, p, p]
        gram[:, group, :, group:] = products.transpose(1, 2)
        gram[:, group:, :, group] = products.transpose(2, 3)
    gram = gram.view(count, size, size)
    gathered = torch.nn.functional.pad(pull, (0, groups * length - in_features))
    rhs = (planes @ gathered.view(count, groups, length, 1)).double().view(count, size)
    damped = gram.clone()
    mean = damped.diagonal(dim1=1, dim2=2).mean(dim=1, keepdim=True)
    damped.diagonal(dim1=1, dim2=2).add_(torch.where(mean > 0, RIDGE * mean, 1.0))
    with one_thread():
        lower, wrong = torch.linalg.cholesky_ex(damped)
        step = torch.cholesky_solve(rhs.unsqueeze(2), lower).squeeze(2)
    return step.masked_fill_((wrong != 0).unsqueeze(1), 0.0), gram, rhs


def falls(step: torch.Tensor, gram: torch.Tensor, rhs: torch.Tensor) -> torch.Tensor:
    """The fall of the error of each of n rows with a step [n, P], 0 where float32 cannot tell one: [n] float64."""
    size = step.abs().unsqueeze(2)
    quadratic = (gram @ step.unsqueeze(2)).squeeze(2)
    fall = (step * (2 * rhs - quadratic)).sum(dim=1)
    terms = (size.squeeze(2) * ((gram.abs() @ size).squeeze(2) + 2 * rhs.abs())).sum(dim=1)
    return fall.masked_fill_(~(fall > NOISE * terms), 0.0)
