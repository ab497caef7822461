"""Perplexity at 2 to 4 bits by lutlab's methods, beside public code: same model, calibration windows, evaluator.

    python benchmarks/bench_accuracy_peers.py --work a-folder [--models opt-embedded-s llama-embedded-s --q 2 3 4]
        [--g 32 128 --methods rtn gptq hessian_bcq:target=stream,true_sequential=true] [--out a.json]
        --peer gptqmodel=<python of its environment> --peer llmcompressor=… --peer auto_round=… --peer efficientqat=…

A peer runs in its own environment, by its file of peers/, which states its settings, and hands over dequantized
weights in float32. They are loaded into the plain model here, so all perplexities are of one evaluator. A row says
where a peer left layers that lutlab quantizes, changed anything else, or gave a group more than 2^q values. A method
that fails is a row with its reason. How environments are made: benchmarks/README.md.

Bits are those of lutlab's stored layout; of a peer those of uniform codes of that q and g with a float16 scale and a
zero point a group, which is what its own checkpoint holds, some with zero points that are all alike.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import origin
import torch
from accuracy_peers import Material, ask, levels, with_weights
from peers import able

import lutlab
from lutlab.base.errors import LutlabError
from lutlab.modules import QuantLinear
from lutlab.peers.contract import QuantizesModels

PEERS = able(QuantizesModels)
METHODS = (
    "rtn",
    "gptq",
    "gptq_bcq",
    "hessian_bcq",
    "hessian_bcq:target=stream,true_sequential=true",
)
# What is not asked of a peer unless named: of other settings than the others, for bench_accuracy.py.
UNASKED = {"llmcompressor": ("rtn", "awq")}


@dataclass(frozen=True)
class Own:
    """A method of lutlab as named on the command line: `gptq`, `gptq:act_order=true,tuning.steps=100`."""

    label: str
    method: str
    options: dict[str, Any] = field(default_factory=dict)
    tuning: dict[str, Any] = field(default_factory=dict)


def own(text: str) -> Own:
    """Values are JSON where they can be read so, else words."""
    method, _, rest = text.partition(":")
    options, tuning = {}, {}
    for pair in filter(None, rest.split(",")):
        key, equals, value = pair.partition("=")
        if not (key and equals):
            raise argparse.ArgumentTypeError(f"'{pair}' in '{text}': expected <option>=<value>")
        with contextlib.suppress(json.JSONDecodeError):
            value = json.loads(value)
        where, key = (tuning, key[7:]) if key.startswith("tuning.") else (options, key)
        where[key] = value
    return Own(text, method, options, tuning)


def peer(text: str) -> tuple[str, str]:
    name, _, python = text.partition("=")
    if name not in PEERS or not python:
        raise argparse.ArgumentTypeError(
            f"'{text}': expected <peer>=<python>, a peer of {', '.join(PEERS)}"
        )
    return name, python


def stored_bits(model: torch.nn.Module) -> tuple[float, set[str]]:
    """Bits a weight over all layers that lutlab quantized, and their names."""
    layers = {name: m.packed for name, m in model.named_modules() if isinstance(m, QuantLinear)}
    sizes = {name: packed.shape[0] * packed.shape[1] for name, packed in layers.items()}
    bits = sum(packed.bits_per_weight * sizes[name] for name, packed in layers.items())
    return bits / sum(sizes.values()), set(layers)


def own_rows(material: Material, wanted: list[Own], q: int, g: int) -> Iterator[dict[str, Any]]:
    for entry in wanted:
        row = {"implementation": "lutlab", "version": lutlab.__version__, "method": entry.label}
        row |= {"q": q, "g": g, "options": entry.options | entry.tuning}
        row["gradient"] = bool(entry.tuning)
        start = time.perf_counter()
        try:
            tuning = {"tuning": lutlab.Tuning(**entry.tuning)} if entry.tuning else {}
            model = lutlab.quantize(
                material.fresh(),
                entry.method,
                q,
                g,
                calibration=material.ids,
                **tuning,
                **entry.options,
            )
        except (LutlabError, TypeError) as error:  # TypeError: no such field of Tuning
            yield row | {"not_run": str(error)}
            continue
        row["seconds"] = time.perf_counter() - start
        yield row | {"bits_per_weight": stored_bits(model)[0], "ppl": material.perplexity(model)}


def differences(
    material: Material, dense: dict[str, torch.Tensor], layers: set[str], q: int, g: int
) -> dict[str, list[str]]:
    """Names of layers that a peer left as they were or gave too many values, and of what else it changed."""
    before = material.model.state_dict()
    weights = {f"{name}.weight" for name in layers}
    changed = {name for name, value in before.items() if not torch.equal(value, dense[name])}
    wide = [name for name in weights & changed if levels(dense[name], g) > 2**q]
    found = {
        "not_quantized": weights - changed,
        "beside": changed - weights,
        "too_many_values": wide,
    }
    return {name: sorted(which) for name, which in found.items() if which}


def peer_rows(
    material: Material, name: str, python: str, args: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    left_out = {*UNASKED.get(name, ())} - {*args.ways}
    ways = [
        way
        for way in PEERS[name].ways
        if way in args.ways or (not args.ways and way not in left_out)
    ]
    rows = [(way, q, g) for q in args.q for g in args.g for way in ways]
    work = args.work / f"{material.name}-seed{material.seed}-{len(material.ids)}" / name
    uniform = {}  # (q, g) -> bits and layers
    for method, q, g, facts, dense in ask(
        name, python, material.folder, material.ids, rows, work, args.threads
    ):
        row = {"implementation": name, "method": method, "q": q, "g": g, **facts}
        if dense is not None:
            if (q, g) not in uniform:
                uniform[q, g] = stored_bits(lutlab.quantize(material.fresh(), "rtn", q, g))
            bits, layers = uniform[q, g]
            row |= differences(material, dense, layers, q, g)
            model = with_weights(material.fresh(), dense)
            row |= {"bits_per_weight": bits, "ppl": material.perplexity(model)}
        yield row


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Rows of one model, an embedded one's name or a folder."""
    material = Material(name, args.samples, args.seqlen, args.seed, args.texts)
    found = material.facts() | {"rows": []}

    def add(row: dict[str, Any]) -> None:
        if "ppl" in row:
            row["excess"] = row["ppl"] - found["full_precision_ppl"]
        found["rows"].append(row)
        print(name, row, file=sys.stderr, flush=True)

    for q in args.q:
        for g in args.g:
            for row in own_rows(material, args.methods, q, g):
                add(row)
    for peer_name, python in args.peer:
        for row in peer_rows(material, peer_name, python, args):
            add(row)
    return found


