"""y[M, N] = x[M, K] W[N, K]^T on a GPU, W of groups of 2, 3 and 4 bits with outliers of 16 bits.

    mixed_async    the paper's Algorithm 1, on tensor cores; chosen
    mixed_sync     its twin without overlap, by name, to measure what asynchrony buys

Variants as those of lut_gemv: knobs, limits and a plan, which is data (lut_gemv/variant.py).
"""
