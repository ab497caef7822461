"""Uniform grids as GPTQ's and AWQ's repositories make them of a group, and codewords of binary codes."""

from __future__ import annotations

import torch


def uniform_book(q, variant="gptq", *, symmetric=False, half=False):
    """A grid for every row of a group, for naive_gptq.

    gptq: quant.py, perchannel, mse=False; a row's min and max always enclose zero; sym mirrors the larger one.
    autoawq: AWQ's pseudo_quantize_tensor, zero_point=not symmetric; of one bit it has no symmetric form.
    awq: the same over a range that holds 0.
    """
    top, middle = 2**q - 1, 2 ** (q - 1)

    def fit(values):
        low, high = values.amin(1), values.amax(1)
        if variant != "autoawq":
            low, high = low.clamp(max=0), high.clamp(min=0)
        if symmetric:
            high = torch.maximum(-low, high)
            low = -high
        if variant == "gptq":
            empty = (low == 0) & (high == 0)
            low, high = low.masked_fill(empty, -1), high.masked_fill(empty, 1)
            scale = (high - low) / top
        elif symmetric:
            scale = high.clamp(min=1e-5) / max(0.5, middle - 1)
        else:
            scale = (high - low).clamp(min=1e-5) / top
        scale = scale.half().float().clamp(min=2.0**-24) if half else scale
        zero = torch.round(-low / scale)
        zero = zero if variant == "gptq" else zero.clamp(0, top)
        zero = torch.full_like(zero, middle) if symmetric else zero

        def column(w):
            place = w / scale.to(w.dtype)
            codes = (torch.round(place) + zero).clamp(0, top)
            return codes, scale.double() * (codes - zero), ((place % 1) - 0.5).abs()

        return column

    return fit


def rounded(weight, q, g=-1, variant="awq", **options):
    """[N, K] float32, every group rounded to nearest on its grid."""
    fit = uniform_book(q, variant, **options)
    groups = weight.split(weight.shape[1] if g == -1 else g, dim=1)
    return torch.cat([fit(group)(group.T)[1].T for group in groups], dim=1).float()


def planes_of(codes, q, offset=False):
    """[K, q] float64 of -1 and 1, and a column of ones where there is an offset."""
    signs = 2.0 * (torch.as_tensor(codes)[:, None] >> torch.arange(q) & 1) - 1
    return torch.cat((signs, torch.ones(len(signs), int(offset))), dim=1).double()
