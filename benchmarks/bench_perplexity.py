"""Cost of the perplexity evaluator over the bare forward passes it needs: the target is at most 1.05.

    python benchmarks/bench_perplexity.py             # random weights in OPT-125M's shape, vocabulary cut to 8192
    python benchmarks/bench_perplexity.py --model <folder or id> --device cuda

Both sides run the same windows in the same batches, alternately, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import origin
import torch
from transformers import AutoModelForCausalLM, OPTConfig

from lutlab.evaluators import batch_tokens, evaluation_mode
from lutlab.evaluators.perplexity import window_nll


def bare(model: torch.nn.Module, ids: torch.Tensor, seqlen: int) -> None:
    """The forward passes alone."""
    with evaluation_mode(model):
        for batch in ids.view(-1, seqlen).split(max(1, batch_tokens(model) // seqlen)):
            model(input_ids=batch.to(model.device), use_cache=False)


def seconds(call: object, *arguments: object) -> float:
    """Wall time of a call, the device's work included."""
    began = time.perf_counter()
    call(*arguments)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    """Print seconds of both and their ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="folder or hub id; default: random weights")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--seqlen", type=int, default=0, help="0: the model's context")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    options = parser.parse_args()
    if options.model:
        model = AutoModelForCausalLM.from_pretrained(options.model).float()
    else:
        config = OPTConfig(vocab_size=8192, max_position_embeddings=512)
        model = AutoModelForCausalLM.from_config(config)
    model = model.to(options.device)
    seqlen = options.seqlen or model.config.max_position_embeddings
    torch.manual_seed(0)
    ids = torch.randint(model.config.vocab_size, (options.windows * seqlen,))
    bare(model, ids, seqlen)  # warm up
    pairs = [
        (seconds(bare, model, ids, seqlen), seconds(window_nll, model, ids, seqlen))
        for _ in range(options.repeats)
    ]
    forward, evaluated = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(b / a for a, b in pairs)
    print(
        f"{model.config.model_type}, {model.num_parameters():,} parameters, vocabulary {model.config.vocab_size}, "
        f"{options.windows} windows of {seqlen} on {options.device}\n"
        f"forward {forward:.4f} s, evaluator {evaluated:.4f} s, ratio {ratio:.3f} "
        f"(of {options.repeats}: {' '.join(f'{b / a:.3f}' for a, b in pairs)})"
    )
    if options.out:
        facts = {
            "model": options.model or "random weights, OPT-125M's shape, vocabulary 8192",
            "windows": options.windows,
            "seqlen": seqlen,
            "device": options.device,
            "threads": torch.get_num_threads(),
            "forward_seconds": forward,
            "evaluator_seconds": evaluated,
            "ratio": ratio,
            "ratios": [b / a for a, b in pairs],
        }
        origin.write(options.out, facts)


if __name__ == "__main__":
    main()
