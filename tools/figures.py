"""Figures of the documentation's pages, from published numbers: `make report`, or `python -m tools.figures`.

    docs/figures/levels.svg        levels of a group of weights by RTN and by BCQ, of a model that ships
    docs/figures/table4.svg        perplexities of LUT-GEMM's Table 4, the paper's and ours
    docs/figures/claims.svg        how many claims of each paper hold, fail and are below noise
    docs/figures/two_bits.svg      perplexity along stored bits at 2 and 3 bits
    docs/figures/real_model.svg    KL divergence along stored bits of a real model, llama.cpp's types beside ours
    docs/figures/mu.svg            additions that tables of mu columns save, counted, and the time of the papers' kernel
    docs/figures/predicted.svg     latencies that papers print beside predicted ones
    docs/figures/tokens.svg        tokens a second beside llama.cpp

Nothing is measured; the same records give the same bytes.
"""

from __future__ import annotations

import dataclasses
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from safetensors.torch import load_file

import lutlab
from lutlab import predict
from lutlab.experiment.records.frame import claims
from lutlab.experiment.report import figure, published
from lutlab.experiment.report.style import FAINT, MUTED, SERIES, STYLE
from lutlab.experiment.run.ending import ended
from lutlab.models.load import EMBEDDED
from tools.fit import predicted
from tools.fit_latency import ENGINE, GPU, observed
from tools.published_list import PUBLISHED

FIGURES = Path("docs") / "figures"
ZEN_3 = PUBLISHED / "amd-epyc-25-1-avx2-2cores"
AVX512 = PUBLISHED / "amd-epyc-25-17-avx512-2cores"


def levels() -> Figure:
    """Weights of a group, and the four levels to which RTN and BCQ round them."""
    weights = load_file(EMBEDDED / "opt-embedded-m" / "model.safetensors")
    group = weights["model.decoder.layers.2.fc1.weight"][:1, :128].float()
    drawing = Figure(figsize=(6.4, 2.6), layout="constrained")
    axes = drawing.subplots(2, 1, sharex=True)
    for axis, (title, method) in zip(axes, (("RTN", "rtn"), ("BCQ", "bcq")), strict=True):
        rounded = lutlab.quantize_tensor(group, method, q=2, g=128).dequantize()
        error = float((group - rounded).square().sum() / group.square().sum())
        axis.hist(group[0].numpy(), bins=40, color=FAINT)
        for level in rounded.unique():
            axis.axvline(float(level), color=SERIES[0])
        axis.set_title(f"{title}: relative squared error {error:.2f}", loc="left", fontsize=9)
        axis.set_yticks([])
    axes[-1].set_xlabel("weight; lines: the levels of q = 2 for 128 weights of one row")
    return drawing


def table4() -> Figure:
    """Perplexities of Table 4 alone."""
    table = published.read(ZEN_3 / "lut-gemm-v3" / "table4").tables({})["embedded"]
    texts = tuple(column for column in table.columns if column.metric == "ppl")
    return figure.draw(dataclasses.replace(table, columns=texts))


def two_bits() -> Figure:
    """The curves of two and three bits."""
    folder = ZEN_3 / "lutlab" / "two_and_three_bits"
    return figure.draw(published.read(folder).tables({})["embedded"])


def real_model() -> Figure:
    """KL divergence along stored bits of a real model whose layers are all quantized, llama.cpp's types beside ours."""
    cells = lutlab.results(ZEN_3)
    chosen = (cells["artifact"] == "gguf_types") & cells["row"].str.contains("/all/")
    chosen &= cells["variant"] == "real-data-first8-samples-32"
    rows = cells[chosen & (cells["metric"] == "kld_mean_nats") & (cells["method"] != "none")]
    rows = rows[rows["measured"] < _USEFUL_NATS]
    method = rows["method"].mask(rows["tuning.trains"] == "scales", "tuned")
    series = {
        "llama.cpp, importance matrix": "ggml_imatrix",
        "hessian_uniform (ours)": "hessian_uniform",
        "GPTQ, swept (ours)": "gptq",
        "hessian_bcq, binary codes (ours)": "hessian_bcq",
        "round to nearest": "rtn",
        "scales tuned by gradients (ours)": "tuned",
    }
    drawing = Figure(figsize=(7.2, 3.6), layout="constrained")
    axis = drawing.subplots()
    for (label, name), color in zip(series.items(), SERIES, strict=False):
        points = rows[method == name].sort_values("stored_bits")
        marker = "s" if label.startswith("llama") else "o"
        axis.plot(
            points["stored_bits"],
            points["measured"],
            marker,
            color=color,
            label=label,
            markersize=5,
        )
    axis.set(
        yscale="log",
        xlabel="stored bits a weight, scales included",
        ylabel="KL divergence (nats a token)",
    )
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_yticks([0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5, 1])
    axis.minorticks_off()
    axis.legend(frameon=False, fontsize=8)
    return drawing


def claims_of_papers() -> Figure:
    """Two bars a paper: instances of its sentences on our numbers, and of what we read from its tables."""
    counts = claims(PUBLISHED)
    counts["fail"] = counts["decidable"] - counts["hold"]
    outcomes = {"hold": SERIES[0], "fail": SERIES[5], "below_noise": FAINT}
    counts = counts[(counts["paper"] != "lutlab") & (counts["kind"] != "ours")]
    names = counts["paper"] + ", " + counts["kind"] + "s"
    papers = counts.groupby(names, sort=False)[[*outcomes]].sum().sort_index(ascending=False)
    drawing = Figure(figsize=(6.8, 3.4), layout="constrained")
    axis = drawing.subplots()
    left = 0 * papers["hold"]
    for outcome, color in outcomes.items():
        label = outcome.replace("_", " ")
        bars = axis.barh(papers.index, papers[outcome], left=left, color=color, label=label)
        shown = [f"{count}" if count > 5 else "" for count in papers[outcome]]
        axis.bar_label(bars, shown, label_type="center", fontsize=8)
        left += papers[outcome]
    axis.set_xlabel("instances of claims, judged on numbers measured here")
    axis.legend(frameon=False, fontsize=8, loc="center right")
    return drawing


