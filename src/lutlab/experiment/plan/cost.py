"""Seconds of a cell, and of quantizing its model, on this machine.

    cell         median of records of the same evaluation and model
    quantizing   median of records of the same method, calibration and model

Without a record, a text takes a forward pass, 2 * parameters operations a token at half of the rate of a large product;
rounding takes a rate a weight; all else, as speeds, calibration and tuning, is unknown.
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from lutlab.base import registry
from lutlab.base.lazy import torch
from lutlab.base.specs import EvalSpec, ModelRun, RunSpec, TextSpec
from lutlab.data import tasks
from lutlab.data.protocols import PROTOCOLS
from lutlab.experiment.plan.resolve import Files
from lutlab.experiment.row.spelling import to_json
from lutlab.experiment.store.provenance import environment
from lutlab.experiment.store.record import Record, canonical
from lutlab.models.shape import shape_of

TASK_EXAMPLES, TASK_TOKENS = (
    2000,
    100,
)  # of a task whose rows lm-eval fetches: known when it is loaded
CHARACTERS_PER_TOKEN = 3.3  # of the embedded tokenizer; larger vocabularies need fewer tokens
_EFFICIENCY = 0.5  # of the large-product rate that a whole forward pass reaches
_RATE_SECONDS = 0.5  # of measuring a rate
_LEAST_SECONDS = 0.1  # of any cell
# Seconds a million weights on two cores, median of the published records of SmolLM2-135M.
_ROUNDING = {"none": 0.0, "stored": 0.0, "rtn": 0.05, "bcq": 0.27, "ggml": 0.04}


@dataclass(frozen=True)
class History:
    """Seconds that records of this machine took, by what they measured and by how their models were quantized."""

    cells: Mapping[Hashable, float]
    quantizing: Mapping[Hashable, float]

    @classmethod
    def of(cls, records: Iterable[Record]) -> History:
        """The medians of records, those of other machines left out."""
        cells: dict[Hashable, list[float]] = {}
        quantizing: dict[Hashable, list[float]] = {}
        for record in records:
            if any(
                record.provenance.get(key) != environment()[key] for key in ("cpu", "isa", "cores")
            ):
                continue
            if record.status == "done":
                key = _cell_key(record.run, record.evaluation)
                cells.setdefault(key, []).append(record.seconds)
            if (seconds := record.facts.get("quantize_seconds")) is not None:
                quantizing.setdefault(_quantizing_key(record.run), []).append(seconds)
        return cls(
            {key: statistics.median(values) for key, values in cells.items()},
            {key: statistics.median(values) for key, values in quantizing.items()},
        )

    def cell_seconds(self, run: RunSpec, evaluation: EvalSpec, files: Files) -> float | None:
        """Seconds of one cell, its model loaded and quantized; None: unknown.

        Raises:
            LutlabError: the model's config is not here, and the hub cannot be asked.
        """
        if seconds := self.cells.get(_cell_key(to_json(run), to_json(evaluation))):
            return seconds
        evaluator = registry.lookup("evaluator", evaluation.evaluator)
        if not isinstance(run, ModelRun) or evaluator.of_this_machine:
            return None
        if not evaluation.text:
            return _LEAST_SECONDS
        shape = shape_of(run.model)
        tokens = _tokens(evaluation.text, shape.seqlen, files)
        rate = _matmul_rate(run.device, run.dtype) * _EFFICIENCY
        return max(_LEAST_SECONDS, 2 * shape.parameters * tokens / rate)

    def quantize_seconds(self, run: RunSpec) -> float | None:
        """Seconds of loading and quantizing one row; None: unknown. Raises LutlabError as `cell_seconds`."""
        if not isinstance(run, ModelRun):
            return 0.0
        if seconds := self.quantizing.get(_quantizing_key(to_json(run))):
            return seconds
        if run.calibration or run.budget or run.method not in _ROUNDING:
            return None
        return _ROUNDING[run.method] * shape_of(run.model).linear_parameters / 1e6


def _cell_key(run: Mapping, evaluation: Mapping) -> Hashable:
    subject = run["model"]["id"] if "model" in run else canonical(run["shapes"])
    return subject, canonical(evaluation)


def _quantizing_key(run: Mapping) -> Hashable:
    tuned = [canonical(run.get(name)) for name in ("calibration", "tuning", "budget")]
    return run.get("model", {}).get("id"), run["method"], *tuned


@functools.cache
def _matmul_rate(device: str, dtype: str) -> float:
    """Floating-point operations a second of a 1024^3 product here: the fastest of half a second."""
    place = "cuda" if device == "spread" else device
    matrix = torch.randn(1024, 1024, device=place, dtype=getattr(torch, dtype))
    seconds: list[float] = []
    while (
        len(seconds) < 5 or sum(seconds) < _RATE_SECONDS
    ):  # where others work, one has the cores alone
        began = time.perf_counter()
        (matrix @ matrix).sum().item()
        seconds.append(time.perf_counter() - began)
    return 2 * 1024**3 / min(seconds)


def _tokens(text: TextSpec, seqlen: int, files: Files) -> float:
    """Tokens that an evaluation of a text reads, about."""
    if text.source == tasks.SOURCE:
        return (text.limit or TASK_EXAMPLES) * TASK_TOKENS
    rule = PROTOCOLS[text.protocol]
    if text.source != "hub":
        rows = files.text(text).rows
        read = rows if rule.kind == "stream" else rows[: text.limit]
        tokens = sum(map(len, read)) / CHARACTERS_PER_TOKEN
    else:
        tokens = rule.windows * seqlen if rule.windows else rule.tokens or 0
    return min(tokens, text.limit * seqlen) if text.limit and rule.kind == "stream" else tokens
