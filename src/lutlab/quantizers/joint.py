"""Joint least squares: all coefficients of a row in the metric of the inputs at once, its codes as they are.

    (B^T H B) step = B^T (H E)     of each row; B [K, P], the p planes of each of G groups in their place, P = p G

A sweep of refinement.py fits one group, given the others: where groups are many and inputs correlated, it comes near
this optimum slowly. Of fc2 of opt-embedded-s (K = 512, q = 2, two sweeps) this takes another 4 % of the output error at
g = 32, and 1 % at g = 128, where a third sweep takes as much; repeated in every sweep it takes no more.

It costs N K^2 (1 + p / 2) + N P K p / 2 + N P^3 / 6 multiplications, of half of H since B^T H B is symmetric; with the
small products that these are, at K = 2048 as much as two sweeps at g = 128, as seven at g = 32. That matrix is [P, P]
float64 a row, 0.5 MB at K = 11008, q = 2, g = 128: rows are taken in blocks, as in refinement.py.
"""

from __future__ import annotations

from lutlab.lazy import torch
from lutlab.quantizers.one_thread import one_thread

RIDGE = (
    1e-6  # of B^T H B, by its mean diagonal: steps along planes that depend on others stay near 0
)
NOISE = 1e-6  # of the sums that are the fall of an error: float32 cannot tell less from a rise


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
        own = planes[:, group, :, : in_features - first].reshape(count * p, -1)
        pushed = own @ hessian[first : first + own.shape[1], first:]
        padded[:, :, first:in_features] = pushed.view(count, p, -1)
        later = padded[:, :, first:].view(count, p, -1, length).transpose(1, 2)
        found = later @ planes[:, group:].transpose(2, 3)  # [n, G - group, p, p]
        gram[:, group, :, group:] = found.transpose(1, 2)
        gram[:, group:, :, group] = found.transpose(2, 3)
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