def mu() -> Figure:
    """Additions that the tables of mu columns save, and the time of the papers' kernel, along mu at q = 3."""
    cells = lutlab.results(ZEN_3)
    cells = cells[(cells["artifact"] == "mu") & (cells["q"] == 3)]
    cells = cells.assign(mu=cells["row"].str.extract(r"mu(\d+)$")[0].astype(int))
    drawing = Figure(figsize=(7.2, 3.0), layout="constrained")
    titles = {
        "additions_saved": "additions of a dense product over Eq. 2, counted",
        "speedup_fp32": "torch's dense product over the kernel, time",
    }
    for axis, (metric, title) in zip(drawing.subplots(1, 2), titles.items(), strict=True):
        models = cells[cells["metric"] == metric].groupby("model", sort=False)
        for color, (model, rows) in zip(SERIES, models, strict=False):
            label = model.removeprefix("synthetic-")
            axis.plot(rows["mu"], rows["measured"], "o-", color=color, label=label, markersize=4)
        axis.set_title(title, loc="left", fontsize=9)
        axis.set(xlabel="mu, columns of a table", ylim=(0, None))
    drawing.axes[0].legend(frameon=False, fontsize=8, title="N x K of W", title_fontsize=8)
    return drawing


def latencies() -> Figure:
    """A point a printed latency, of full precision and of quantized weights."""
    rates, device = predict.ENGINES[ENGINE].rates, predict.DEVICES[GPU]
    drawing = Figure(figsize=(4.6, 3.6), layout="constrained")
    axis = drawing.subplots()
    rows = observed()
    for label, color, full in (("16 bits", SERIES[0], True), ("quantized", SERIES[1], False)):
        chosen = [row for row in rows if (row.q == 16) == full]
        guessed = [predicted(row, rates, device) for row in chosen]
        axis.scatter([row.ms for row in chosen], guessed, s=16, color=color, label=label)
    ends = (5, 60)
    axis.plot(ends, ends, color=MUTED, linewidth=0.8)
    axis.set(xscale="log", yscale="log", xlabel="printed (ms a token)", ylabel="predicted")
    for scale in (axis.xaxis, axis.yaxis):
        scale.set_major_locator(mpl.ticker.FixedLocator([5, 10, 20, 50]))
        scale.set_major_formatter("{x:g}")
        scale.set_minor_formatter(mpl.ticker.NullFormatter())
    axis.legend(frameon=False, fontsize=8)
    return drawing


def tokens() -> Figure:
    """Tokens a second of LLaMA-7B's shapes on two threads, beside llama.cpp in the same run."""
    machines = {"AVX2, 8 of 32 layers": ZEN_3, "AVX-512, 16 of 32 layers": AVX512}
    drawing = Figure(figsize=(6.8, 2.6), layout="constrained")
    for axis, (title, machine) in zip(drawing.subplots(1, 2), machines.items(), strict=True):
        path = machine / "benchmarks" / "engine_llama_7b.json"
        results = json.loads(path.read_text())["results"]
        steps = [step for step in results if step["threads"] == 2]
        for at, (label, color) in enumerate((("lutlab", SERIES[0]), ("llama.cpp", MUTED))):
            rates = [
                max(row["tokens_per_s"] for row in step["rows"] if row["name"].startswith(label))
                for step in steps
            ]
            places = [place + 0.4 * at - 0.2 for place in range(len(steps))]
            bars = axis.bar(places, rates, width=0.4, color=color, label=label)
            axis.bar_label(bars, fmt="%.1f", fontsize=7)
        peers = [step["rows"][1]["name"].split()[1].rstrip(",") for step in steps]
        names = [f"{step['format']}\n{peer}" for step, peer in zip(steps, peers, strict=True)]
        axis.set_xticks(range(len(steps)), names, fontsize=7)
        axis.set_title(title, loc="left", fontsize=9)
        axis.set_ylim(0, 1.15 * max(row["tokens_per_s"] for step in steps for row in step["rows"]))
    drawing.axes[0].set_ylabel("tokens a second")
    drawing.axes[0].legend(frameon=False, fontsize=8, loc="upper left")
    return drawing


_USEFUL_NATS = 2.0  # rows beyond are of no use, and would hide the others' differences
DRAWN: dict[str, Callable[[], Figure]] = {
    "levels": levels,
    "table4": table4,
    "claims": claims_of_papers,
    "two_bits": two_bits,
    "real_model": real_model,
    "mu": mu,
    "predicted": latencies,
    "tokens": tokens,
}


def svg(draw: Callable[[], Figure]) -> bytes:
    """A figure in the style of all."""
    file = io.BytesIO()
    with mpl.rc_context(STYLE):
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        draw().savefig(file, format="svg", metadata=metadata)
    return file.getvalue()


def write() -> None:
    """Write all figures."""
    FIGURES.mkdir(exist_ok=True)
    for name, draw in DRAWN.items():
        path = FIGURES / f"{name}.svg"
        path.write_bytes(svg(draw))
        print(f"{path}: {path.stat().st_size / 1e3:.0f} kB")


def main() -> int:
    """The command; returns the exit code: 0, or 2 for a mistake."""
    return ended(write)


if __name__ == "__main__":
    sys.exit(main())
