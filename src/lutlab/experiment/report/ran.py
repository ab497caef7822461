"""What ran where: the kernel of a row, the processor of a column of speeds and what its ratios are over.

All of it is read from records: a row of a paper says cuBLAS, and on a CPU torch multiplied in float32.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from lutlab import registry
from lutlab.experiment.artifact.columns import ColumnSpec
from lutlab.experiment.artifact.outcome import OURS
from lutlab.experiment.store.record import Record

RATIOS = ("speedup_", "best_speedup_")  # metrics of kernel_latency that are over the baseline
BASELINES = "baseline_"  # and those that are the baseline's own


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
    """`qigen q3 g128 m_b=1152 …, avx2, 2 threads` -> `qigen q3 g128`: what was tuned is in the record."""
    return re.split(r",| \w+=", kernel)[0]


def machine(spec: ColumnSpec, records: Iterable[Record | None]) -> str:
    """The processor of a column of speeds, after the dense product that its ratios are over; empty of other columns."""
    done = [record for record in records if record and record.status == "done"]
    if not registry.lookup("evaluator", spec.evaluator).of_this_machine:
        return ""
    processors = dict.fromkeys(filter(None, map(_processor, done)))
    dense = ""
    if spec.metric.startswith((*RATIOS, BASELINES)):
        dense = " / ".join(dict.fromkeys(filter(None, map(_baseline, done))))
    if dense and not spec.metric.startswith(BASELINES):
        dense = f"over {dense}"
    return ", ".join(filter(None, (dense, " / ".join(processors))))


def _baseline(record: Record) -> str:
    """`torch float32 product, in the place of cuBLAS` -> `torch float32`; `cuBLAS: <its kernels>` -> `cuBLAS`."""
    return re.split(r":| product", record.facts.get("baseline", ""))[0]


def _processor(record: Record) -> str:
    """The GPU, or the CPU with its threads."""
    about = record.provenance
    if record.run.get("device", "cpu") != "cpu":
        return about["gpu"]
    return f"{about['cpu']}, {record.facts['threads']} threads" if "cpu" in about else ""
