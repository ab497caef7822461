"""ggml's C library as llama-cpp-python brings it: rows of numbers to the blocks of one of its types, and its functions.

The types are llama.cpp's that round a trained model: of 32 weights (Q4_0 … Q8_0, IQ4_NL) or super-blocks of 256, with
scales of second order (K) or code books (IQ). Blocks are read back by the package gguf, which is no part of this.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_bool, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from lutlab.base.errors import LutlabError, not_installed
from lutlab.base.lazy import np

MODULES, INSTALL = ("llama_cpp", "gguf"), "llama-cpp-python gguf"
# Type -> bits of a code, rounded up of code books, and weights that share a scale (ggml-common.h).
TYPES = {
    "IQ1_S": (1, 32), "IQ1_M": (1, 16),
    "IQ2_XXS": (2, 32), "IQ2_XS": (2, 16), "IQ2_S": (2, 16), "Q2_K": (2, 16),
    "IQ3_XXS": (3, 32), "IQ3_S": (3, 32), "Q3_K": (3, 16),
    "IQ4_XS": (4, 32), "IQ4_NL": (4, 32), "Q4_0": (4, 32), "Q4_1": (4, 32), "Q4_K": (4, 32),
    "Q5_0": (5, 32), "Q5_1": (5, 32), "Q5_K": (5, 32), "Q6_K": (6, 16), "Q8_0": (8, 32),
}  # fmt: skip
_ROWS = 256  # of a matrix that a thread rounds at a time


class InitParams(ctypes.Structure):
    """ggml.h: struct ggml_init_params."""

    _fields_ = [("mem_size", c_size_t), ("mem_buffer", c_void_p), ("no_alloc", c_bool)]


# library, result, arguments
FUNCTIONS = {
    "log_set": ("base", None, [c_void_p, c_void_p]),
    "init": ("base", c_void_p, [InitParams]),
    "new_tensor_2d": ("base", c_void_p, [c_void_p, c_int, c_int64, c_int64]),
    "mul_mat": ("base", c_void_p, [c_void_p, c_void_p, c_void_p]),
    "new_graph_custom": ("base", c_void_p, [c_void_p, c_size_t, c_bool]),
    "build_forward_expand": ("base", None, [c_void_p, c_void_p]),
    "row_size": ("base", c_size_t, [c_int, c_int64]),
    "quantize_chunk": ("base", c_size_t, [c_int, c_void_p, c_void_p, *[c_int64] * 3, c_void_p]),
    "validate_row_data": ("base", c_bool, [c_int, c_void_p, c_size_t]),
    "backend_get_device": ("base", c_void_p, [c_void_p]),
    "backend_dev_backend_reg": ("base", c_void_p, [c_void_p]),
    "backend_dev_supports_op": ("base", c_bool, [c_void_p, c_void_p]),
    "backend_reg_get_proc_address": ("base", c_void_p, [c_void_p, c_char_p]),
    "backend_buft_alloc_buffer": ("base", c_void_p, [c_void_p, c_size_t]),
    "backend_buft_name": ("base", c_char_p, [c_void_p]),
    "backend_alloc_ctx_tensors_from_buft": ("base", c_void_p, [c_void_p, c_void_p]),
    "backend_tensor_set": ("base", None, [c_void_p, c_void_p, c_size_t, c_size_t]),
    "backend_tensor_get": ("base", None, [c_void_p, c_void_p, c_size_t, c_size_t]),
    "backend_graph_compute": ("base", c_int, [c_void_p, c_void_p]),
    "backend_cpu_init": ("cpu", c_void_p, []),
    "backend_cpu_buffer_type": ("cpu", c_void_p, []),
    "backend_cpu_set_n_threads": ("cpu", None, [c_void_p, c_int]),
}


def lacking() -> str:
    """Why the library cannot be called here; empty where it can."""
    return not_installed(MODULES, INSTALL)


def function(name: str) -> Callable[..., Any]:
    """A function of ggml's, one of FUNCTIONS; called without the GIL.

    Raises:
        LutlabError: llama-cpp-python is not installed.
    """
    library, result, arguments = FUNCTIONS[name]
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        raise LutlabError(lacking())
    (path, *_) = sorted((Path(spec.origin).parent / "lib").glob(f"*ggml-{library}.*"))
    symbol = getattr(ctypes.CDLL(str(path)), f"ggml_{name}")
    symbol.restype, symbol.argtypes = result, arguments
    return symbol


def number_of(kind: str) -> int:
    """The number of a type in ggml."""
    import gguf

    return int(gguf.GGMLQuantizationType[kind.upper()])


def block_of(kind: str) -> tuple[int, int]:
    """Weights and bytes of a block of a type.

    >>> block_of("Q4_0")
    (32, 18)
    """
    import gguf

    return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind.upper()]]


def blocks_of(
    values: np.ndarray, kind: str, importance: np.ndarray | None = None, threads: int = 1
) -> np.ndarray:
    """Round a matrix to a type by ggml's own quantizer.

    Args:
        values: [N, K] float32, K a multiple of the type's block.
        kind: name of the type, capitals aside.
        importance: [K] float32, weights of the squared errors of columns; None: ggml's own guess.
        threads: number of threads.

    Returns:
        Blocks as a GGUF file has them, [N, bytes of a row] uint8.

    Raises:
        LutlabError: the blocks hold what is no number, as where a scale is beyond float16.
    """
    number, (weights, size) = number_of(kind), block_of(kind)
    rows, columns = values.shape
    words = np.empty((rows, columns // weights * size), dtype=np.uint8)
    values = np.ascontiguousarray(values, dtype=np.float32)
    quantize, weighting = function("quantize_chunk"), None
    if importance is not None:
        importance = np.ascontiguousarray(importance, dtype=np.float32)
        weighting = importance.ctypes.data

    def some(first: int) -> None:
        block, target = values[first : first + _ROWS], words[first : first + _ROWS]
        quantize(number, block.ctypes.data, target.ctypes.data, 0, len(block), columns, weighting)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(some, range(0, rows, _ROWS)))
    if not function("validate_row_data")(number, words.ctypes.data, words.nbytes):
        raise LutlabError(
            f"ggml's quantizer to {kind} gave blocks with scales that are no numbers: multiply the weights, whose "
            "scales are float16 in this type"
        )
    return words
