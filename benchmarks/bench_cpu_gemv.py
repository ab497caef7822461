"""Microseconds of y = x W^T with low-bit W on the CPU, cold and resident in cache, beside public kernels.

    python benchmarks/bench_cpu_gemv.py [--shapes 4096x4096 11008x4096 --threads 1 2 --rounds 5 --out bench.json]
        --peer-python <python of an environment that has onnx and onnxruntime>
        [--batch 2 4 8 16]     also these numbers of rows of x, and dequantize + torch.mm
        [--isa avx2]           instead of the best this CPU runs

Every contestant's output is checked before it is timed: against float64 for ours and torch's, against a product of the
dequantized weights for a peer. Cold: as many copies of the weights are passed through as make --cold-mb (10 times the
L3 cache), each other contestant in between; resident: one copy again and again. Every contestant is timed once a
round; a time is the lower quartile inside a round, and what is printed are medians over rounds, ratios and fractions
being taken round by round. Bytes are those stored, scales included; the bandwidth beside is that of reading 8 MB pieces
of --cold-mb in the same round by the same number of threads. A peer runs in a process of its own, which sleeps while it
is not asked.

Predicted and seen: kernels/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

GROUP = 128
READ_BYTES = 8 * 2**20  # of a call, about as long as a product
READ = """
#include <stdint.h>
uint64_t read_all(const uint64_t *p, long words, int threads)
{
    uint64_t sum = 0;
#pragma omp parallel for num_threads(threads) reduction(^ : sum) schedule(static)
    for (long block = 0; block < words / 512; block++) {
        uint64_t part[8] = {0};
        for (int i = 0; i < 512; i += 8) {
            __builtin_prefetch(p + block * 512 + i + 1024);
            for (int j = 0; j < 8; j++) part[j] ^= p[block * 512 + i + j];
        }
        for (int j = 0; j < 8; j++) sum ^= part[j];
    }
    return sum;
}
"""


@dataclass
class Contestant:
    """One kernel with its copies of the weights: run(copy) multiplies by that copy."""

    name: str
    bytes: int
    copies: int
    run: Callable[[int], object]
    error: float
    activations: str = "fp32"
    times: dict[str, list[float]] = field(default_factory=dict)


def copies_for(size: int, args: argparse.Namespace) -> int:
    return max(2, -(-args.cold_mb * 2**20 // size))


# ---- ours and torch's, in this process ----


def ours(shape: tuple[int, int], m: int, args: argparse.Namespace) -> list[Contestant]:
    """BCQ planes and uniform codes; rotated copies hold the same bytes at other addresses."""
    import torch

    from lutlab.codegen import isa
    from lutlab.formats import bcq, bcq_rows, uniform_rows
    from lutlab.kernels import bcq_gemv, uniform_gemv
    from lutlab.records import UniformTensor

    on = next(one for one in isa.runnable() if args.isa in (None, one.name))
    generator = torch.Generator().manual_seed(0)
    rows, columns = shape
    x = torch.randn(m, columns, generator=generator)
    groups = columns // GROUP
    found = []
    for q in args.bits:
        codes = torch.randint(0, 2**q, shape, generator=generator, dtype=torch.uint8)
        scale = (torch.rand(rows, groups, generator=generator) + 0.5).half()
        zero = torch.randint(0, 2**q, (rows, groups), generator=generator).short()
        uniform = UniformTensor(codes, scale, zero, q, GROUP)
        plain = bcq.pack(bcq.from_uniform(uniform))
        alpha = torch.rand(q, rows, groups, generator=generator).half()
        planes = bcq.PackedBCQ(plain.planes, alpha, None, shape, GROUP)
        weights = {f"bcq q{q}": (bcq_gemv, bcq_rows.pack(planes))}
        if q <= 3:
            weights[f"uniform q{q} as planes"] = (bcq_gemv, bcq_rows.pack_uniform(uniform))
        if q == 4:
            weights[f"uniform q{q}"] = (uniform_gemv, uniform_rows.pack(uniform))
        for name, (op, packed) in weights.items():
            kernel = op.kernel(packed, on)
            dense = packed.dequantize().double()
            error = relative(kernel.gemv(x, packed), x, dense)
            assert error < 1e-5, (name, error)
            streams = [
                packed.stream.clone() for _ in range(copies_for(packed.stream.numel(), args))
            ]

            def run(i: int, kernel=kernel, packed=packed, streams=streams) -> None:
                object.__setattr__(packed, "stream", streams[i])
                kernel.gemv(x, packed)

            size = packed.stream.numel()
            found.append(Contestant(f"lutlab {name} ({on.name})", size, len(streams), run, error))
            if m > 1 and name.endswith("q4"):
                room = torch.empty(shape)

                def dense_gemm(i: int, kernel=kernel, packed=packed, streams=streams, room=room):
                    object.__setattr__(packed, "stream", streams[i])
                    torch.nn.functional.linear(x, kernel.dense(packed, out=room))

                named = f"lutlab {name} dense + torch mm"
                found.append(Contestant(named, size, len(streams), dense_gemm, 0.0))
    return found


def torches(shape: tuple[int, int], m: int, args: argparse.Namespace) -> list[Contestant]:
    """Full precision by matrix-vector product, and aten's weight-only int4 (bfloat16 activations)."""
    import torch

    rows, columns = shape
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(m, columns, generator=generator)
    weight = torch.randn(shape, generator=generator)
    full = [weight.clone() for _ in range(copies_for(weight.numel() * 4, args))]
    error = relative(x @ weight.t(), x, weight.double())
    found = [
        Contestant(
            "torch fp32", weight.numel() * 4, len(full), lambda i: torch.mm(x, full[i].t()), error
        )
    ]
    if hasattr(torch.ops.aten, "_convert_weight_to_int4pack_for_cpu"):
        codes = torch.randint(0, 16, shape, generator=generator, dtype=torch.int32)
        scales = torch.rand(columns // GROUP, rows, 2, generator=generator).bfloat16()
        words = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        size = words.nbytes + scales.nbytes
        packs = [words.clone() for _ in range(copies_for(size, args))]
        half = x.bfloat16()

        def run(i: int) -> torch.Tensor:
            return torch.ops.aten._weight_int4pack_mm_for_cpu(half, packs[i], GROUP, scales)

        wide = scales.double().repeat_interleave(GROUP, dim=0)
        dense = ((codes.t().double() - 8) * wide[..., 0] + wide[..., 1]).t()
        error = relative(run(0), half, dense)
        assert error < 1e-2, error
        found.append(Contestant("torch int4 g128", size, len(packs), run, error, "bf16"))
    return found


def relative(y, x, dense) -> float:
    """|y - x W^T| / |x W^T| in float64."""
    expected = x.double() @ dense.t()
    return float((y.double() - expected).norm() / expected.norm())


# ---- peers, each in a process of its own ----


def onnxruntime_peer(
    shape: tuple[int, int], m: int, threads: int, args: argparse.Namespace
) -> list[Contestant]:
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
        for copy in range(copies_for(size, args)):
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
        found.append(Contestant(name, size, len(sessions), run, error, kind))
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


PEERS = {"onnxruntime": onnxruntime_peer}


class Peer:
    """A worker in another environment: it answers a line with the times of a round, by contestant."""

    def __init__(self, name: str, shape, m: int, threads: int, args: argparse.Namespace) -> None:
        command = [
            args.peer_python,
            __file__,
            "--as-peer",
            name,
            "--shapes",
            "x".join(map(str, shape)),
        ]
        command += ["--threads", str(threads), "--batch", str(m), "--cold-mb", str(args.cold_mb)]
        command += ["--calls", str(args.calls)]
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.contestants = [
            Contestant(run=lambda i: None, **known) for known in json.loads(self._answer())
        ]

    def _answer(self) -> str:
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the peer's process ended; its message is above")
        return line

    def round(self) -> None:
        """Let it time all its contestants once."""
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        for contestant, times in zip(self.contestants, json.loads(self._answer()), strict=True):
            for kind, seconds in times.items():
                contestant.times.setdefault(kind, []).append(seconds)

    def close(self) -> None:
        """End the worker."""
        self.process.stdin.close()
        self.process.wait()


def serve(args: argparse.Namespace) -> None:
    """The worker's side."""
    shape = tuple(map(int, args.shapes[0].split("x")))
    found = PEERS[args.as_peer](shape, args.batch[0], args.threads[0], args)
    known = [
        {key: getattr(c, key) for key in ("name", "bytes", "copies", "error", "activations")}
        for c in found
    ]
    print(json.dumps(known), flush=True)
    for _ in sys.stdin:
        print(json.dumps([round_of(c, args.calls) for c in found]), flush=True)


# ---- timing ----


def round_of(contestant: Contestant, calls: int) -> dict[str, float]:
    """Seconds of a call, cold and resident: lower quartiles."""
    result = {}
    for kind, copies in (("cold", contestant.copies), ("resident", 1)):
        times = []
        for i in range(max(calls, copies if kind == "cold" else 0) + 1):
            start = time.perf_counter()
            contestant.run(i % copies)
            times.append(time.perf_counter() - start)
        result[kind] = statistics.quantiles(times[1:], n=4)[0]
    return result


def measure(shape: tuple[int, int], m: int, threads: int, args: argparse.Namespace) -> dict:
    import torch

    from lutlab.codegen import isa, library

    torch.set_num_threads(threads)
    here = [*ours(shape, m, args), *torches(shape, m, args)]
    peers = [Peer(n, shape, m, threads, args) for n in args.peers] if args.peer_python else []
    reader = library.load(READ, "read", isa.runnable()[0])
    buffer = torch.ones(args.cold_mb * 2**20 // READ_BYTES, READ_BYTES // 8, dtype=torch.int64)

    def read_chunk(i: int) -> None:
        at, words = library.ctypes.c_void_p(buffer[i].data_ptr()), READ_BYTES // 8
        reader.read_all(at, library.ctypes.c_long(words), threads)

    read = Contestant("read", READ_BYTES, len(buffer), read_chunk, 0.0)
    for _ in range(args.rounds):
        for contestant in (read, *here):
            for kind, seconds in round_of(contestant, args.calls).items():
                contestant.times.setdefault(kind, []).append(seconds)
        for peer in peers:
            peer.round()
    for peer in peers:
        peer.close()
    contestants = here + [c for peer in peers for c in peer.contestants]
    return report(shape, m, threads, read, contestants)


def report(shape, m: int, threads: int, read: Contestant, contestants: list[Contestant]) -> dict:
    """Medians over rounds; ratios round by round."""
    bandwidths = [read.bytes / seconds for seconds in read.times["cold"]]
    base = next(c for c in contestants if c.name == "torch fp32")
    rows = []
    for c in contestants:
        cold, resident = c.times["cold"], c.times["resident"]
        fractions = [c.bytes / s / b for s, b in zip(cold, bandwidths, strict=True)]
        ratios = [other / s for s, other in zip(cold, base.times["cold"], strict=True)]
        rows.append(
            {
                "kernel": c.name,
                "activations": c.activations,
                "bits_per_weight": c.bytes * 8 / (shape[0] * shape[1]),
                "cold_us": statistics.median(cold) * 1e6,
                "cold_gb_s": c.bytes / statistics.median(cold) * 1e-9,
                "fraction_of_read": statistics.median(fractions),
                "times_torch_fp32": statistics.median(ratios),
                "resident_us": statistics.median(resident) * 1e6,
                "resident_gb_s": c.bytes / statistics.median(resident) * 1e-9,
                "relative_error": c.error,
                "cold_rounds_us": [s * 1e6 for s in cold],
            }
        )
    gb_s = statistics.median(bandwidths) * 1e-9
    return {"shape": list(shape), "m": m, "threads": threads, "read_gb_s": gb_s, "rows": rows}


def table(result: dict) -> str:
    lines = [
        f"{result['shape'][0]}x{result['shape'][1]}, {result['m']} row(s) of x, {result['threads']} thread(s), "
        f"read {result['read_gb_s']:.1f} GB/s",
        f"  {'':42} {'act.':>5} {'bpw':>6} {'cold us':>9} {'GB/s':>6} {'of read':>8} {'/ fp32':>7} "
        f"{'resident us':>12} {'GB/s':>6} {'error':>8}",
    ]
    lines += [
        f"  {r['kernel']:42} {r['activations']:>5} {r['bits_per_weight']:6.2f} {r['cold_us']:9.0f} "
        f"{r['cold_gb_s']:6.1f} {r['fraction_of_read']:8.2f} {r['times_torch_fp32']:7.1f} "
        f"{r['resident_us']:12.0f} {r['resident_gb_s']:6.1f} {r['relative_error']:8.1e}"
        for r in result["rows"]
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    shapes = ["4096x4096", "11008x4096", "4096x11008", "12288x12288"]
    parser.add_argument("--shapes", nargs="+", default=shapes, help="NxK")
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--batch", nargs="+", type=int, default=[1], help="rows of x")
    parser.add_argument("--bits", nargs="+", type=int, default=[4, 3, 2])
    parser.add_argument("--isa", help="instead of the best this CPU runs")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--calls", type=int, default=20, help="at least, of each contestant a round"
    )
    parser.add_argument("--cold-mb", type=int, default=320)
    parser.add_argument("--peer-python", help="python of the environment that has the peers")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=list(PEERS))
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    parser.add_argument("--as-peer", choices=PEERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.as_peer:
        serve(args)
        return
    results = []
    for shape in args.shapes:
        for m in args.batch:
            for threads in args.threads:
                results.append(measure(tuple(map(int, shape.split("x"))), m, threads, args))
                print(table(results[-1]), flush=True)
    if args.out:
        about = {"processor": platform.processor(), "load_average": os.getloadavg()[0]}
        args.out.write_text(json.dumps(about | {"results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
