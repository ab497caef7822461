"""Launchers of the generated C kernels: y[M, N] = x[M, K] W[N, K]^T on a CPU."""
