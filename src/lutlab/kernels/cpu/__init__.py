"""Launchers of the generated C kernels: y[M, N] = x[M, K] W[N, K]^T on a CPU."""

from __future__ import annotations

# By operation, raised by whoever changes its products beyond rounding. Part of ids (experiment/store/components.py).
VERSIONS = {
    "bcq_gemv": 1,
    "uniform_gemv": 1,
    "mixed_gemv": 1,
    "qigen_gemv": 1,
    "step": 1,
    "paper_gemv": 1,
}
