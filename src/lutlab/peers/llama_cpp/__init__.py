"""llama.cpp by llama-cpp-python: its product of a low-bit matrix and a few vectors, through the ggml that it brings.

    y [m, N] = x [m, K] W [N, K]^T     a graph of one ggml_mul_mat; inside, x is quantized to int8 (Q8_0 or Q8_K)

A matrix lies in the first kind of buffer that takes it, in llama.cpp's own order: those that interleave its rows for
this CPU ("CPU_REPACK", its default for q4_0), then plain memory. gguf_model.py has whole models.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_void_p

from lutlab.base import ggml
from lutlab.base.ggml import FUNCTIONS, InitParams, blocks_of, function, number_of
from lutlab.base.lazy import np
from lutlab.base.registry import register
from lutlab.peers.contract import MultipliesOnCPU, Product, checked

TYPES = ("q4_0", "q3_K", "q2_K")
_F32 = 0  # ggml.h: enum ggml_type
# ggml.h: struct ggml_tensor begins with its type, padded; then comes its buffer
_BUFFER_AT = 8
_ROWS = 512  # of the matrix, drawn and quantized at a time


@ctypes.CFUNCTYPE(None, c_int, c_char_p, c_void_p)
def _errors_only(level: int, text: bytes, _: c_void_p) -> None:
    """ggml.h: enum ggml_log_level, 4 is an error."""
    if level == 4:
        sys.stderr.write(text.decode())


class Products:
    """Copies of one quantized matrix, each with a graph that multiplies the same x.

    Attributes:
        bytes: bytes of one copy.
        buffer: the kind of buffer the copies lie in.
        error: |y - x W^T| / |x W^T|, W as dequantized, in float64.
    """

    def __init__(
        self, kind: str, shape: tuple[int, int], m: int, threads: int, copies: Callable[[int], int]
    ) -> None:
        self.ggml = ggml = {name: function(name) for name in FUNCTIONS}
        ggml["log_set"](ctypes.cast(_errors_only, c_void_p), None)
        (rows, columns), number = shape, number_of(kind)
        self.bytes = ggml["row_size"](number, columns) * rows
        self.copies = max(2, copies(self.bytes))
        self.backend = ggml["backend_cpu_init"]()
        ggml["backend_cpu_set_n_threads"](self.backend, threads)
        random = np.random.default_rng(0)
        x = random.standard_normal((m, columns), dtype=np.float32)
        words, expected = self._matrix(kind, shape, x, random)
        weights, rest = (ggml["init"](InitParams(2**24, None, True)) for _ in range(2))
        matrices = [
            ggml["new_tensor_2d"](weights, number, columns, rows) for _ in range(self.copies)
        ]
        inputs = ggml["new_tensor_2d"](rest, _F32, columns, m)
        self.results = [ggml["mul_mat"](rest, matrix, inputs) for matrix in matrices]
        self.graphs = [self._graph(rest, result) for result in self.results]
        self._allocate(weights, self._buffer_type(matrices[0], self.results[0]))
        self._allocate(rest, ggml["backend_cpu_buffer_type"]())
        for matrix in matrices:
            ggml["backend_tensor_set"](matrix, words.ctypes.data, 0, words.nbytes)
        ggml["backend_tensor_set"](inputs, x.ctypes.data, 0, x.nbytes)
        self.error = self._error(expected)

    def _matrix(
        self, kind: str, shape: tuple[int, int], x: np.ndarray, random: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Words [N, bytes of a row] of a normal matrix, and its product with x in float64, [m, N]."""
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        (rows, columns), number = shape, number_of(kind)
        words, expected = [], np.empty((len(x), rows))
        for first in range(0, rows, _ROWS):
            some = random.standard_normal((min(_ROWS, rows - first), columns), dtype=np.float32)
            words.append(blocks_of(some, kind))
            dense = dequantize(words[-1], GGMLQuantizationType(number)).astype(np.float64)
            expected[:, first : first + len(some)] = x @ dense.T
        return np.concatenate(words), expected

    def _graph(self, context: int, result: int) -> int:
        graph = self.ggml["new_graph_custom"](context, 8, False)
        self.ggml["build_forward_expand"](graph, result)
        return graph

    def _buffer_type(self, matrix: int, result: int) -> int:
        """The first kind of buffer that the device's multiplication takes this matrix from, as llama.cpp asks."""
        device = self.ggml["backend_get_device"](self.backend)
        registry = self.ggml["backend_dev_backend_reg"](device)
        address = self.ggml["backend_reg_get_proc_address"](
            registry, b"ggml_backend_dev_get_extra_bufts"
        )
        kinds = ctypes.CFUNCTYPE(POINTER(c_void_p), c_void_p)(address)(device)
        at = c_void_p.from_address(matrix + _BUFFER_AT)
        chosen = self.ggml["backend_cpu_buffer_type"]()
        for kind in iter(kinds):
            if kind is None:
                break
            at.value = self.ggml["backend_buft_alloc_buffer"](kind, 0)
            if self.ggml["backend_dev_supports_op"](device, result):
                chosen = kind
                break
        at.value = None
        self.buffer = self.ggml["backend_buft_name"](chosen).decode()
        return chosen

    def _allocate(self, context: int, kind: int) -> None:
        if not self.ggml["backend_alloc_ctx_tensors_from_buft"](context, kind):
            raise MemoryError("ggml cannot allocate the copies: lower --cold-mb")

    def _error(self, expected: np.ndarray) -> float:
        y = np.empty(expected.shape, dtype=np.float32)
        self.run(self.copies - 1)
        self.ggml["backend_tensor_get"](self.results[-1], y.ctypes.data, 0, y.nbytes)
        return float(np.linalg.norm(y - expected) / np.linalg.norm(expected))

    def run(self, copy: int) -> None:
        """Multiply by one copy."""
        status = self.ggml["backend_graph_compute"](self.backend, self.graphs[copy])
        if status:
            raise RuntimeError(f"ggml's graph ended with status {status}")


@register("peer", "llama_cpp")
class LlamaCpp(MultipliesOnCPU):
    """llama.cpp's product on a CPU."""

    modules = ggml.MODULES
    install = ggml.INSTALL

    @classmethod
    def cpu_products(
        cls, shape: tuple[int, int], m: int, g: int, threads: int, copies: Callable[[int], int]
    ) -> list[Product]:
        """Those of formats of about 4, 3 and 2 bits, in the buffers that llama.cpp itself takes."""
        products = []
        for kind in TYPES:
            made = Products(kind, shape, m, threads, copies)
            name = f"llama-cpp-python {cls.version()} {kind}"
            name += " repacked" if "REPACK" in made.buffer else ""
            product = Product(
                name, made.bytes, made.copies, made.run, error=made.error, activations="int8"
            )
            products.append(checked(product, 0.05))
        return products