def remarks(row: dict[str, Any]) -> str:
    said = {
        "not_quantized": "layers left as they were",
        "beside": "other tensors changed",
        "too_many_values": "layers of more than 2^q values a group",
    }
    return "; ".join(f"{len(row[key])} {words}" for key, words in said.items() if key in row)


def table(result: dict[str, Any]) -> str:
    """A block a model, q and g, a line a method; then the mean excess over the models."""
    lines, excess = [], {}
    for model in result["models"]:
        rows = model["rows"]
        for q, g in dict.fromkeys((row["q"], row["g"]) for row in rows):
            lines += [
                f"{model['model']}, q={q} g={g}, full precision {model['full_precision_ppl']:.4f}",
                f"  {'':14} {'':10} {'':46} {'bits':>6} {'ppl':>9} {'excess':>8} {'seconds':>8}  gradients",
            ]
            for row in (row for row in rows if (row["q"], row["g"]) == (q, g)):
                who = f"  {row['implementation']:14} {row.get('version', ''):10} {row['method']:46}"
                if "not_run" in row:
                    lines += [f"{who} not run: {row['not_run']}"]
                    continue
                key = q, g, row["implementation"], row["method"]
                excess.setdefault(key, []).append(row["excess"])
                lines += [
                    f"{who} {row['bits_per_weight']:6.3f} {row['ppl']:9.4f} {row['excess']:8.4f} "
                    f"{row['seconds']:8.1f}  {'yes' if row['gradient'] else 'no':4}{remarks(row)}"
                ]
    whole = {key: found for key, found in excess.items() if len(found) == len(result["models"])}
    lines += [f"mean excess over {len(result['models'])} models"]
    for (q, g, who, method), found in whole.items():
        lines += [f"  q={q} g={g:<4} {who:14} {method:46} {statistics.mean(found):8.4f}"]
    return "\n".join(lines)


def parsed(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--models", nargs="+", default=["opt-embedded-s", "llama-embedded-s"])
    add("--q", type=int, nargs="+", default=[2, 3])
    add("--g", type=int, nargs="+", default=[128])
    add("--methods", type=own, nargs="*", default=[own(method) for method in METHODS])
    add("--peer", type=peer, action="append", default=[], help="<peer>=<python that has it>")
    add("--ways", nargs="+", default=[], help="methods of the peers, where not all are wanted")
    add("--samples", type=int, default=128, help="calibration windows")
    add("--seqlen", type=int, default=512)
    add("--seed", type=int, default=0, help="of the calibration windows")
    add("--texts", type=Path, nargs=2, help="files to calibrate on and to evaluate")
    add("--threads", type=int, default=torch.get_num_threads())
    add("--work", type=Path, required=True, help="folder of tokens and peers' weights")
    add("--out", type=Path, help="write the numbers as JSON")
    return parser.parse_args(arguments)


def main() -> None:
    args = parsed()
    torch.set_num_threads(args.threads)
    result = {key: getattr(args, key) for key in ("samples", "seqlen", "seed", "threads")}
    result["models"] = []
    for name in args.models:
        result["models"].append(measure(name, args))
        if args.out:  # after each model: a run of hours may be cut short
            origin.write(args.out, result)
    print(table(result))


if __name__ == "__main__":
    main()
