"""Hostile values for arguments, by what an argument means: each a maker, so that no case sees another's object."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

Maker = Callable[[], Any]
N, K = 6, 48


class Text(str):
    """A str of another class, as numpy and enum have them."""


class Silent:
    """An object that has and does nothing."""


def drawn(rows: int = N, columns: int = K, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    """[rows, columns] float32, normal, the same for a seed."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=draw) * scale


def _spoiled(value: float, at: tuple[int, int] = (1, 5)) -> torch.Tensor:
    weight = drawn()
    weight[at] = value
    return weight


ANYTHING: list[Maker] = [
    lambda: None,
    lambda: True,
    lambda: 0,
    lambda: -1,
    lambda: 10**30,
    lambda: 2.5,
    lambda: float("nan"),
    lambda: float("inf"),
    lambda: 1 + 2j,
    lambda: "",
    lambda: "x",
    lambda: "\x00",
    lambda: "\udcff",
    lambda: "a" * 5000,
    lambda: b"bytes",
    list,
    lambda: [1, "a", None],
    lambda: (),
    dict,
    lambda: {"a": 1},
    lambda: {1, 2},
    lambda: object(),
    lambda: Silent(),
    lambda: Silent,
    lambda: len,
    lambda: np.float32(3.0),
    lambda: np.int64(3),
    lambda: np.ones((N, K), np.float32),
    lambda: np.array(["a"]),
    lambda: torch.tensor(3),
    lambda: torch.ones(2, 2),
    lambda: torch.nn.Linear(4, 4),
    lambda: Text("rtn"),
    lambda: range(3),
    lambda: iter([1]),
    lambda: Path("missing"),
]
# Tensors that torch calls tensors, of which no weight and no inputs can be made.
NO_MATRIX: list[Maker] = [
    lambda: torch.ones(()),
    lambda: torch.ones(K),
    lambda: torch.ones(2, 3, K),
    lambda: torch.ones(0, K),
    lambda: torch.ones(N, 0),
    lambda: torch.ones(N, K, device="meta"),
    lambda: drawn().to_sparse(),
    lambda: drawn().to_sparse_csr(),
    lambda: drawn().to(torch.complex64),
    lambda: drawn().to(torch.complex128).conj(),
    lambda: torch.quantize_per_tensor(drawn(), 0.1, 0, torch.qint8),
    lambda: torch.ones(N, K, dtype=torch.int32),
    lambda: torch.ones(N, K, dtype=torch.int64),
    lambda: torch.ones(N, K, dtype=torch.uint8),
    lambda: torch.ones(N, K, dtype=torch.bool),
    lambda: torch.empty(N, K, dtype=torch.float4_e2m1fn_x2),
    lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(4)]),
    lambda: drawn().to_mkldnn(),
    lambda: drawn().numpy(),
    lambda: drawn().tolist(),
    lambda: _spoiled(float("nan")),
    lambda: _spoiled(float("inf")),
    lambda: _spoiled(-float("inf")).half(),
    lambda: drawn().double() * 1e300,
    lambda: drawn().double() * 1e-60,
]
# Matrices in every guise that torch has for one.
MATRICES: list[Maker] = [
    drawn,
    lambda: drawn().half(),
    lambda: drawn().bfloat16(),
    lambda: drawn().double(),
    lambda: drawn().requires_grad_(),
    lambda: torch.nn.Parameter(drawn()),
    lambda: drawn(K, N).T,
    lambda: drawn(N, 2 * K)[:, ::2],
    lambda: drawn(1).expand(N, K),
    lambda: drawn().to(torch.complex64).conj().imag,  # torch's lazy negation
    lambda: drawn(1),
    lambda: drawn(N, 1),
    lambda: drawn(1, 1),
    lambda: drawn(N, 7),
    lambda: torch.zeros(N, K),
    lambda: -torch.zeros(N, K),
    lambda: torch.ones(N, K),
    lambda: drawn(N, 1).repeat(1, K),
    lambda: drawn() * 1e-3,
    lambda: drawn() * 1e-5,
    lambda: drawn() * 1e-8,
    lambda: drawn() * 1e-30,
    lambda: drawn() * 1e-38,
    lambda: drawn() * 1e-42,
    lambda: drawn() * 1e6,
    lambda: drawn() * 1e30,
    lambda: drawn() * 1e38,
    lambda: (drawn() * 1e-6).half(),
    lambda: (drawn() * 1e4).half(),
    lambda: (drawn() * 1e-20).bfloat16(),
    lambda: drawn() * torch.logspace(-12, 0, N)[:, None],
    lambda: drawn() * torch.logspace(-6, 6, K),
    lambda: _spoiled(1e6),
    lambda: drawn().abs(),
    lambda: drawn().to(torch.float8_e4m3fn),
]


def of(*given: Any) -> list[Maker]:
    """Makers of values that nobody changes."""
    return [lambda value=value: value for value in given]


BITS = of(
    0, -3, 9, 64, 2.0, 2.5, 3.5, True, "3", None, [3], np.int64(3), torch.tensor(3), float("nan"), float("inf"),
    10**40, 3 + 0j,
)  # fmt: skip
GROUPS = of(
    0, -2, 1, 7, 10**9, 2**63, 10**40, 16.0, True, "16", None, [16], np.int64(16), torch.tensor(16), float("nan"),
)  # fmt: skip
METHODS = of(
    "RTN", "rnt", "", "stored", "none ", "a" * 5000, Text("rtn"), Text("nope"), None, 3, b"rtn", ["rtn"], {"rtn"}, {},
    Silent, np.str_("bcq"), np.str_("no"),
)  # fmt: skip
# What a layer multiplies.
XS: list[Maker] = [
    lambda: drawn(3),
    lambda: drawn(3).half(),
    lambda: drawn(3).bfloat16(),
    lambda: drawn(3).double(),
    lambda: drawn(6, seed=4).view(2, 3, K),
    lambda: drawn(3)[:0],
    lambda: drawn(1)[0],
    lambda: drawn(K, 3).T,
    lambda: drawn(3, 2 * K)[:, ::2],
    lambda: drawn(3).requires_grad_(),
    lambda: drawn(1).expand(3, K),
    lambda: drawn(3, K + 1),
    lambda: drawn(3, 1),
    lambda: drawn(3) * 1e30,
    lambda: drawn(3) * 1e-20,
    lambda: torch.zeros(3, K),
]


def any_of(draw: random.Random, *pools: list[Maker]) -> Any:
    """A value of one of the pools."""
    return draw.choice(draw.choice(pools))()
