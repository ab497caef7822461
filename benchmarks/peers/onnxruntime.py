"""ONNX Runtime: MatMulNBits, symmetric blocks of 4 or 2 bits; level 0 has fp32 activations, level 4 int8 ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lutlab.base.lazy import np
from lutlab.base.registry import register
from lutlab.peers.contract import MultipliesOnCPU, Product, checked


@register("peer", "onnxruntime")
class OnnxRuntime(MultipliesOnCPU):
    """See the top of this file."""

    modules = ("onnx", "onnxruntime")
    install = "onnx onnxruntime"

    @staticmethod
    def cpu_products(
        shape: tuple[int, int], m: int, g: int, threads: int, copies: Callable[[int], int]
    ) -> list[Product]:
        """See MultipliesOnCPU."""
        import onnxruntime as ort

        rows, columns = shape
        random = np.random.default_rng(0)
        x = random.standard_normal((m, columns), dtype=np.float32)
        options = ort.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.add_session_config_entry(
            "session.intra_op.allow_spinning", "0" if threads == 1 else "1"
        )
        found = []
        for bits, level in ((4, 0), (4, 4), (2, 4)):
            size = rows * columns * bits // 8 + rows * columns // g * 4
            sessions, error = [], 0.0
            for copy in range(copies(size)):
                words = random.integers(0, 256, (rows, columns // g, g * bits // 8), dtype=np.uint8)
                scales = random.random(rows * columns // g, dtype=np.float32) + np.float32(0.5)
                model = _graph(shape, m, g, bits, level, words, scales)
                session = ort.InferenceSession(model.SerializeToString(), options)
                sessions.append(session)
                if copy == 0:
                    codes = (words[..., None] >> np.arange(0, 8, bits, dtype=np.uint8)) & (
                        2**bits - 1
                    )
                    dense = codes.reshape(rows, -1, g).astype(np.float64) - 2 ** (bits - 1)
                    dense = (dense * scales.reshape(rows, -1, 1)).reshape(rows, columns)
                    expected = x @ dense.T
                    error = float(
                        np.linalg.norm(session.run(None, {"x": x})[0] - expected)
                        / np.linalg.norm(expected)
                    )
            name = f"onnxruntime {ort.__version__} b{bits} g{g} level {level}"

            def run(i: int, sessions=sessions) -> object:
                return sessions[i].run(None, {"x": x})

            kind = "fp32" if level == 0 else "int8"
            one = Product(name, size, len(sessions), run, error=error, activations=kind)
            found.append(checked(one, 0.05))
        return found


def _graph(
    shape: tuple[int, int],
    m: int,
    g: int,
    bits: int,
    level: int,
    words: np.ndarray,
    scales: np.ndarray,
) -> Any:
    """One MatMulNBits."""
    import onnx

    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    rows, columns = shape
    node = helper.make_node(
        "MatMulNBits",
        ["x", "w", "s"],
        ["y"],
        domain="com.microsoft",
        K=columns,
        N=rows,
        bits=bits,
        block_size=g,
        accuracy_level=level,
    )
    tensor = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node],
        "gemv",
        [tensor("x", onnx.TensorProto.FLOAT, [m, columns])],
        [tensor("y", onnx.TensorProto.FLOAT, [m, rows])],
        [numpy_helper.from_array(words, "w"), numpy_helper.from_array(scales, "s")],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
