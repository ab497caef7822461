"""GPTQ as the paper tells it, one column at a time in float64: OBS updates of H^-1, no Cholesky factor, no blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


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
    in_features, diagonal = len(h), h.diagonal().clone()
    dead = diagonal == 0
    w[:, dead] = 0
    order = list(range(in_features))
    if act_order:
        order.sort(key=lambda k: -float(diagonal[k]))
    h[dead, dead] = 1
    h += damp * diagonal.mean() * torch.eye(in_features, dtype=torch.float64)
    length = in_features if g == -1 else min(g, in_features)
    books = [book(values.float()) for values in w.split(length, dim=1)] if static_groups else []
    inverse = torch.linalg.inv(h)
    codes = torch.zeros(weight.shape, dtype=torch.uint8)
    hat, margin = torch.zeros_like(w), torch.zeros_like(w)
    left = list(order)
    for position, k in enumerate(order):
        if not static_groups and position % length == 0:
            books.append(book(w[:, left[:length]].float()))
        group = (k if static_groups else position) // length
        codes[:, k], hat[:, k], margin[:, k] = books[group](w[:, k])
        error = (w[:, k] - hat[:, k]) / inverse[k, k]
        left.remove(k)
        w[:, left] -= error[:, None] * inverse[k, left]
        inverse = inverse - torch.outer(inverse[:, k], inverse[k]) / inverse[k, k]
    return Outcome(codes, hat, margin, order)


def agree(tensor, naive: Outcome, tie: float) -> float:
    """Share of rows with all codes equal; a row may part from the naive one only where that one is at a tie."""
    codes, order = torch.empty_like(tensor.codes), getattr(tensor, "order", None)
    codes[:, slice(None) if order is None else order.long()] = tensor.codes
    parted = [[k for k in naive.order if row[k]] for row in codes != naive.codes]
    for row, columns in enumerate(parted):
        assert not columns or naive.margin[row, columns[0]] <= tie, (row, columns[0])
    return parted.count([]) / len(codes)
