"""Quantize and evaluate a model several times larger than the memory it may use, block by block.

    python benchmarks/bench_streaming.py [--method gptq --layers 45 --limit-gb 3 --out bench.json]

A synthetic LLaMA (hidden 2048, feed-forward 5632, vocabulary 32000) of float32 weights drawn when a block is opened;
quantized blocks go to --work and are read back once a batch of the evaluation. The goal: peak resident memory of the
whole process, interpreter and libraries included, of at most --limit-gb. RLIMIT_DATA is set to what is left of that
after the imports, so that a leak ends the run instead of swapping.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import tempfile
import time
from pathlib import Path

import origin
import torch
from transformers import LlamaConfig

from lutlab.base.specs import ModelSpec
from lutlab.compress.driver import quantize_model
from lutlab.compress.kept_blocks import BlockStore
from lutlab.compress.widths import widths
from lutlab.evaluators.perplexity import window_nll
from lutlab.models.families import kinds
from lutlab.models.load import load_model
from lutlab.quantizers.contract import Calibrated, make_method


def peak_gb() -> float:
    """Largest resident set of this process so far, in 10^9 bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def data_bytes() -> int:
    """Private writable memory of this process in bytes, which RLIMIT_DATA counts."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmData"].split()[0]) * 1024


def config(arguments: argparse.Namespace) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=arguments.layers,
        num_attention_heads=32,
        num_key_value_heads=32,
        vocab_size=32000,
    )


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Load, quantize, evaluate; sizes in 10^9 bytes, times in seconds."""
    config(arguments).save_pretrained(folder / "model")
    spec = ModelSpec("synthetic", "synthetic", str(folder / "model"))
    began = time.perf_counter()
    loaded = load_model(spec, torch.float32, "cpu", seed=0, stream=True)
    model, kept = loaded.model, BlockStore(folder / "blocks" / "bench")
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(
        model.config.vocab_size, (arguments.windows, arguments.seqlen), generator=draw
    )
    quantizer = make_method(arguments.method)
    calibrated = isinstance(quantizer, Calibrated)
    loaded_at = time.perf_counter()
    layers = quantize_model(
        model,
        quantizer,
        widths(kinds(model.config), arguments.q, arguments.g),
        ids if calibrated else None,
        blocks=loaded.blocks,
        kept=kept,
    )
    quantized_at, quantize_peak = time.perf_counter(), peak_gb()
    loaded.blocks.serve(kept.serve)
    window_nll(model, ids.flatten(), arguments.seqlen)
    held = sum(p.numel() * p.element_size() for p in model.parameters() if not p.is_meta)
    weights = sum(layer.out_features * layer.in_features for layer in layers)
    return {
        "float32_gb": (4 * weights + held) / 1e9,
        "quantized_gb": sum(layer.bits_stored for layer in layers) / 8e9,
        "held_gb": held / 1e9,
        "load_seconds": loaded_at - began,
        "quantize_seconds": quantized_at - loaded_at,
        "quantize_peak_gb": quantize_peak,
        "evaluate_seconds": time.perf_counter() - quantized_at,
        "peak_gb": peak_gb(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", default="rtn")
    parser.add_argument("--q", type=int, default=4)
    parser.add_argument("--g", type=int, default=128)
    parser.add_argument("--layers", type=int, default=45)
    parser.add_argument("--windows", type=int, default=2, help="calibrated on and evaluated")
    parser.add_argument("--seqlen", type=int, default=512)
    parser.add_argument("--limit-gb", type=float, default=3.0)
    parser.add_argument(
        "--work", type=Path, help="where quantized blocks go; default: a temporary folder"
    )
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    arguments = parser.parse_args()
    baseline = peak_gb()
    limit = data_bytes() + int((arguments.limit_gb - baseline) * 1e9)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    with tempfile.TemporaryDirectory(dir=arguments.work) as folder:
        measured = measure(arguments, Path(folder))
    facts = {
        **{k: v for k, v in vars(arguments).items() if k not in ("work", "out")},
        "baseline_gb": baseline,
        **{key: round(value, 3) for key, value in measured.items()},
        "rlimit_data_gb": limit / 1e9,
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],
        "cpu": platform.machine(),
        "torch": torch.__version__,
    }
    for key, value in facts.items():
        print(f"{key:20} {value}")
    ratio = facts["float32_gb"] / facts["peak_gb"]
    verdict = "met" if facts["peak_gb"] <= arguments.limit_gb else "MISSED"
    print(f"weights are {ratio:.1f} times the peak; goal of {arguments.limit_gb} GB {verdict}")
    if arguments.out:
        origin.write(arguments.out, facts)


if __name__ == "__main__":
    main()
