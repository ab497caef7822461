"""Fit the predictor to printed latencies: `python -m tools.fit_latency [--check]`.

    experiments/*.yaml, columns with `predict:` ─▶ predict.fit ─▶ src/lutlab/predict/constants.json
    a machine's benchmarks/*.json ───────────────┘             └▶ docs/how-to/predict.md, its tables of errors

The papers' latencies decide engine `lut-gemm`: in sample, and with each table and each model left out. The published
times of our CPU kernels and of its step decide `lutlab-cpu`. With --check nothing is written: exit code 1 where the
files differ.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lutlab import predict
from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import write_atomically
from lutlab.experiment.artifact.artifact import load_artifact
from lutlab.experiment.artifact.catalog import LEAD_PAPER, artifact_groups
from lutlab.experiment.run.ending import ended
from lutlab.predict.per_token import CONSTANTS, Errors
from tools.fit import (
    CONTEXT,
    Observed,
    errors,
    fit,
    fit_kernels,
    off,
    predicted,
    relative_errors,
)

ENGINE, GPU = "lut-gemm", "A100-80GB"
BENCHMARKS = Path("results/published/amd-epyc-25-1-avx2-2cores/benchmarks")
PRODUCTS, TOKENS = BENCHMARKS / "cpu_gemv_2_threads.json", BENCHMARKS / "engine_llama_7b.json"
METHODS = {"uniform": "rtn", "bcq": "bcq"}  # of the formats of TOKENS
PAGE = Path("docs/how-to/predict.md")
BEGIN, END = "<!-- fitted -->", "<!-- /fitted -->"
SHOWN = 8  # of the rows that are missed by most
# FasterTransformer's docs/gpt_guide.md, "Performance of GPT-20B": 16 bits, batch 1, 80 tokens in, 200 out, on
# A100-80GB; seconds of all 200 by the number of GPUs. No paper's, so it is held out of the fit.
GPT_20B = predict.Decoder(
    "gpt-20b", layers=44, hidden=6144, heads=48, vocabulary=51200, positions=2048,
    products=((3 * 6144, 6144), (6144, 6144), (4 * 6144, 6144), (6144, 4 * 6144)),
    cached=2 * 6144, embedded=2048 * 6144,
)  # fmt: skip
HELD_OUT = [
    Observed(GPT_20B, 16, -1, gpus, 1e3 * seconds / 200, ("FasterTransformer",))
    for gpus, seconds in ((1, 5.609), (2, 3.532), (4, 2.438), (8, 2.053))
]


def observed() -> list[Observed]:
    """The papers' printed latencies of the engine, each once, with all tables that print it."""
    found: dict[tuple[Any, ...], list[str]] = {}
    for name in sorted(artifact_groups()["all"], key=lambda name: not name.startswith(LEAD_PAPER)):
        artifact = load_artifact(name)
        numbers = artifact.numbers()
        for (row, column), of in artifact.predictions().items():
            printed = numbers.get(row, {}).get(column)
            if (of["engine"], of["gpu"]) != (ENGINE, GPU) or not isinstance(printed, int | float):
                continue
            ms = printed / artifact.columns[column].factor
            key = (of["shape"], of["q"], of["g"], of["gpus"], ms)
            if name not in (tables := found.setdefault(key, [])):
                tables.append(name)
    return [
        Observed(predict.decoder(of[0]), *of[1:], where=tuple(tables))
        for of, tables in found.items()
    ]


def by_table(rows: Sequence[Observed]) -> dict[str, list[Observed]]:
    """Table -> its latencies, those that other tables print too among them; without tables that only repeat others."""
    names = dict.fromkeys(name for one in rows for name in one.where)
    found = {name: [one for one in rows if name in one.where] for name in names}
    places = {name: {rows.index(one) for one in own} for name, own in found.items()}
    kept: dict[str, list[Observed]] = {}
    for name in sorted(names, key=lambda name: -len(found[name])):
        if not any(places[name] <= places[other] for other in kept):
            kept[name] = found[name]
    return {name: kept[name] for name in names if name in kept}


