"""Tokens a second of the engine beside llama.cpp of the same width, head and cache, and transformers in float32.

    python benchmarks/bench_engine.py [--models llama-embedded-m llama-7b --formats uniform4 bcq3 --threads 1 2]
        [--context 32 --tokens 32 --prompt 64 --rounds 5 --cache float16 --layers 8] [--out bench.json]

    lutlab           the best engine that takes the model; `step / kernels`: its step over its products (breakdown)
    llama.cpp        the type of the row's width (gguf_model.py), our head and cache, plain and fused attention, each a
                     copy in memory (--attention plain: one); where inputs of a layer are no multiple of 256 no K type
                     takes them, and q4_0 runs instead
    transformers     the model in float32, its own loop and cache; of a large one 1 and 3 layers, scaled to all

A contestant decodes --tokens greedily behind a text of --context tokens, and all take turns, in one process. A time is
the lower quartile of the tokens of a round, printed are medians over the rounds, ratios are taken round by round. With
--prompt, ours and llama.cpp then read a text of so many tokens in turn, to the logits of its last one. Large models
have drawn weights: llama.cpp's file then repeats the first block, in bytes of its own, as a speed does not depend on
values. What llama.cpp computes is checked (evaluators/llama_cpp.py) on a model of the first block.

llama-cpp-python and gguf are no dependencies of lutlab: without them, there is no such row.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import origin
import torch

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.base.specs import ModelSpec
from lutlab.evaluators import llama_cpp
from lutlab.evaluators.llama_cpp import CHECKED, check
from lutlab.generate.contract import Engine
from lutlab.gguf import file as gguf_file
from lutlab.gguf.file import Encoded
from lutlab.measure.timing import RESIDENT, Contestant, CpuTimer, cpu_reader, race
from lutlab.models.load import embedded_names, load_model
from lutlab.peers.llama_cpp import gguf_model
from lutlab.peers.llama_cpp.gguf_model import Decoder

GROUP = 128
METHODS = {"uniform": "rtn", "bcq": "bcq", "none": "none"}
READ = 256 * 2**20  # bytes, more than a cache holds
GGML = {"float16": "f16", "float32": "f32"}
DENSE_LAYERS = (1, 3)  # of a large model in float32
Dense = tuple[int | None, Engine]  # layers, None: all


class Model:
    """A named model, quantized or not: embedded ones are what they are, others drawn in their size."""

    def __init__(self, name: str, layers: int | None) -> None:
        self.name, self.layers = name, layers
        self.embedded = name in embedded_names()

    def make(self, form: str, layers: int | None = None) -> Any:
        """The model in float32, its linear layers in a format: `bcq3`, `uniform4`, `none`."""
        method, q = METHODS[form.rstrip("0123456789")], int(form[-1]) if form[-1].isdigit() else 16
        if not self.embedded:
            return lutlab.synthetic(
                self.name, method=method, q=q, g=GROUP, layers=layers or self.layers
            )
        spec = ModelSpec(self.name, "embedded", self.name)
        model = load_model(spec, torch.float32, "cpu", seed=0).model
        if method != "none":
            lutlab.quantize(model, method=method, q=q, g=GROUP)
        return model


def of_engine(name: str, engine: Engine, args: argparse.Namespace) -> Contestant:
    """Greedy steps of an engine behind the context."""
    ids = context_of(engine, args)
    engine.prefill([ids])
    last = ids[-1:]

    def run(i: int) -> None:
        nonlocal last
        if i == 0:  # is not timed
            engine.rewind(args.context)
        last = engine.step(last).argmax(-1)

    size = sum(engine.bytes_read(args.context).values())
    return Contestant(name, size, args.tokens + 1, run)


def context_of(engine: Engine, args: argparse.Namespace) -> torch.Tensor:
    """The tokens before those that are timed."""
    return torch.arange(args.context) % engine.vocabulary


def of_llama_cpp(name: str, decoder: Decoder, args: argparse.Namespace, size: int) -> Contestant:
    """The same of llama.cpp."""
    for token in range(args.context):
        decoder.step(token)
    last = args.context - 1

    def run(i: int) -> None:
        nonlocal last
        if i == 0:
            decoder.rewind(args.context)
        last = int(decoder.step(last).argmax())

    return Contestant(name, size, args.tokens + 1, run)


def prompt_ms(engine: Engine, decoders: dict[str, Decoder], args: argparse.Namespace) -> dict:
    """Name -> medians over the rounds, and ratios round by round, of a text of --prompt tokens, read at once."""
    ids = torch.arange(args.prompt) % engine.vocabulary
    tokens = ids.tolist()

    def of_peer(decoder: Decoder) -> Contestant:
        def run(_: int) -> None:
            decoder.llama.reset()
            decoder.llama.eval(tokens)

        return Contestant("", 0, 2, run)

    ours = Contestant("", 0, 2, lambda _: engine.prefill([ids]))
    everyone = {"lutlab": ours} | {name: of_peer(decoder) for name, decoder in decoders.items()}
    race(list(everyone.values()), CpuTimer(1), args.rounds, (RESIDENT,))
    return {
        name: {
            "ms": 1e3 * one.seconds(RESIDENT),
            "lutlab_is_times_as_fast": ours.times(one, RESIDENT),
        }
        for name, one in everyone.items()
    }


@dataclass
class Peer:
    """A model as a file of llama.cpp: its type, head, bytes that a token reads of it, and what the check said."""

    path: Path
    kind: str
    head: str
    size: int
    checked: dict[str, float]


def repeated(found: dict[str, Encoded], blocks: int) -> dict[str, Encoded]:
    """A model of so many blocks, all as the first."""
    whole = {name: tensor for name, tensor in found.items() if not name.startswith("blk.")}
    for name, tensor in found.items():
        if name.startswith("blk.0."):
            rest = name.removeprefix("blk.0.")
            whole |= {f"blk.{index}.{rest}": tensor for index in range(blocks)}
    return whole


def peer(model: Model, quantized: Any, form: str, head: str, folder: Path) -> Peer | None:
    """The file, checked; None where llama.cpp is not installed."""
    if not all(map(importlib.util.find_spec, ("llama_cpp", "gguf"))):
        print("  no llama.cpp: pip install llama-cpp-python gguf, in an environment of its own")
        return None
    threads, path = torch.get_num_threads(), folder / "model.gguf"
    one = quantized if model.embedded else model.make(form, layers=1)
    kind = gguf_model.type_for(int(form[-1]))
    try:
        gguf_model.check_inputs(one, kind, head)
    except LutlabError as error:
        print(f"  {error}")
        kind = "q4_0"
    encoded = gguf_model.encode(one, kind, head, threads)
    gguf_file.write(one.config, encoded, path)
    with Decoder(path, CHECKED, threads) as decoder:
        said = check(one, encoded, decoder, 1)
    if one is not quantized:  # drawn weights, whose speed is that of any others
        encoded = repeated(encoded, quantized.config.num_hidden_layers)
        gguf_file.write(quantized.config, encoded, path)
    size = sum(t.values.nbytes for name, t in encoded.items() if name != "token_embd.weight")
    return Peer(path, kind, head, size, said)


def measure(model: Model, form: str, dense: list[Dense], args: argparse.Namespace) -> list[dict]:
    """A model in one format by every number of threads."""
    found = []
    with tempfile.TemporaryDirectory(prefix="lutlab-") as folder:
        torch.set_num_threads(max(args.threads))
        quantized = model.make(form)
        engine = lutlab.engine(quantized, length=args.length, cache=args.cache)
        head = GGML[engine.facts()["head"]]
        cached = engine.bytes_read(args.context)["cache"]
        there = peer(model, quantized, form, head, Path(folder))
        for threads in args.threads:
            torch.set_num_threads(threads)
            with ExitStack() as stack:
                peers = decoders(there, stack, args) if there else {}
                others = [
                    of_llama_cpp(name, decoder, args, there.size + cached)
                    for name, decoder in peers.items()
                ]
                facts = {
                    "head": head,
                    "cache": GGML[args.cache],
                    **(there.checked if there else {}),
                }
                result = raced(engine, others, facts, dense, args)
                if args.prompt:
                    result |= {"prompt": args.prompt, "prompt_ms": prompt_ms(engine, peers, args)}
            about = {"model": model.name, "drawn_weights": not model.embedded, "format": form}
            found.append(about | {"group": GROUP, "threads": threads} | result)
            print(table(found[-1]), flush=True)
    return found


def decoders(there: Peer, stack: ExitStack, args: argparse.Namespace) -> dict[str, Decoder]:
    """llama.cpp with each attention, by name."""
    cache = GGML[args.cache]
    return {
        f"{llama_cpp.name(there.kind)}, {attention} attention": stack.enter_context(
            Decoder(there.path, args.length, torch.get_num_threads(), cache, attention == "fused")
        )
        for attention in args.attention
    }


def raced(
    engine: Engine,
    others: list[Contestant],
    theirs: dict,
    dense: list[Dense],
    args: argparse.Namespace,
) -> dict:
    """All in turn."""
    ours, facts = of_engine("lutlab", engine, args), engine.facts()
    plain = [(layers, of_engine("transformers float32", one, args)) for layers, one in dense]
    everyone = [ours, *others, *(one for _, one in plain)]
    read = cpu_reader(READ, torch.get_num_threads())
    parts: list[dict] = []
    for _ in range(args.rounds):
        race([read], CpuTimer(), 1)
        race(everyone, CpuTimer(args.tokens), 1, (RESIDENT,))
        if facts["engine"] == "cpu_step":
            parts.append(engine.breakdown(args.context))
            engine.prefill([context_of(engine, args)])
    blocks = engine.model.config.num_hidden_layers
    rows = [row(ours, ours, facts)] + [row(one, ours, theirs) for one in others]
    if plain:
        rows.append(row(scaled(plain, blocks), ours, {"head": "float32", "cache": "float32"}))
    least = min(parts, key=lambda one: sum(one.values()), default=None)
    return {
        "layers": blocks, "context": args.context, "tokens": args.tokens,
        "read_gb_s": 1e-9 * read.bandwidth(), "rows": rows,
        "parts_ms": least and {name: 1e3 * seconds for name, seconds in least.items()},
        "step_over_kernels": least and sum(least.values()) / least["matmul"],
    }  # fmt: skip


def dense_ones(model: Model, args: argparse.Namespace) -> list[Dense]:
    """Transformers in float32: the whole of a small model, else few layers."""
    if args.no_dense:
        return []
    return [
        (layers, lutlab.engine(model.make("none", layers), length=args.length, name="transformers"))
        for layers in ((None,) if model.embedded else DENSE_LAYERS)
    ]


def scaled(dense: list[tuple[int | None, Contestant]], blocks: int) -> Contestant:
    """The times of few layers as those of all, round by round."""
    if len(dense) == 1:
        return dense[0][1]
    (few, less), (more, here) = dense
    pairs = zip(less.rounds[RESIDENT], here.rounds[RESIDENT], strict=True)
    rounds = [high + (blocks - more) * (high - low) / (more - few) for low, high in pairs]
    size = here.bytes + (blocks - more) * (here.bytes - less.bytes) // (more - few)
    name = f"{here.name}, scaled from {few} and {more} layers"
    return Contestant(name, size, 1, here.run, {RESIDENT: rounds})


def row(one: Contestant, ours: Contestant, facts: dict) -> dict:
    low, high = one.spread(RESIDENT)
    return {
        "name": one.name, "tokens_per_s": 1 / one.seconds(RESIDENT), "ms": 1e3 * one.seconds(RESIDENT),
        "ms_quartiles": [1e3 * low, 1e3 * high], "gb_read": one.bytes * 1e-9,
        "gb_s": 1e-9 * one.bandwidth(RESIDENT), "lutlab_is_times_as_fast": ours.times(one, RESIDENT),
        "facts": facts, "rounds_ms": [1e3 * s for s in one.rounds[RESIDENT]],
    }  # fmt: skip


def table(result: dict) -> str:
    over = result["step_over_kernels"]
    lines = [
        f"{result['model']}, {result['layers']} layers, {result['format']} g={result['group']}, {result['threads']} "
        f"thread(s), context {result['context']}-{result['context'] + result['tokens']}, "
        f"read {result['read_gb_s']:.1f} GB/s" + (f", step / kernels {over:.3f}" if over else ""),
        f"  {'':62} {'head':>8} {'cache':>8} {'tokens/s':>9} {'ms':>8} {'GB/s':>6} {'lutlab is':>10}",
    ]
    lines += [
        f"  {r['name']:62} {r['facts']['head']:>8} {r['facts']['cache']:>8} {r['tokens_per_s']:9.1f} {r['ms']:8.2f} "
        f"{r['gb_s']:6.1f} {r['lutlab_is_times_as_fast']:9.2f}x"
        for r in result["rows"]
    ]
    for name, r in result.get("prompt_ms", {}).items():
        title = f"a prompt of {result['prompt']} tokens, {name}"
        lines.append(f"  {title:90} {r['ms']:8.1f} {r['lutlab_is_times_as_fast']:17.2f}x")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    models = ["llama-embedded-s", "llama-embedded-m", "llama-7b"]
    parser.add_argument("--models", nargs="+", default=models)
    formats = ["uniform4", "uniform3", "uniform2", "bcq3", "bcq2"]
    parser.add_argument("--formats", nargs="+", default=formats, help="uniform or bcq, and q")
    parser.add_argument(
        "--layers", type=int, help="of models that are drawn; all, where memory allows"
    )
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument(
        "--context", type=int, default=32, help="tokens before those that are timed"
    )
    parser.add_argument("--tokens", type=int, default=32, help="timed a round")
    parser.add_argument("--prompt", type=int, help="tokens of a text that is read at once")
    parser.add_argument("--cache", default="float16", choices=GGML, help="of keys and values")
    parser.add_argument("--rounds", type=int, default=5)
    kinds = ["plain", "fused"]
    parser.add_argument("--attention", nargs="+", default=kinds, choices=kinds, help="llama.cpp's")
    parser.add_argument("--no-dense", action="store_true", help="without transformers in float32")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = parser.parse_args()
    args.length = max(args.context + args.tokens + 1, args.prompt or 0)
    results = []
    for name in args.models:
        model = Model(name, args.layers)
        dense = dense_ones(model, args)
        for form in args.formats:
            results += measure(model, form, dense, args)
            gc.collect()
            if args.out:
                origin.write(args.out, {"results": results})


if __name__ == "__main__":
    main()
