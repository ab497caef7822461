"""Frozen records in which layers meet: RunSpec -> QuantizedTensor -> PackedWeight -> Subject -> Measurement -> Record.

Axes: M tokens, N out_features, K in_features, G = ceil(K / group_size) groups, q bits. No layer imports another's code
to exchange these; nothing here imports torch when run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


# ---- what is to be run ----


@dataclass(frozen=True)
class ModelSpec:
    """Where a model comes from. `id` is a hub id, a folder, or an embedded name; `layers` cuts a synthetic model."""

    name: str
    source: str  # hub | folder | embedded | synthetic
    id: str
    revision: str | None = None
    layers: int | None = None


@dataclass(frozen=True)
class TextSpec:
    """A text under a named protocol (data/protocols.py) from a named source; `root` is the folder of source=folder."""

    protocol: str
    source: str  # embedded | folder | hub
    root: str | None = None


@dataclass(frozen=True)
class EvalSpec:
    """One evaluator on one text (None where it needs none): together with a RunSpec, a cell."""

    evaluator: str
    text: TextSpec | None = None


@dataclass(frozen=True)
class RunSpec:
    """One row: a model quantized one way. `options` are the method's own parameters, sorted by name."""

    model: ModelSpec
    method: str
    q: int
    g: int
    options: tuple[tuple[str, Any], ...] = ()
    device: str = "cpu"
    dtype: str = "float32"
    seed: int = 0


# ---- tensors ----


@dataclass(frozen=True)
class DenseTensor:
    """A weight kept as it is. weight: [N, K] float16 or float32."""

    weight: torch.Tensor


@dataclass(frozen=True)
class UniformTensor:
    """W ~ scale * (codes - zero_point), LUT-GEMM Eq. 3 with z_hat = -scale * zero_point.

    codes: [N, K] uint8 in 0..2^bits-1; scale: [N, G] float16 or float32; zero_point: [N, G] int16.
    group_size: weights along K that share one scale; -1 = all of K; the last group may be shorter.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor
    bits: int
    group_size: int


@dataclass(frozen=True)
class BCQTensor:
    """W ~ sum_b alpha_b B_b + offset, B_b in {-1, +1}, LUT-GEMM Eq. 2.

    codes: [N, K] uint8, bit b is 1 where B_b = +1; alpha: [q, N, G] float16 or float32; offset: [N, G] or None.
    """

    codes: torch.Tensor
    alpha: torch.Tensor
    offset: torch.Tensor | None
    bits: int
    group_size: int


QuantizedTensor = DenseTensor | UniformTensor | BCQTensor


class PackedWeight(Protocol):
    """A weight as a kernel reads it (formats/<layout>.py)."""

    shape: tuple[int, int]

    def dequantize(self) -> torch.Tensor:
        """[N, K] float32."""

    @property
    def bits_stored(self) -> int:
        """Bits of every buffer, padding included."""

    @property
    def bits_per_weight(self) -> float:
        """bits_stored / (N * K)."""


# ---- a model ready to be measured, and what came out ----


@dataclass(frozen=True)
class LayerStats:
    """One quantized linear layer: squared error and squared norm of W [N, K], and its sizes in bits."""

    name: str
    out_features: int
    in_features: int
    squared_error: float
    squared_norm: float
    bits_stored: int


@dataclass(frozen=True)
class Text:
    """Rows of a split as its source gives them; `sha256` is over the rows, `origin` names source and version."""

    protocol: str
    rows: tuple[str, ...]
    sha256: str
    origin: str


@dataclass(frozen=True)
class Subject:
    """What an evaluator sees: a (quantized) model, its tokenizer, the statistics of its layers, a text."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    layers: tuple[LayerStats, ...]
    text: Text | None
    seqlen: int
    q: int
    g: int


@dataclass(frozen=True)
class Measurement:
    """Values by metric name (unit in the name), the count they rest on, all samples, and facts worth keeping."""

    values: Mapping[str, float]
    n: int
    samples: tuple[float, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)  # token hash, protocol fields, …


@dataclass(frozen=True)
class Record:
    """One measured cell as stored. status: done | failed | oom; a failed cell says why in `reason`."""

    cell_id: str
    status: str
    run: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    values: Mapping[str, float]
    n: int
    samples: tuple[float, ...]
    facts: Mapping[str, Any]
    provenance: Mapping[str, Any]
    seconds: float
    reason: str = ""


# ---- published beside measured ----


@dataclass(frozen=True)
class Cell:
    """One number of a table. `verdict` is never blank; `note` is its reason or the stand-in's name."""

    column: str
    published: float | str | None  # str: the paper prints a word (OOM, N/A)
    measured: float | None
    verdict: str
    note: str = ""
    cell_id: str | None = None


@dataclass(frozen=True)
class Row:
    """A row of a table: axis labels as the paper prints them, the model measured, cells by column."""

    key: str
    labels: Mapping[str, str]  # axis title -> label, e.g. {"Model": "OPT-30B", "q": "4", "g": "32"}
    model: str
    stand_in: bool
    cells: Mapping[str, Cell]


@dataclass(frozen=True)
class Column:
    """A column: one metric under one protocol. `measured_on` names the text really evaluated."""

    key: str
    title: str
    unit: str
    protocol: str
    measured_on: str
    published: bool  # False: a column of ours that the paper does not print
    lower_is_better: bool = True


@dataclass(frozen=True)
class ClaimResult:
    """A claim of the paper, judged on its own numbers and on ours: counts of instances that hold, of all decidable."""

    text: str
    where: str
    published: tuple[int, int]
    measured: tuple[int, int]
    failing: tuple[str, ...] = ()  # measured instances that do not hold


@dataclass(frozen=True)
class ResultTable:
    """Everything the report renders; pure data."""

    artifact: str
    title: str
    citation: str
    source: str
    scale: str
    command: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    claims: tuple[ClaimResult, ...]
    notes: tuple[str, ...]
    provenance: Mapping[str, Any]

    def long_form(self) -> list[dict[str, Any]]:
        """One mapping per cell, row by row, all with the same keys: what the CSV file and the tracked table hold."""
        return [
            {
                "artifact": self.artifact,
                "row": row.key,
                "labels": "; ".join(f"{axis}={label}" for axis, label in row.labels.items()),
                "column": column.key,
                "unit": column.unit,
                "protocol": column.protocol,
                "published": row.cells[column.key].published,
                "measured": row.cells[column.key].measured,
                "measured_on": column.measured_on,
                "model": row.model,
                "stand_in": row.stand_in,
                "verdict": row.cells[column.key].verdict,
                "note": row.cells[column.key].note,
                "cell_id": row.cells[column.key].cell_id,
            }
            for row in self.rows
            for column in self.columns
        ]
