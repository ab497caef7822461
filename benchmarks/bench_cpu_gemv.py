"""Microseconds of y = x W^T with low-bit W on the CPU, cold and resident in cache, beside public kernels.

    python benchmarks/bench_cpu_gemv.py [--shapes 4096x4096 11008x4096 --threads 1 2 --rounds 5 --out bench.json]
        --peer-python <python of an environment that has onnx and onnxruntime, llama-cpp-python and gguf>
        [--peers onnxruntime]  only those
        [--search]             find QIGen's micro kernel on this machine first, if nobody has
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
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lutlab.timing import COLD, RESIDENT, Contestant, CpuTimer, copies_for, cpu_reader, race

SOURCE = Path(__file__).resolve().parents[1] / "src"
GROUP = 128
KINDS = (COLD, RESIDENT)


@dataclass
class Entrant(Contestant):
    """A contestant with what the table says beside its times."""

    error: float = 0.0
    activations: str = "fp32"


def copies(size: int, args: argparse.Namespace) -> int:
    return copies_for(size, args.cold_mb * 2**20)


# ---- ours and torch's, in this process ----


def ours(shape: tuple[int, int], m: int, args: argparse.Namespace) -> list[Entrant]:
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
        lanes = bcq_gemv.lane_bytes(on, GROUP, columns)
        packed = bcq_rows.pack(planes, lane_bytes=lanes)
        weights = {f"bcq q{q}": (packed, bcq_gemv.kernel(packed, on), "fp32", 1e-6)}
        if lanes != 4 and q == 4:
            packed = bcq_rows.pack(planes)
            weights[f"bcq q{q}, tables of floats"] = (
                packed,
                bcq_gemv.kernel(packed, on),
                "fp32",
                1e-6,
            )
        if (on.name, bcq_gemv.INT16) in bcq_gemv.INTEGERS:
            few = bcq_gemv.lane_bytes(on, GROUP, columns, bcq_gemv.INT16)
            packed = bcq_rows.pack(planes, lane_bytes=few)
            kernel = bcq_gemv.kernel(packed, on, bcq_gemv.INT16)
            weights[f"{kernel.variant} q{q}"] = (packed, kernel, kernel.variant.split()[-1], 1e-4)
        if q <= 3:
            packed = bcq_rows.pack_uniform(uniform, lane_bytes=lanes)
            weights[f"uniform q{q} as planes"] = (packed, bcq_gemv.kernel(packed, on), "fp32", 1e-6)
        if q == 4:
            packed = uniform_rows.pack(uniform)
            weights[f"uniform q{q}"] = (packed, uniform_gemv.kernel(packed, on), "fp32", 1e-6)
        for name, (packed, kernel, activations, limit) in weights.items():
            dense = packed.dequantize().double()
            error = relative(kernel.gemv(x, packed), x, dense)
            assert error < limit, (name, error)
            streams = [packed.stream.clone() for _ in range(copies(packed.stream.numel(), args))]

            def run(i: int, kernel=kernel, packed=packed, streams=streams) -> None:
                object.__setattr__(packed, "stream", streams[i])
                kernel.gemv(x, packed)

            size = packed.stream.numel()
            named = f"lutlab {name} ({on.name})"
            found.append(
                Entrant(named, size, len(streams), run, error=error, activations=activations)
            )
            if m > 1 and name.endswith("q4"):
                room = torch.empty(shape)

                def dense_gemm(i: int, kernel=kernel, packed=packed, streams=streams, room=room):
                    object.__setattr__(packed, "stream", streams[i])
                    torch.nn.functional.linear(x, kernel.dense(packed, out=room))

                named = f"lutlab {name} dense + torch mm"
                found.append(Entrant(named, size, len(streams), dense_gemm))
    return found


def qigens(shape: tuple[int, int], m: int, args: argparse.Namespace) -> list[Entrant]:
    """QIGen's own kernels, generated as its paper says: a scale for 128 weights, and one a column."""
    import dataclasses

    import torch

    from lutlab.kernels import qigen_gemv
    from lutlab.records import UniformTensor

    generator = torch.Generator().manual_seed(0)
    rows, columns = shape
    x = torch.randn(m, columns, generator=generator)
    found = []
    for q in [q for q in args.bits if q <= 4]:
        if args.search and not qigen_gemv.parameters(shape, q, GROUP).searched:
            qigen_gemv.search(q)
        for group in (GROUP, -1):
            groups = columns // GROUP if group == GROUP else 1
            codes = torch.randint(0, 2**q, shape, generator=generator, dtype=torch.uint8)
            scale = torch.rand(rows, groups, generator=generator) + 0.5
            zero = torch.randint(0, 2**q, (rows, groups), generator=generator).short()
            packed = qigen_gemv.prepare(UniformTensor(codes, scale, zero, q, group))
            error = relative(qigen_gemv.gemv(x, packed), x, packed.dequantize().double())
            assert error < 1e-4, error
            size = packed.bits_stored // 8
            weights = [
                dataclasses.replace(
                    packed,
                    **{name: getattr(packed, name).clone() for name in ("words", "scale", "zero")},
                )
                for _ in range(copies(size, args))
            ]

            def run(i: int, weights=weights) -> None:
                qigen_gemv.gemv(x, weights[i])

            wide = f"g{group}" if group > 0 else "columns"
            name = f"QIGen q{q} {wide} ({qigen_gemv.instructions().name})"
            found.append(Entrant(name, size, len(weights), run, error=error))
    return found


