"""Binary codes in a few rounds of alternation from a uniform grid, for callers that fit groups on the way.

    start: mean +- step * 2^(b-1) * deviation,  step of the uniform grid that errs least on Gaussian weights (Max 1960)

alternating.py solves to the end, from starts that do not depend on the distribution, and is what method bcq uses. Here
the start is already near: at q = 3, g = 128 and with offset, five rounds inside GPTQ err as much as that solver does.
"""

from __future__ import annotations

from lutlab.lazy import torch
from lutlab.quantizers.alternating import alternate
from lutlab.quantizers.sorted_groups import SortedGroups, sort_groups

# Step of the uniform grid of 2^q levels that errs least on Gaussian weights of deviation 1 (Max 1960), for q = 1 .. 8.
GAUSSIAN_STEP = (1.596, 0.9957, 0.5860, 0.3352, 0.1881, 0.1041, 0.0569, 0.0308)


def solve_from_grid(
    values: torch.Tensor, q: int, *, rounds: int, offset: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Fit groups from one start.

    Args:
        values: [n, length] finite float32, a group a row.
        q: planes, 1-8.
        rounds: most rounds, at least 1.
        offset: fit z as well.
        dtype: dtype to which alpha and z are rounded.

    Returns:
        alpha [q, n] >= 0 and descending along q, z [n] or None.
    """
    data = sort_groups(values if offset else values.abs())
    row = torch.arange(len(values), device=values.device)
    start = _gaussian_grid(data, q, offset)
    planes = alternate(data, row, start, rounds, folded=not offset)[0].to(dtype)
    return (planes[1:], planes[0]) if offset else (planes, None)


def _gaussian_grid(data: SortedGroups, q: int, offset: bool) -> torch.Tensor:
    """The best uniform grid of Gaussian weights of a group's deviation, or the min-max grid where that is narrower."""
    ascending = data.ascending.view(-1, data.length)
    high = ascending[:, -1].double()
    low = ascending[:, 0].double() if offset else -high
    centre = ascending.mean(dim=1, dtype=torch.float64) if offset else torch.zeros_like(high)
    deviation = (data.square / data.length - centre.square()).clamp(min=0).sqrt()
    scale, widest = GAUSSIAN_STEP[q - 1] * deviation, (high - low) / (2**q - 1)
    centre = torch.where(scale < widest, centre, (low + high) / 2)
    scale = torch.minimum(scale, widest)
    planes = [scale * 2.0 ** (b - 1) for b in reversed(range(q))]
    return torch.stack([centre, *planes] if offset else planes)
