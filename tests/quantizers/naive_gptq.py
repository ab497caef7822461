"""GPTQ as the paper tells it, one column at a time in float64: OBS updates of H^-1, no Cholesky factor, no blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Rounder = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@dataclass
class Outcome:
    """codes [N, K] and hat [N, K] by channel; margin [N, K]: how far a value was from a tie, in steps."""

    codes: torch.Tensor
    hat: torch.Tensor
    margin: torch.Tensor
    order: list[int]


def naive_gptq(
    weight: torch.Tensor,
    hessian: torch.Tensor,
    g: int,
    book: Callable[[torch.Tensor], Callable],
    *,
    damp: float = 0.01,
    act_order: bool = False,
    static_groups: bool = False,
) -> Outcome:
    """`book(values [N, length])` fits a group; its result maps a column [N] to (codes, values, margin)."""
    w, h = weight.double().clone(), hessian.double().clone()
    in_features = len(h)
    diagonal = h.diagonal().clone()
    dead = diagonal == 0
    w[:, dead] = 0
    order = list(range(in_features))
    if act_order:
        order.sort(key=lambda k: -float(diagonal[k]))
    h[dead, dead] = 1
    h += damp * diagonal.mean() * torch.eye(in_features, dtype=torch.float64)
    length = in_features if g == -1 else min(g, in_features)
    books = {}
    if static_groups:
        for group in range(-(-in_features // length)):
            books[group] = book(w[:, group * length : (group + 1) * length].float())
    inverse = torch.linalg.inv(h)
    codes = torch.zeros(weight.shape, dtype=torch.uint8)
    hat, margin = torch.zeros_like(w), torch.zeros_like(w)
    left = list(order)
    for position, k in enumerate(order):
        group = (k if static_groups else position) // length
        if not static_groups and position % length == 0:
            books[group] = book(w[:, left[:length]].float())
        codes[:, k], hat[:, k], margin[:, k] = books[group](w[:, k])
        error = (w[:, k] - hat[:, k]) / inverse[k, k]
        left.remove(k)
        w[:, left] -= error[:, None] * inverse[k, left]
        inverse = inverse - torch.outer(inverse[:, k], inverse[k]) / inverse[k, k]
    return Outcome(codes, hat, margin, order)


def agree(codes: torch.Tensor, naive: Outcome, tie: float) -> float:
    """Share of rows with all codes equal; a row may part from the naive one only where that one is at a tie."""
    equal = 0
    for row, (ours, theirs) in enumerate(zip(codes, naive.codes, strict=True)):
        parted = [k for k in naive.order if ours[k] != theirs[k]]
        equal += not parted
        assert not parted or naive.margin[row, parted[0]] <= tie, (row, parted[0])
    return equal / len(codes)


def correlated(in_features: int, seed: int = 0, tokens: int | None = None) -> torch.Tensor:
    """[K, K] float32, X^T X / M of Gaussian inputs that mix K hidden factors of falling size."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.arange(1, in_features + 1).float().rsqrt()
    mix = torch.randn(in_features, in_features, generator=generator) * size.unsqueeze(1)
    x = torch.randn(tokens or 4 * in_features, in_features, generator=generator) @ mix
    return x.t() @ x / len(x)
