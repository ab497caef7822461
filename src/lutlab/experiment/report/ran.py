"""Kernels and machines of measured speeds: a row's kernel, a column's processor and the baseline of its ratios.

All of it is read from records: a row of a paper says cuBLAS, and on a CPU torch multiplied in float32.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from lutlab import registry
from lutlab.experiment.artifact.columns import ColumnSpec
from lutlab.experiment.artifact.outcome import OURS
from lutlab.experiment.store.record import Record

RATIOS = ("speedup_", "best_speedup_")  # metrics of kernel_latency that are over the dense product
DENSE = ("baseline_fp16_us", "baseline_fp32_us")  # and those that are its own
# Metrics that are the same on every machine.
COUNTED = re.compile(r"megabytes_|ratio_|bits_per_weight|group_size|.*_mb$")


def device(records: Iterable[Record | None]) -> str:
    """The device of a row's records, as torch names it; empty where there are none."""
    return next((r.run["device"] for r in records if r and "device" in r.run), "")


def labels(given: Mapping[str, str], records: Iterable[Record | None]) -> dict[str, str]:
    """The labels of a row, that of ours with the kernel that multiplied where the row is a product."""
    names = {
        name: None
        for r in records
        if r and "shapes" in r.run
        for name in map(_short, r.facts.get("kernel", ()))
    }
    ours = "; ".join(filter(None, (given.get(OURS), " + ".join(names))))
    return {**given, OURS: ours} if ours else dict(given)


def _short(kernel: str) -> str:
    """Short name of a kernel: `qigen q3 g128 m_b=1152 …, avx2, 2 threads` -> `qigen q3 g128`; the record has its
    tuning.
    """
    return re.split(r",| \w+=", kernel)[0]


def machine(spec: ColumnSpec, records: Iterable[Record | None]) -> str:
    """`on AMD EPYC, 2 threads`, `over torch float32 on …`: where a speed was measured; empty of other columns."""
    done = [record for record in records if record and record.status == "done"]
    of_a_machine = registry.lookup("evaluator", spec.evaluator).of_this_machine
    if not of_a_machine or COUNTED.match(spec.metric):
        return ""
    processors = " / ".join(dict.fromkeys(filter(None, map(_processor, done))))
    place = f"on {processors}" if processors else ""
    dense = " / ".join(dict.fromkeys(filter(None, map(_dense, done))))
    if dense and spec.metric.startswith(RATIOS):
        return f"over {dense} {place}".rstrip()
    return f"{dense} {place}".strip() if spec.metric in DENSE else place


def _dense(record: Record) -> str:
    """`torch float32 product, in the place of cuBLAS` -> `torch float32`; `cuBLAS: <its kernels>` -> `cuBLAS`."""
    return re.split(r":| product", record.facts.get("baseline", ""))[0]


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
