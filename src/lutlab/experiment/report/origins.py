"""Where measured numbers come from, by their records: one line where all agree, else what they share and counts.

all 60 cells: AMD EPYC, avx2, torch 2.13.0+cpu, transformers 5.23.0, float32 on cpu
52 cells: commit 8f59b9a2a7f3, 2 threads
8 cells: commit d4e5f6a7b8c9, 1 thread

Of a speed also the row's kernel, the column's processor and the baseline of its ratios: a row of a paper says cuBLAS,
and on a CPU torch multiplied in float32.
"""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lutlab.base import registry
from lutlab.experiment.artifact.columns import ColumnSpec
from lutlab.experiment.artifact.rows import OURS
from lutlab.experiment.row.spelling import flatten
from lutlab.experiment.store.record import Record

UNKNOWN = "unknown"
_DIGITS = 12  # of a commit
RATIOS = ("speedup_", "best_speedup_")  # metrics of kernel_latency that are over the dense product
DENSE = ("baseline_fp16_us", "baseline_fp32_us")  # and those that are its own
# Metrics that are the same on every machine.
COUNTED = re.compile(
    r"megabytes_|ratio_|bits_per_weight|group_size|additions_saved|table_additions|mu$|.*_mb$"
)


def lines(records: Iterable[Record]) -> tuple[str, ...]:
    """The lines of the module's head; none without records."""
    of_records = [dict(_words(record)) for record in records]
    if not of_records:
        return ()
    first = of_records[0].items()
    shared = [fact for fact in first if all(fact in words.items() for words in of_records)]
    head = f"{_cells(len(of_records), 'all ')}: {', '.join(text for _, text in shared)}"
    differing = collections.Counter(
        ", ".join(text for fact, text in words.items() if (fact, text) not in shared)
        for words in of_records
    )
    if len(differing) == 1:
        return (head,)
    groups = [f"{_cells(n)}: {text}" for text, n in differing.most_common()]
    return (head, *groups) if shared else tuple(groups)


def facts(records: Sequence[Record]) -> dict[str, str]:
    """Every fact of the records' provenance, with how many records say so where they differ."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for record in records:
        for name, value in flatten("", record.provenance):
            counts[name][str(value)] += 1
    times = sorted(counts.pop("measured_at", ()))
    texts = {"records": str(len(records))} if records else {}
    for name, values in counts.items():
        several = len(values) > 1 or values.total() < len(records)
        texts[name] = ", ".join(f"{v} ({n})" if several else v for v, n in values.most_common())
    return texts | ({"measured_at": f"{times[0]} to {times[-1]}"} if times else {})


def _cells(n: int, every: str = "") -> str:
    return "1 cell" if n == 1 else f"{every}{n} cells"


def _words(record: Record) -> Iterator[tuple[str, str]]:
    """Fact -> its words, in the order of a line; what a record does not say is unknown, or left out."""
    about, run = record.provenance, record.run
    yield "commit", _commit(about)
    on_gpu = run.get("device", "cpu") != "cpu"
    yield "processor", str((about.get("gpu") if on_gpu else about.get("cpu")) or UNKNOWN)
    if threads := record.facts.get("threads", about.get("threads")):
        yield "threads", f"{threads} thread{'s' if threads != 1 else ''}"
    if isa := about.get("isa"):  # of lutlab's kernels
        yield "isa", str(isa)
    versions = about.get("versions", {})
    for name in ("torch", "transformers"):
        yield name, f"{name} {versions.get(name) or UNKNOWN}"
    if "dtype" in run and "device" in run:
        yield "dtype", f"{run['dtype']} on {run['device']}"


def _commit(about: Mapping[str, Any]) -> str:
    """`commit 8f59b9a2a7f3`; of changed files, or without a commit, the digest of the sources that ran."""
    commit, dirty, sources = (about.get(key) for key in ("git_commit", "git_dirty", "sources"))
    if commit and dirty is False:
        return f"commit {str(commit)[:_DIGITS]}"
    digest = f" (sources {sources})" if sources else ""
    if commit:
        return f"commit {str(commit)[:_DIGITS]} and changed files{digest}"
    version = dict(about.get("versions") or {}).get("lutlab")
    return f"commit {UNKNOWN}, lutlab {version or UNKNOWN}{digest}"


# ---- of speeds ----


def device(records: Iterable[Record | None]) -> str:
    """The device of a row's records, as torch names it; empty where there are none."""
    return next((r.run["device"] for r in records if r and "device" in r.run), "")


def labels(axes: Mapping[str, str], records: Iterable[Record | None]) -> dict[str, str]:
    """The labels of a row, that of ours with the kernel that multiplied where the row is a product."""
    names = {
        name: None
        for r in records
        if r and "shapes" in r.run
        for name in map(_short, r.facts.get("kernel", ()))
    }
    ours = "; ".join(filter(None, (axes.get(OURS), " + ".join(names))))
    return {**axes, OURS: ours} if ours else dict(axes)


def _short(kernel: str) -> str:
    """`qigen q3 g128 m_b=1152 …, avx2, 2 threads` -> `qigen q3 g128`: a kernel without its tuning."""
    return re.split(r",| \w+=", kernel)[0]


def machine(spec: ColumnSpec, records: Iterable[Record | None]) -> str:
    """`on AMD EPYC, 2 threads`, `over torch float32 on …`: where a speed was measured; empty of other columns."""
    done = [record for record in records if record and record.status == "done"]
    of_a_machine = registry.lookup("evaluator", spec.evaluator).of_this_machine
    if not of_a_machine or COUNTED.match(spec.metric):
        return ""
    processors = " / ".join(dict.fromkeys(filter(None, map(_processor, done))))
    place = f"on {processors}" if processors else ""
    dense = " / ".join(
        dict.fromkeys(filter(None, (_dense(record, spec.metric) for record in done)))
    )
    if dense and spec.metric.startswith(RATIOS):
        return f"over {dense} {place}".rstrip()
    return f"{dense} {place}".strip() if spec.metric in DENSE else place


def _dense(record: Record, metric: str) -> str:
    """The dense product of a metric: of `torch bfloat16, torch float32, in the place of cuBLAS` the first one of 16
    bits, the last one of 32; of `cuBLAS: <its kernels>` cuBLAS.
    """
    products = re.split(r":| product|, in", record.facts.get("baseline", ""))[0].split(", ")
    return products[-1 if "fp32" in metric else 0]


def _processor(record: Record) -> str:
    """The GPU, or the CPU with its threads."""
    about = record.provenance
    if record.run.get("device", "cpu") != "cpu":
        return about["gpu"]
    if "cpu" not in about:
        return ""
    # a plugin's speed may not say
    threads = record.facts["threads"] if "threads" in record.facts else about["threads"]
    return f"{about['cpu']}, {threads} thread{'s' if threads > 1 else ''}"