def torches(shape: tuple[int, int], m: int, args: argparse.Namespace) -> list[Entrant]:
    """Full precision by matrix-vector product, and aten's weight-only int4 (bfloat16 activations)."""
    import torch

    rows, columns = shape
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(m, columns, generator=generator)
    weight = torch.randn(shape, generator=generator)
    full = [weight.clone() for _ in range(copies(weight.numel() * 4, args))]
    error = relative(x @ weight.t(), x, weight.double())
    found = [
        Entrant(
            "torch fp32",
            weight.numel() * 4,
            len(full),
            lambda i: torch.mm(x, full[i].t()),
            error=error,
        )
    ]
    if hasattr(torch.ops.aten, "_convert_weight_to_int4pack_for_cpu"):
        codes = torch.randint(0, 16, shape, generator=generator, dtype=torch.int32)
        scales = torch.rand(columns // GROUP, rows, 2, generator=generator).bfloat16()
        words = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        size = words.nbytes + scales.nbytes
        packs = [words.clone() for _ in range(copies(size, args))]
        half = x.bfloat16()

        def run(i: int) -> torch.Tensor:
            return torch.ops.aten._weight_int4pack_mm_for_cpu(half, packs[i], GROUP, scales)

        wide = scales.double().repeat_interleave(GROUP, dim=0)
        dense = ((codes.t().double() - 8) * wide[..., 0] + wide[..., 1]).t()
        error = relative(run(0), half, dense)
        assert error < 1e-2, error
        named = "torch int4 g128"
        found.append(Entrant(named, size, len(packs), run, error=error, activations="bf16"))
    return found


def relative(y, x, dense) -> float:
    """|y - x W^T| / |x W^T| in float64."""
    expected = x.double() @ dense.t()
    return float((y.double() - expected).norm() / expected.norm())


# ---- peers, each in a process of its own ----


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
        race(found, CpuTimer(args.calls), 1, KINDS)
        print(json.dumps([c.rounds for c in found]), flush=True)


# ---- timing ----


def measure(shape: tuple[int, int], m: int, threads: int, args: argparse.Namespace) -> dict:
    import torch

    torch.set_num_threads(threads)
    here = [*ours(shape, m, args), *qigens(shape, m, args), *torches(shape, m, args)]
    peers = [Peer(n, shape, m, threads, args) for n in args.peers] if args.peer_python else []
    read = cpu_reader(args.cold_mb * 2**20, threads)
    for _ in range(args.rounds):
        race([read, *here], CpuTimer(args.calls), 1, KINDS)
        for peer in peers:
            peer.round()
    for peer in peers:
        peer.close()
    contestants = here + [c for peer in peers for c in peer.contestants]
    return report(shape, m, threads, read, contestants)


def report(shape, m: int, threads: int, read: Contestant, contestants: list[Entrant]) -> dict:
    """Medians over rounds; ratios round by round."""
    base = next(c for c in contestants if c.name == "torch fp32")
    rows = []
    for c in contestants:
        rows.append(
            {
                "kernel": c.name,
                "activations": c.activations,
                "bits_per_weight": c.bytes * 8 / (shape[0] * shape[1]),
                "cold_us": c.seconds() * 1e6,
                "cold_gb_s": c.bandwidth() * 1e-9,
                "fraction_of_read": c.fraction(read),
                "times_torch_fp32": c.times(base),
                "resident_us": c.seconds(RESIDENT) * 1e6,
                "resident_gb_s": c.bandwidth(RESIDENT) * 1e-9,
                "relative_error": c.error,
                "cold_rounds_us": [s * 1e6 for s in c.rounds[COLD]],
            }
        )
    gb_s = read.bandwidth() * 1e-9
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
    parser.add_argument("--search", action="store_true", help="QIGen's micro kernel, by time")
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
