"""y[M, N] = x[M, K] W[N, K]^T on a GPU, W in BCQ planes, batch 1 first: one file a variant, in the order of idea.

    y[n] = sum_g ( sum_b alpha[g, b, n] sum_{k in g} B_b[n, k] x[k]  +  z[g, n] sum_{k in g} x[k] )      LUT-GEMM Eq. 2

A variant is `<name>.py` here (layout, knobs, limits, plan) and `kernels/cuda/lut_gemv/<name>.cu`. It declares itself,
with its rank among the others; `gpu/variants.py` has them all and chooses. One that cannot take a case says why, and
nobody takes its place unasked.
"""