def judged(rows: Sequence[Observed]) -> dict[str, Any]:
    """The engine's constants, and their errors in sample and out of it."""
    to = predict.device(GPU)
    rates = fit(rows, to)

    def grouped(key: Callable[[Observed], Any]) -> dict[str, list[Observed]]:
        names = sorted({key(one) for one in rows})
        return {str(name): [one for one in rows if key(one) == name] for name in names}

    def left_out(groups: Mapping[str, Sequence[Observed]]) -> dict[str, Any]:
        rest = {name: [one for one in rows if one not in out] for name, out in groups.items()}
        return {
            name: _rounded(errors(out, fit(rest[name], to), to)) for name, out in groups.items()
        }

    return {
        "gpu": GPU,
        "context": CONTEXT,
        "rates": _rounded(rates),
        "errors": _rounded(errors(rows, rates, to)),
        "by_gpus": {
            n: _rounded(errors(o, rates, to)) for n, o in grouped(lambda o: o.gpus).items()
        },
        "full_precision": _rounded(errors([o for o in rows if o.q == 16], rates, to)),
        "table_left_out": left_out(by_table(rows)),
        "model_left_out": left_out(grouped(lambda one: one.shape.name)),
        "held_out": _rounded(errors(HELD_OUT, rates, to)),
    }


def of_cpu(products: Mapping[str, Any], tokens: Mapping[str, Any]) -> dict[str, Any]:
    """Rates of our engine on a CPU, at as many threads as it has cores, and how far whole tokens are from them.

    Args:
        products: benchmarks/bench_cpu_gemv.py's times, which decide what weights cost.
        tokens: benchmarks/bench_engine.py's, whose parts beside products decide what a layer costs.
    """
    threads = max(run["threads"] for run in products["results"])
    runs = [r for r in products["results"] if r["m"] == 1 and r["threads"] == threads]
    steps = [r for r in tokens["results"] if r["threads"] == threads]
    times = [
        (row["bits_per_weight"] * run["shape"][0] * run["shape"][1] / 8, run["read_gb_s"] * 1e9, row["cold_us"])
        for run in runs
        for row in run["rows"]
        if row["kernel"].startswith(("lutlab bcq q", "lutlab uniform q")) and "tables" not in row["kernel"]
    ]  # fmt: skip
    packed, product_us, found = fit_kernels(times)
    beside = [
        1e3 * (one["parts_ms"]["attention"] + one["parts_ms"]["other"]) / one["layers"]
        for one in steps
    ]
    layer_us = statistics.median(beside)
    # 16-bit weights are timed nowhere apart: they are taken to be read as the quantized ones are
    rates = predict.Rates(packed, packed, packed, layer_us=layer_us, product_us=product_us)
    whole = relative_errors(
        [_token_off(one, rates, predict.cpu(one["read_gb_s"] * 1e9, 24e9)) for one in steps]
    )
    return {
        "threads": threads,
        "rates": _rounded(rates),
        "errors": _rounded(found),
        "tokens": _rounded(whole),
    }


def _token_off(step: Mapping[str, Any], rates: predict.Rates, to: predict.Device) -> float:
    """Relative error of a whole token of bench_engine.py."""
    by = dataclasses.replace(predict.ENGINES["lutlab-cpu"], rates=rates)
    name, q = step["format"][:-1], int(step["format"][-1])
    middle = step["context"] + step["tokens"] // 2
    shape = dataclasses.replace(predict.decoder(step["model"]), layers=step["layers"])
    found = predict.latency(
        shape, q, step["group"], gpu=to, engine=by, context=middle, stored=METHODS[name]
    )
    (ours,) = (row["ms"] for row in step["rows"] if row["name"] == "lutlab")
    return found.ms_per_token / ours - 1


def _rounded(values: Any) -> dict[str, float]:
    """The fields of a dataclass with six digits, so that the file is the same on every machine."""
    fields = dataclasses.asdict(values).items()
    return {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in fields}


def constants() -> dict[str, Any]:
    """What constants.json holds.

    Raises:
        LutlabError: no latency to fit, or too few.
    """
    return {
        ENGINE: judged(observed()),
        "lutlab-cpu": of_cpu(
            *(json.loads(path.read_text(encoding="utf-8")) for path in (PRODUCTS, TOKENS))
        ),
    }


# ---- the page ----


