"""Launchers of the CUDA kernels: y[M, N] = x[M, K] W[N, K]^T on a GPU."""

from __future__ import annotations

# By operation, raised by whoever changes its products beyond rounding. Part of ids (experiment/store/components.py).
VERSIONS = {"lut_gemv": 1, "mixed_gemv_gpu": 1, "graph": 1}
