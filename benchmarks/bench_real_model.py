"""A real model and its quantized folders: answers, sizes, KLD along the blocks, speed and memory, llama.cpp beside.

    lutlab quantize smollm2-135m method=hessian_bcq q=3 g=64 out=three
    python benchmarks/bench_real_model.py three [two …] [--model smollm2-135m --threads 2 --rounds 5] [--out bench.json]

    answers      greedy, by the chat template, by each model; llama.cpp's are of the model's own GGUF file as it is
    KLD          mean of KL(full precision || quantized) in nats a token, with the first n blocks quantized and the
                 others in full precision, n = 1, 2, …, on windows of held-out documentation of Python
    tokens/s     greedy steps behind a text of --context tokens; all take turns, as in bench_engine.py
    memory       growth of the resident set of a process of its own that loads one and decodes as many tokens, from
                 its imports on to its peak (bench_synthetic_memory.py); files that are mapped count as far as read

Each folder's config.json says its method only as formats, widths and groups; name folders by what they are. Full
precision is float32 on a CPU. llama.cpp runs where the model is a GGUF file and llama-cpp-python is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import origin
import torch
import transformers.models.llama.modeling_llama  # noqa: F401  imported before memory is looked at
from bench_engine import GGML, context_of, of_engine, of_llama_cpp
from bench_synthetic_memory import resident

import lutlab
from lutlab.base.quiet import quiet
from lutlab.base.specs import ModelSpec, TextSpec
from lutlab.checkpoint.stored import load_stored
from lutlab.data import load_text
from lutlab.data.tokens import token_stream
from lutlab.experiment.run import cli
from lutlab.generate.text import encoded
from lutlab.measure.timing import RESIDENT, CpuTimer, race
from lutlab.models.families import linear_layers
from lutlab.models.load import LoadedModel, folder_of, gguf_of, load_model
from lutlab.modules import QuantLinear
from lutlab.peers.llama_cpp.gguf_model import Decoder

FULL = "full precision"
QUESTION = "What is the capital of France?"


@dataclass
class One:
    """A model by name, with the bytes of its weights' files, and stored bits a weight of its blocks' layers."""

    name: str
    loaded: LoadedModel
    file_bytes: int
    bits: float


def spec_of(name: str) -> ModelSpec:
    """A folder, or a preset of conf/model."""
    if (Path(name) / "config.json").is_file():
        return ModelSpec(Path(name).name, "folder", name)
    return cli.composed([f"model={name}"], ()).model


def opened(spec: ModelSpec, *, stored: bool) -> LoadedModel:
    """A model in float32 with its tokenizer, of a folder that lutlab.save wrote, or in full precision."""
    if stored:
        return load_stored(spec, torch.float32, "cpu")[0]
    return load_model(spec, torch.float32, "cpu", seed=0)


def models(args: argparse.Namespace) -> Iterator[One]:
    """Full precision, then the folders."""
    for name in (args.model, *args.folders):
        spec = spec_of(name)
        loaded = opened(spec, stored=name != args.model)
        layers = [module for _, module in linear_layers(loaded.model)]
        packed = [layer.packed for layer in layers if isinstance(layer, QuantLinear)]
        weights = sum(one.shape[0] * one.shape[1] for one in packed)
        bits = sum(one.bits_stored for one in packed) / weights if packed else 32.0
        size = sum(file.stat().st_size for file in folder_of(spec).glob("*.safetensors"))
        yield One(FULL if name == args.model else spec.name, loaded, size, bits)


# ---- KLD along the blocks ----


def along_blocks(full: Any, quantized: Any, windows: torch.Tensor) -> list[float]:
    """KLD with the first 1, 2, … blocks quantized, the others and all else of `full`, which is left as it was."""
    blocks, before = full.model.layers, list(full.model.layers)
    expected = [log_probabilities(full, window) for window in windows]
    found = []
    try:
        for index, block in enumerate(quantized.model.layers):
            blocks[index] = block
            pairs = zip(windows, expected, strict=True)
            found.append(
                sum(divergence(p, log_probabilities(full, w)) for w, p in pairs) / len(windows)
            )
    finally:
        for index, block in enumerate(before):
            blocks[index] = block
    return found


def log_probabilities(model: Any, window: torch.Tensor) -> torch.Tensor:
    """[S, V] float32 of each next token."""
    with torch.inference_mode():
        logits = model(input_ids=window[None], use_cache=False).logits[0]
    return logits.float().log_softmax(-1)


def divergence(p: torch.Tensor, q: torch.Tensor) -> float:
    """Mean of KL(p || q) over rows of log probabilities, in nats."""
    return float((p.exp() * (p - q)).sum(-1).double().mean())


# ---- answers, speed ----


def answer_of_llama_cpp(decoder: Decoder, tokenizer: Any, args: argparse.Namespace) -> str:
    """The greedy answer to the same ids."""
    (ids,) = encoded(tokenizer, [args.question], chat=True)
    decoder.rewind()
    for token in ids.tolist():
        logits = decoder.step(token)
    said: list[int] = []
    while len(said) < args.answer and (token := int(logits.argmax())) != tokenizer.eos_token_id:
        said.append(token)
        logits = decoder.step(token)
    decoder.rewind()
    return tokenizer.decode(said, skip_special_tokens=True)


def add_speeds(
    ours: list[One], decoder: Decoder | None, rows: list[dict[str, Any]], args: argparse.Namespace
) -> None:
    """Race all rows, and put what it says into them."""
    everyone = []
    for one, row in zip(ours, rows, strict=False):  # llama.cpp's row is the last
        engine = lutlab.engine(one.loaded.model, 1, args.length, args.cache)
        everyone.append(of_engine(one.name, engine, args))
        row["facts"] = engine.facts()
    if decoder:
        size = int(1e6 * rows[-1]["file_mb"])
        everyone.append(of_llama_cpp(rows[-1]["name"], decoder, args, size))
    race(everyone, CpuTimer(args.tokens), args.rounds, (RESIDENT,))
    for row, one in zip(rows, everyone, strict=True):
        low, high = one.spread(RESIDENT)
        row |= {
            "tokens_per_s": 1 / one.seconds(RESIDENT),
            "ms_quartiles": [1e3 * low, 1e3 * high],
            "rounds_ms": [1e3 * seconds for seconds in one.rounds[RESIDENT]],
            "gb_read": one.bytes / 1e9,
        }
        print(f"{one.name}: {row['tokens_per_s']:.1f} tokens/s")


# ---- memory ----


def add_memory(rows: list[dict[str, Any]], file: Path | None, args: argparse.Namespace) -> None:
    """Put into the rows what a process of each saw."""
    kinds = ["full", *("stored" for _ in args.folders), "llama.cpp"]
    for row, kind, name in zip(rows, kinds, [args.model, *args.folders, str(file)], strict=False):
        row["memory"] = memory(kind, name, args)
        print(f"{row['name']}: memory {row['memory']['growth_gb']:.3f} GB")


def memory(kind: str, name: str, args: argparse.Namespace) -> dict[str, float]:
    """What a process of its own saw (alone)."""
    numbers = ("context", "tokens", "threads")
    given = [part for key in numbers for part in (f"--{key}", str(getattr(args, key)))]
    command = [sys.executable, __file__, name, "--alone", kind, "--cache", args.cache, *given]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def alone(kind: str, name: str, args: argparse.Namespace) -> dict[str, float]:
    """Load and decode in this process; sizes in 10^9 bytes."""
    if kind == "llama.cpp":
        import llama_cpp  # noqa: F401

        before = resident("VmRSS")
        with Decoder(Path(name), args.length, args.threads, GGML[args.cache], True) as decoder:
            for token in range(args.context + args.tokens):
                decoder.step(token)
    else:
        spec, before = spec_of(name), resident("VmRSS")
        model = opened(spec, stored=kind == "stored").model
        engine = lutlab.engine(model, length=args.length, cache=args.cache)
        logits = engine.prefill([context_of(engine, args)])
        engine.greedy(logits.argmax(-1), args.tokens)
    peak = resident("VmHWM")
    return {"libraries_gb": before / 1e9, "peak_gb": peak / 1e9, "growth_gb": (peak - before) / 1e9}


# ---- all of it ----


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Every row, and what they have in common."""
    torch.set_num_threads(args.threads)
    with quiet():
        full, *others = models(args)
    tokenizer = full.loaded.tokenizer
    text = load_text(TextSpec("topics", "embedded"))
    ids = token_stream(text, tokenizer, args.seqlen)
    windows = ids[: args.windows * args.seqlen].view(args.windows, args.seqlen)
    rows = []
    for one in (full, *others):
        row = {"name": one.name, "bits_per_weight": one.bits, "file_mb": one.file_bytes / 1e6}
        said = lutlab.complete(one.loaded.model, tokenizer, args.question, args.answer, chat=True)
        row |= {"answer": said, "kld_along_blocks": None}
        if one is not full:
            row["kld_along_blocks"] = along_blocks(full.loaded.model, one.loaded.model, windows)
        rows.append(row)
        print(f"{one.name}: {one.bits:.2f} bits\n> {args.question}\n{said}\n", flush=True)
    file = gguf_of(spec_of(args.model))
    with ExitStack() as stack:
        decoder = None
        if file and importlib.util.find_spec("llama_cpp"):
            (ids,) = encoded(tokenizer, [args.question], chat=True)
            length = max(args.length, len(ids) + args.answer)
            decoder = Decoder(file, length, args.threads, GGML[args.cache], True)
            stack.enter_context(decoder)
            name, said = f"llama.cpp, {file.name}", answer_of_llama_cpp(decoder, tokenizer, args)
            rows.append({"name": name, "answer": said, "file_mb": file.stat().st_size / 1e6})
            print(f"{name}\n> {args.question}\n{said}\n", flush=True)
        if args.rounds:
            add_speeds([full, *others], decoder, rows, args)
    if args.rounds:
        add_memory(rows, file, args)
    about = {
        key: getattr(args, key) for key in ("model", "question", "answer", "context", "tokens")
    }
    about |= {"cache": args.cache, "threads": args.threads, "text": text.origin}
    return about | {"windows": args.windows, "seqlen": args.seqlen, "rows": rows}


def main() -> None:
    """Measure and print; --out also writes a JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folders", nargs="+", help="quantized models, each a folder of lutlab.save")
    parser.add_argument("--model", default="smollm2-135m", help="a preset, or a folder")
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--answer", type=int, default=64, help="most tokens of an answer")
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--seqlen", type=int, default=512)
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=32, help="timed a round")
    parser.add_argument("--cache", default="float16", choices=GGML, help="of keys and values")
    parser.add_argument("--rounds", type=int, default=5, help="0: no speed, no memory")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, help="a JSON file")
    parser.add_argument("--alone", choices=("full", "stored", "llama.cpp"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.length = args.context + args.tokens + 1
    if args.alone:
        torch.set_num_threads(args.threads)
        with quiet():
            print(json.dumps(alone(args.alone, *args.folders, args)))
        return
    found = measure(args)
    if args.out:
        origin.write(args.out, found)


if __name__ == "__main__":
    main()