def tables(found: Mapping[str, Any], rows: Sequence[Observed]) -> str:
    """The errors as Markdown, and the rows that are missed by most."""
    own, to = found[ENGINE], predict.device(GPU)
    rates = predict.Rates(**own["rates"])
    shown = [["all, in sample", own["errors"]], ["full precision", own["full_precision"]]]
    shown += [[f"{n} GPU{'s' if n != '1' else ''}", e] for n, e in own["by_gpus"].items()]
    shown += [[f"{n} left out", e] for n, e in own["table_left_out"].items()]
    shown += [[f"{n} left out", e] for n, e in own["model_left_out"].items()]
    shown += [["GPT-20B by FasterTransformer, held out", own["held_out"]]]
    lines = [
        [name, e["rows"], *(f"{100 * e[size]:.1f} %" for size in ("median", "p90", "worst"))]
        for name, e in shown
    ]
    most = sorted(rows, key=lambda one: -abs(off(one, rates, to)))[:SHOWN]
    misses = [
        [o.shape.name, o.q, o.g if o.g > 0 else "-", o.gpus, o.where[0], o.ms,
         f"{predicted(o, rates, to):.1f}", f"{100 * off(o, rates, to):+.0f} %"]
        for o in most
    ]  # fmt: skip
    gb = to.bandwidth / 1e12
    said = [
        ["16-bit weights, head", f"{rates.dense * gb:.2f} TB/s, {rates.dense:.0%} of the peak"],
        ["quantized weights", f"{rates.packed * gb:.2f} TB/s, {rates.packed:.0%} of the peak"],
        ["a layer", f"{rates.layer_us:.0f} µs"],
        ["its four quantized products", f"{rates.packed_layer_us:.0f} µs more"],
        ["its two all-reduces", f"{rates.link_us:.1f} µs a doubling of the GPUs"],
    ]
    cpu = found["lutlab-cpu"]
    parts = [
        _table(said, "constant of `lut-gemm`", "fitted"),
        _table(lines, "rows", "of them", "median", "90 %", "worst"),
        _table(misses, "model", "q", "g", "GPUs", "table", "printed", "predicted", "error"),
        f"`lutlab-cpu`: our kernels read {cpu['rates']['packed']:.0%} of the read bandwidth and take "
        f"{cpu['rates']['product_us']:.0f} µs a product besides, by {cpu['errors']['rows']} published times "
        f"on {cpu['threads']} threads: median error {cpu['errors']['median']:.0%}, worst "
        f"{cpu['errors']['worst']:.0%}; a layer takes {cpu['rates']['layer_us']:.0f} µs more. Whole tokens of "
        f"LLaMA-7B's shapes, {cpu['tokens']['rows']} formats on as many threads: median error "
        f"{cpu['tokens']['median']:.0%}, worst {cpu['tokens']['worst']:.0%}.",
    ]
    return re.sub(r"(?<=\d)%", " %", "\n\n".join(parts))


def _table(rows: Sequence[Sequence[Any]], *heads: str) -> str:
    from tabulate import tabulate

    return tabulate(rows, heads, tablefmt="pipe", disable_numparse=True)


def page(text: str, found: Mapping[str, Any], rows: Sequence[Observed]) -> str:
    """The page with its tables made anew between the two marks."""
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise LutlabError(f"{PAGE} lacks {BEGIN} or {END}, between which the tables stand")
    return f"{head}{BEGIN}\n\n{tables(found, rows)}\n\n{END}{tail}"


def _fit(check: bool) -> int:
    found, rows = constants(), observed()
    data = Path(predict.__file__).with_name(CONSTANTS)
    wanted = {
        data: json.dumps(found, indent=1) + "\n",
        PAGE: page(PAGE.read_text(encoding="utf-8"), found, rows),
    }
    moved = [path for path, text in wanted.items() if path.read_text(encoding="utf-8") != text]
    error = Errors(**found[ENGINE]["errors"])
    print(f"{error.rows} latencies: {error}; {', '.join(found[ENGINE]['table_left_out'])}")
    for path in moved:
        print(f"{'differs' if check else 'written'}: {path}")
        if not check:
            write_atomically(path, wanted[path].encode())
    return 1 if check and moved else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code: 0, 1 with --check where a file differs, 2 for a mistake."""
    parser = argparse.ArgumentParser(
        prog="tools.fit_latency",
        description="Fit the predictor to printed latencies.",
    )
    parser.add_argument("--check", action="store_true", help="write nothing: are the files those?")
    given = parser.parse_args(arguments)
    return ended(lambda: _fit(given.check))


if __name__ == "__main__":
    sys.exit(main())
