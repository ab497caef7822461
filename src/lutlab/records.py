"""Frozen records in which layers meet.

    RunSpec -> CalibStats -> QuantizedTensor -> PackedWeight -> Subject -> Measurement -> Record

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
    """Where a model comes from. `id` is a hub id, a folder, or an embedded name; `layers` cuts a synthetic model.

    A `product` is no model but one matrix product, whose id is its shape (measure/products.py).
    """

    name: str
    source: str  # hub | folder | embedded | synthetic | product
    id: str
    revision: str | None = None
    layers: int | None = None


@dataclass(frozen=True)
class TextSpec:
    """A text under a named protocol (data/protocols.py) from a named source; `root` is the folder of source=folder.

    `limit`: only the first so many windows of a stream, or examples, are evaluated; None evaluates all.
    """

    protocol: str
    source: str  # embedded | folder | hub
    root: str | None = None
    limit: int | None = None

    @property
    def name(self) -> str:
        """As a reader is told: a part of a text bears another name than the whole."""
        return f"{self.protocol}, first {self.limit}" if self.limit else self.protocol


@dataclass(frozen=True)
class CalibrationSpec:
    """What calibrated methods look at: `samples` windows of `seqlen` tokens drawn with `seed` from a text.

    `seqlen` None is the model's evaluation window.
    """

    text: TextSpec
    samples: int
    seqlen: int | None
    seed: int


@dataclass(frozen=True)
class Sublayer:
    """The widths of one kind of sub-layer, where they differ from the model's: `attention` or `feed_forward`."""

    kind: str
    q: int
    g: int


@dataclass(frozen=True)
class EvalSpec:
    """One evaluator on one text (None where it needs none): together with a RunSpec, a cell.

    options: fields of the evaluator that are not its own defaults, sorted by name.
    """

    evaluator: str
    text: TextSpec | None = None
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def options_named(self) -> str:
        """As the command line sets them."""
        return ", ".join(f"evaluator.{self.evaluator}.{key}={value}" for key, value in self.options)


@dataclass(frozen=True)
class RunSpec:
    """One row: a model quantized one way.

    Attributes:
        options: the method's own parameters, sorted by name.
        calibration: None for methods that look at weights only.
        sublayers: kinds of sub-layer with their own q and g, sorted by kind.
        budget: bits a weight, stored, that the widths of all layers together must not exceed; None gives every layer
            q and g.
        candidates: with a budget, the (q, g) that a layer may have. q is then the largest of theirs, and g -1.
        skip: patterns (fnmatch) of layer names that stay in full precision.
        kernel: of a product: `auto` is the best of lutlab's; knobs: of a named GPU kernel, where they are not its own
            defaults, sorted by name.
    """

    model: ModelSpec
    method: str
    q: int
    g: int
    options: tuple[tuple[str, Any], ...] = ()
    calibration: CalibrationSpec | None = None
    sublayers: tuple[Sublayer, ...] = ()
    budget: float | None = None
    candidates: tuple[tuple[int, int], ...] = ()
    skip: tuple[str, ...] = ()
    device: str = "cpu"
    dtype: str = "float32"
    seed: int = 0
    kernel: str = "auto"
    knobs: tuple[tuple[str, Any], ...] = ()


# ---- tensors ----


@dataclass(frozen=True)
class CalibStats:
    """What calibration saw of one linear layer's inputs X [M, K].

    hessian: [K, K] float32, X^T X / M: (w - w_hat) hessian (w - w_hat)^T is the mean squared error of an output.
    mean_abs: [K] float32, the mean of |X|; tokens: M.
    """

    hessian: torch.Tensor
    mean_abs: torch.Tensor
    tokens: int


@dataclass(frozen=True)
class DenseTensor:
    """A weight kept as it is. weight: [N, K] float16 or float32."""

    weight: torch.Tensor


@dataclass(frozen=True)
class UniformTensor:
    """W ~ scale * (codes - zero_point), LUT-GEMM Eq. 3 with z_hat = -scale * zero_point.

    codes: [N, K] uint8 in 0..2^bits-1; scale: [N, G] float16 or float32; zero_point: [N, G] int16.
    group_size: weights along K that share one scale; -1 = all of K; the last group may be shorter.
    order: [K] int32, column j of codes holds input channel order[j], and groups are of columns; None: channel j.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    zero_point: torch.Tensor
    bits: int
    group_size: int
    order: torch.Tensor | None = None


@dataclass(frozen=True)
class BCQTensor:
    """W ~ sum_b alpha_b B_b + offset, B_b in {-1, +1}, LUT-GEMM Eq. 2.

    codes: [N, K] uint8, bit b is 1 where B_b = +1; alpha: [q, N, G] float16 or float32; offset: [N, G] or None.
    order: as in UniformTensor.
    """

    codes: torch.Tensor
    alpha: torch.Tensor
    offset: torch.Tensor | None
    bits: int
    group_size: int
    order: torch.Tensor | None = None


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
    """One quantized linear layer: squared error and squared norm of W [N, K], its widths, and its size in bits.

    output_error, output_norm: the same of the outputs on the calibration inputs, tr(D H D^T) with H as CalibStats has
    it; None without calibration. q and g are 16 and -1 where the layer stays in full precision.
    """

    name: str
    out_features: int
    in_features: int
    squared_error: float
    squared_norm: float
    bits_stored: int
    q: int
    g: int
    output_error: float | None = None
    output_norm: float | None = None


@dataclass(frozen=True)
class Text:
    """Rows of a split as its source gives them; `sha256` is over all rows, `origin` names source and version.

    `limit` is the spec's; who makes windows or examples of the rows keeps to it.
    """

    protocol: str
    rows: tuple[str, ...]
    sha256: str
    origin: str
    limit: int | None = None


@dataclass(frozen=True)
class Subject:
    """What an evaluator sees: a (quantized) model, its tokenizer, the statistics of its layers, a text.

    `run` is what was asked for; of a product it is all there is, and model is None.
    """

    model: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase | None
    layers: tuple[LayerStats, ...]
    text: Text | None
    seqlen: int
    q: int
    g: int
    run: RunSpec | None = None


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
