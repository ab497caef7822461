"""The built step of a decoder (kernels/cpu/step/step.c), its structs, and dense weights as it reads them.

The structs mirror those of step.c, field by field; generate/cpu.py fills them from a model.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import POINTER, c_double, c_float, c_int, c_long, c_void_p

import torch

from lutlab.kernels.codegen import library, templates
from lutlab.kernels.codegen.isa import Isa
from lutlab.kernels.cpu.rows.rows_gemv import Part

# Floats of a register; elsewhere four, which every vector unit has.
LANES = {"avx512": 16, "avx2": 8}
PORTABLE_LANES = 4
# Of dense weights and of the cache, by the numbers that the structs name them with.
TYPE_NAMES = ("float16", "bfloat16", "float32")
TYPES = {getattr(torch, name): number for number, name in enumerate(TYPE_NAMES)}
CODED = len(TYPE_NAMES)
ROWS_AT_A_TIME = 1024  # of a dense weight that is narrowed
RUN = 8  # tokens of a row whose attention reads the cache together: attention.h
NO_NORM, RMS_NORM, LAYER_NORM = range(3)
ACTIVATIONS = ("relu", "silu", "gelu", "gelu_tanh")  # by their numbers in rows.h


class CodedTable(ctypes.Structure):
    """A table of embeddings in uniform codes; its type is CODED."""

    _fields_ = (("code", c_void_p), ("scale", c_void_p), ("zero", c_void_p), ("group", c_long))


class Product(ctypes.Structure):
    """One launch: parts of one geometry for a kernel, or a dense weight."""

    _fields_ = (
        ("gemv", c_void_p),
        ("parts", POINTER(Part)),
        ("count", c_long),
        ("geometry", c_void_p),
        ("order", c_void_p),
        ("ahead", c_long),
        ("weight", c_void_p),
        *((name, c_long) for name in ("type", "channels", "width", "rows", "bytes", "at")),
    )


class Linear(ctypes.Structure):
    """All products that read the same x."""

    _fields_ = (
        ("products", POINTER(Product)),
        ("count", c_long),
        ("rows", c_long),
        ("bias", c_void_p),
    )


class Norm(ctypes.Structure):
    """Struct of a row's norm: RMS_NORM, LAYER_NORM, or none."""

    _fields_ = (("kind", c_long), ("weight", c_void_p), ("bias", c_void_p), ("eps", c_float))


class Layer(ctypes.Structure):
    """A block of the decoder."""

    _fields_ = (
        *((f"{name}_norm", Norm) for name in ("attention", "forward", "query", "key")),
        *((name, Linear) for name in ("attention", "out", "up", "down")),
        *((f"{name}_at", c_long) for name in ("query", "key", "value", "gate", "up")),
        ("scale", c_float),
        ("window", c_long),
    )


MEND = ctypes.CFUNCTYPE(None, c_void_p, c_void_p, c_long, c_long, c_void_p, c_long)
BUFFERS = ("x", "normed", "mixed", "queries", "attended", "wide", "y", "scratch", "scores", "sums")


class Model(ctypes.Structure):
    """A decoder, its cache and its buffers."""

    _fields_ = (
        *((name, c_long) for name in ("layers", "hidden", "heads", "kv_heads", "size", "room")),
        ("inner", c_long),
        *((name, c_long) for name in ("norm_first", "activation", "rotary", "neighbours")),
        ("layer", POINTER(Layer)),
        ("tokens", c_void_p),
        ("positions", c_void_p),
        *((name, c_long) for name in ("tokens_type", "tokens_width")),
        *((name, c_long) for name in ("positions_type", "positions_from")),
        *((name, Linear) for name in ("project_in", "project_out", "head")),
        ("last_norm", Norm),
        *((name, c_void_p) for name in ("cosine", "sine", "keys", "values")),
        *((name, c_long) for name in ("cache", "batch", "length")),
        *((name, c_void_p) for name in BUFFERS),
        ("threads", c_long),
        ("thread_bytes", c_long),
        ("mend", MEND),
        ("seconds", POINTER(c_double)),
    )


@functools.cache
def source(isa: Isa) -> str:
    """C source of a step of a model."""
    return templates.render(
        "step/step.c",
        simd=isa.name if isa.name in LANES else "portable",
        lanes=LANES.get(isa.name, PORTABLE_LANES),
        types=TYPE_NAMES,
    )


def load(isa: Isa) -> ctypes.CDLL:
    """The library, built now or before: `forward` is a step, `products` those of its layers alone.

    Raises:
        NoCompiler: there is no C compiler.
    """
    built = library.load(source(isa), "step", isa)
    built.forward.argtypes = [c_void_p, c_long, *[c_void_p] * 4, c_long, c_void_p]
    built.forward.restype = c_int
    built.products.argtypes = [c_void_p, c_long]
    return built


def lanes(isa: Isa) -> int:
    """Floats of a vector: what rows of dense weights and heads of the cache are padded to."""
    return LANES.get(isa.name, PORTABLE_LANES)


def dense_rows(weight: torch.Tensor, isa: Isa) -> torch.Tensor:
    """A dense weight [N, K] in the narrowest of float16, bfloat16 and float32 that holds it exactly, [N, K padded].

    The weight itself where it is that already: nothing is copied then.
    """
    halves = (torch.float16, torch.bfloat16)
    as_is = (weight.dtype,) if weight.dtype in halves else ()  # no narrower one is copied of it
    narrow = next((dtype for dtype in (*as_is, *halves) if _holds(weight, dtype)), torch.float32)
    missing = -weight.shape[1] % lanes(isa)
    if weight.dtype == narrow and weight.is_contiguous() and not missing:
        return weight
    padded = torch.zeros(weight.shape[0], weight.shape[1] + missing, dtype=narrow)
    padded[:, : weight.shape[1]].copy_(weight)
    return padded


def _holds(weight: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether every number is finite, and stays what it is."""
    for some in weight.split(ROWS_AT_A_TIME):
        narrow = some.to(dtype)
        if not (narrow.isfinite().all() and torch.equal(narrow.to(some.dtype), some)):
            return False
    return True
