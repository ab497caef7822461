"""Public CPU kernels of low-bit products, each in a process of its own in the environment that has them.

    parent   Peer(...), round() …, close()          child   python cpu_peers.py <what to multiply, as JSON>

A child says what it has, and answers a line with the times of a round, by contestant; it sleeps while it is not asked.
Outputs are checked against a product of the dequantized weights. Where numpy and the timer are, this module imports.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from cpu_contestants import GROUP, Entrant, copies

from lutlab.measure.timing import COLD, RESIDENT, CpuTimer, race

SOURCE = Path(__file__).resolve().parents[1] / "src"
KINDS = (COLD, RESIDENT)


def onnxruntime_peer(
    shape: tuple[int, int], m: int, threads: int, args: argparse.Namespace
) -> list[Entrant]:
    """MatMulNBits with symmetric 4 or 2 bit blocks of 128; level 0: fp32 activations, level 4: int8 activations."""
    import onnx
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
        size = rows * columns * bits // 8 + rows * columns // GROUP * 4
        sessions, error = [], 0.0
        for copy in range(copies(size, args)):
            words = random.integers(
                0, 256, (rows, columns // GROUP, GROUP * bits // 8), dtype=np.uint8
            )
            scales = random.random(rows * columns // GROUP, dtype=np.float32) + np.float32(0.5)
            model = nbits_model(onnx, shape, m, bits, level, words, scales)
            session = ort.InferenceSession(model.SerializeToString(), options)
            sessions.append(session)
            if copy == 0:
                codes = (words[..., None] >> np.arange(0, 8, bits, dtype=np.uint8)) & (2**bits - 1)
                dense = codes.reshape(rows, -1, GROUP).astype(np.float64) - 2 ** (bits - 1)
                dense = (dense * scales.reshape(rows, -1, 1)).reshape(rows, columns)
                expected = x @ dense.T
                error = float(
                    np.linalg.norm(session.run(None, {"x": x})[0] - expected)
                    / np.linalg.norm(expected)
                )
                assert error < 0.05, error
        name = f"onnxruntime {ort.__version__} b{bits} g128 level {level}"

        def run(i: int, sessions=sessions) -> object:
            return sessions[i].run(None, {"x": x})

        kind = "fp32" if level == 0 else "int8"
        found.append(Entrant(name, size, len(sessions), run, error=error, activations=kind))
    return found


def nbits_model(onnx, shape, m, bits, level, words, scales):
    """A graph of one MatMulNBits."""
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
        block_size=GROUP,
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


def llama_cpp_peer(
    shape: tuple[int, int], m: int, threads: int, args: argparse.Namespace
) -> list[Entrant]:
    """Formats of ggml of about 4, 3 and 2 bits, in the buffers that llama.cpp itself takes for them."""
    from importlib.metadata import version

    from ggml_gemv import TYPES, Products

    found = []
    for kind in TYPES:
        products = Products(kind, shape, m, threads, args.cold_mb * 2**20)
        assert products.error < 0.05, products.error
        repacked = " repacked" if "REPACK" in products.buffer else ""
        name = f"llama-cpp-python {version('llama-cpp-python')} {kind}{repacked}"
        found.append(
            Entrant(
                name,
                products.bytes,
                products.copies,
                products.run,
                error=products.error,
                activations="int8",
            )
        )
    return found


PEERS = {"onnxruntime": onnxruntime_peer, "llama_cpp": llama_cpp_peer}


class Peer:
    """A worker in another environment: it answers a line with the times of a round, by contestant."""

    def __init__(self, name: str, shape, m: int, threads: int, args: argparse.Namespace) -> None:
        wanted = {"name": name, "shape": shape, "m": m, "threads": threads}
        wanted |= {"cold_mb": args.cold_mb, "calls": args.calls}
        command = [args.peer_python, __file__, json.dumps(wanted)]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        environment["PYTHONPATH"] = str(SOURCE)  # for the timer: lutlab is not installed there
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.contestants = [
            Entrant(run=lambda i: None, **known) for known in json.loads(self._answer())
        ]

    def _answer(self) -> str:
        line = self.process.stdout.readline()
        if not line:
            self.close()
            raise RuntimeError("the peer's process ended; its message is above")
        return line

    def round(self) -> None:
        """Let it time all its contestants once."""
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        for contestant, times in zip(self.contestants, json.loads(self._answer()), strict=True):
            contestant.rounds = times

    def close(self) -> None:
        """End the worker."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def serve(args: argparse.Namespace) -> None:
    """The child's side."""
    found = PEERS[args.name](tuple(args.shape), args.m, args.threads, args)
    known = [
        {key: getattr(c, key) for key in ("name", "bytes", "copies", "error", "activations")}
        for c in found
    ]
    print(json.dumps(known), flush=True)
    for _ in sys.stdin:
        race(found, CpuTimer(args.calls), 1, KINDS)
        print(json.dumps([c.rounds for c in found]), flush=True)


if __name__ == "__main__":
    serve(argparse.Namespace(**json.loads(sys.argv[1])))
