"""Launchers of the CUDA kernels: y[M, N] = x[M, K] W[N, K]^T on a GPU."""
