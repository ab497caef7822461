"""Perplexity after quantization by lutlab, beside public implementations on the same model and calibration tokens.

    python benchmarks/bench_accuracy.py [--models llama-embedded-s opt-embedded-s --q 4 3 --g 32 64 128 --seeds 0 1 2]
        [--out a.json] --peer-python <python of an environment that has llmcompressor>

Each peer quantizes in an environment of its own (accuracy_peers.py). All perplexities are of one evaluator in one
process, on held-out text. A peer that fails at a setting is a row with its reason.

Like is set beside like (PAIRS): asymmetric grids, damping 0.01 of the mean diagonal, no act order unless named, H of
the model quantized so far and of whole blocks at a time (peers/llmcompressor.py). Scales are float16 in ours unless
named, float32 in llm-compressor. Methods at their best settings, at 2 bits too: bench_accuracy_peers.py.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import origin
import torch
from accuracy_peers import Material, ask, with_weights

import lutlab

# row name -> method and options
OURS = {
    "rtn": ("rtn", {}),
    "rtn fp32 scales": ("rtn", {"scale_dtype": "fp32"}),
    "gptq": ("gptq", {}),
    "gptq static_groups": ("gptq", {"static_groups": True}),
    "gptq static_groups fp32 scales": ("gptq", {"static_groups": True, "scale_dtype": "fp32"}),
    "gptq act_order": ("gptq", {"act_order": True}),
    "gptq act_order static_groups": ("gptq", {"act_order": True, "static_groups": True}),
    "gptq_bcq": ("gptq_bcq", {}),
    "awq": ("awq", {}),
    "awq clip=false": ("awq", {"clip": False}),
}
# peer -> row name of what it runs -> our row of the same settings
PAIRS = {
    "llmcompressor": {
        "rtn": "rtn fp32 scales",
        "gptq": "gptq static_groups fp32 scales",
        "gptq actorder=static": "gptq act_order static_groups",
        "awq": "awq clip=false",
    },
}


def measure_model(name: str, seed: int, args: argparse.Namespace) -> dict:
    """Rows of one model, an embedded one's name or a folder, on the calibration windows of one seed."""
    material = Material(name, args.samples, args.seqlen, seed)
    rows = []

    def add(who: str, method: str, q: int, g: int, found: dict) -> None:
        row = {"implementation": who, "method": method, "q": q, "g": g, **found}
        rows.append(row)
        print(name, row, file=sys.stderr, flush=True)

    for q, g in itertools.product(args.q, args.g):
        for method, (registered, options) in OURS.items():
            if method in args.without:
                continue
            model = lutlab.quantize(
                material.fresh(), registered, q, g, calibration=material.ids, **options
            )
            add("lutlab", method, q, g, {"ppl": material.perplexity(model)})
    for peer in args.peers if args.peer_python else ():
        methods = [method for method in PAIRS[peer] if method not in args.without]
        wanted = [(m, q, g) for q in args.q for g in args.g for m in methods]
        with tempfile.TemporaryDirectory() as work:
            asked = (args.peer_python, material.folder, material.ids, wanted, Path(work))
            for method, q, g, facts, dense in ask(peer, *asked, args.threads):
                if dense is None:
                    add(peer, method, q, g, {"not_run": facts["not_run"]})
                    continue
                model = with_weights(material.fresh(), dense)
                add(peer, method, q, g, {"ppl": material.perplexity(model)})
    return material.facts() | {"rows": rows}


def comparisons(models: list[dict]) -> Iterator[tuple[str, str, str, list[float]]]:
    """Peer, its method, our method and log(our ppl / its ppl) of every model, seed, q and g that it finished."""
    for peer, pairs in PAIRS.items():
        for theirs, ours in pairs.items():
            logs = []
            for model in models:
                ppl = {
                    (r["implementation"], r["method"], r["q"], r["g"]): r.get("ppl")
                    for r in model["rows"]
                }
                for (who, method, q, g), value in ppl.items():
                    own = ppl.get(("lutlab", ours, q, g))
                    if (who, method) == (peer, theirs) and value and own:
                        logs.append(math.log(own / value))
            if logs:
                yield peer, theirs, ours, logs


def table(result: dict) -> str:
    """A block a model, a line an implementation and method, a column a (q, g); then ours over theirs."""
    lines = []
    for model in result["models"]:
        columns = list(dict.fromkeys((row["q"], row["g"]) for row in model["rows"]))
        lines += [
            f"{model['model']}, seed {model['seed']}: full precision {model['full_precision_ppl']:.4f}, perplexity"
        ]
        lines += [" " * 44 + "".join(f"{f'q{q} g{g}':>10}" for q, g in columns)]
        for who, method in dict.fromkeys((r["implementation"], r["method"]) for r in model["rows"]):
            own = [r for r in model["rows"] if (r["implementation"], r["method"]) == (who, method)]
            cells = [f"{r['ppl']:10.4f}" if "ppl" in r else f"{'not run':>10}" for r in own]
            lines += [f"  {who:14} {method:28}" + "".join(cells)]
            lines += [f"    not run: {why}" for why in {r.get("not_run") for r in own} - {None}]
    lines += [
        "ours / its perplexity: geometric mean over all columns, standard error, ours lower in"
    ]
    for peer, theirs, ours, logs in comparisons(result["models"]):
        spread = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan
        lines += [
            f"  {ours:28} / {peer + ' ' + theirs:36} {math.exp(statistics.mean(logs)):.4f} +- {spread:.4f}"
            f"  {sum(x < 0 for x in logs)} of {len(logs)}"
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models",
        nargs="+",
        default=["llama-embedded-s", "opt-embedded-s"],
        help="embedded names or folders",
    )
    parser.add_argument("--q", type=int, nargs="+", default=[4, 3])
    parser.add_argument("--g", type=int, nargs="+", default=[32, 64, 128])
    parser.add_argument("--samples", type=int, default=32, help="calibration windows")
    parser.add_argument("--seqlen", type=int, default=512)
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the calibration windows"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--peer-python", help="python of the environment that has the peers")
    parser.add_argument("--peers", nargs="+", choices=PAIRS, default=list(PAIRS))
    parser.add_argument("--without", nargs="+", default=[], help="rows to leave out")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result = {key: getattr(args, key) for key in ("samples", "seqlen", "threads")}
    result |= {"torch": torch.__version__, "ours": {k: v[1] for k, v in OURS.items()}}
    result["models"] = []
    for name, seed in itertools.product(args.models, args.seeds):
        result["models"].append(measure_model(name, seed, args))
        if args.out:  # after each model: a run of hours may be cut short
            origin.write(args.out, result)
    print(table(result))


if __name__ == "__main__":
    main()
