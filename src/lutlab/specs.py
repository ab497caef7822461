"""Frozen records of what is asked for, and of what an evaluator sees and says.

    ModelRun | ProductRun, EvalSpec -> Subject -> Measurement

No layer imports another's code to exchange these; nothing here imports torch when run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from lutlab.errors import LutlabError, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

TUNING_LOSSES = ("labels", "distribution")


@dataclass(frozen=True)
class ModelSpec:
    """Source of a model. `id` is a hub id, a folder, or an embedded name; `layers` cuts a synthetic model.

    packed: the linear layers of a synthetic model are drawn as the row's method stores them (compress/synthetic.py).
    """

    name: str
    source: str  # hub | folder | embedded | synthetic
    id: str
    revision: str | None = None
    layers: int | None = None
    packed: bool = False


@dataclass(frozen=True)
class TextSpec:
    """A text under a named protocol (data/protocols.py) from a named source; `root` is the folder of source=folder.

    `limit`: only the first so many windows of a stream, or examples, are evaluated; None evaluates all.
    """

    protocol: str
    source: str  # embedded | folder | hub | lm_eval, a task whose rows lm-eval fetches
    root: str | None = None
    limit: int | None = None

    @property
    def name(self) -> str:
        """As a reader is told: a part of a text bears another name than the whole."""
        return f"{self.protocol}, first {self.limit}" if self.limit else self.protocol


@dataclass(frozen=True)
class CalibrationSpec:
    """Windows for calibrated methods: `samples` windows of `seqlen` tokens drawn with `seed` from a text.

    `seqlen` None is the model's evaluation window.
    """

    text: TextSpec
    samples: int
    seqlen: int | None
    seed: int


@dataclass(frozen=True)
class Tuning:
    """Quantization-aware fine-tuning of a quantized model's linear weights (compress/tuning.py).

    Attributes:
        steps: of the optimizer, at least 1.
        learning_rate: AdamW's, at its peak. Of 1e-3, 2e-3 and 4e-3 for 100 steps, the first had the least held-out loss
            on opt-embedded-m and llama-embedded-m; the last never improved them.
        batch: calibration windows a step.
        loss: `labels` (the text's next token) or `distribution` (that of the full-precision model).
        seed: of the order of the windows.

    Raises:
        LutlabError: a value is out of range.
    """

    steps: int
    learning_rate: float = 1e-3
    batch: int = 8
    loss: str = "distribution"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("batch", 1), ("seed", -(2**63))):
            number = getattr(self, name)
            if (
                isinstance(number, bool)
                or not isinstance(number, int)
                or not least <= number < 2**63
            ):
                raise LutlabError(f"tuning.{name}={number!r}: give an integer of at least {least}")
        rate = self.learning_rate
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < 1:
            raise LutlabError(
                f"tuning.learning_rate={rate!r}: give a number above 0 and below 1, as {Tuning.learning_rate:g}"
            )
        if not isinstance(self.loss, str) or self.loss not in TUNING_LOSSES:
            raise LutlabError(
                f"unknown tuning.loss '{self.loss}': {nearest(self.loss, TUNING_LOSSES)}"
            )

    def changed(self) -> dict[str, Any]:
        """The steps, and what else is not at its default, by name."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {k: v for k, v in found.items() if k == "steps" or v != getattr(Tuning, k)}


@dataclass(frozen=True)
class Sublayer:
    """The widths of one kind of sub-layer, where they differ from the model's: `attention` or `feed_forward`."""

    kind: str
    q: int | float
    g: int


@dataclass(frozen=True)
class LayerWidth:
    """The width of the layers whose names fit a pattern (fnmatch), as `*.layers.0.*`."""

    pattern: str
    q: int | float
    g: int


@dataclass(frozen=True)
class EvalSpec:
    """One evaluator on one text (None where it needs none): together with a run, a cell.

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
class ModelRun:
    """One row: a model quantized one way.

    Attributes:
        options: the method's own parameters, sorted by name.
        calibration: None for methods that look at weights only.
        sublayers: kinds of sub-layer with their own q and g, sorted by kind.
        budget: bits a weight, stored, that the widths of all layers together must not exceed; None gives every layer
            q and g.
        candidates: with a budget, the (q, g) that a layer may have. q is then the largest of theirs, and g -1.
        skip: patterns (fnmatch) of layer names that stay in full precision.
        layers: patterns of layer names with their own q and g; where several fit, the last one counts.
        tuning: quantization-aware fine-tuning on the calibration windows; None: none.
    """

    model: ModelSpec
    method: str
    q: int | float
    g: int
    options: tuple[tuple[str, Any], ...] = ()
    calibration: CalibrationSpec | None = None
    sublayers: tuple[Sublayer, ...] = ()
    budget: float | None = None
    candidates: tuple[tuple[int | float, int], ...] = ()
    skip: tuple[str, ...] = ()
    layers: tuple[LayerWidth, ...] = ()
    tuning: Tuning | None = None
    device: str = "cpu"
    dtype: str = "float32"
    seed: int = 0

    @property
    def name(self) -> str:
        """The model's, as a table's label."""
        return self.model.name


Shape = tuple[int, int, int]  # (N, K, M) of y[M, N] = x[M, K] W[N, K]^T


@dataclass(frozen=True)
class ProductRun:
    """One row: products of matrices with drawn weights, timed as one, and no model (measure/products.py).

    Attributes:
        shapes: (N, K, M) of each product.
        options: the method's own parameters, sorted by name.
        kernel: `auto` is the best of lutlab's.
        knobs: of a named GPU kernel, where they are not its own defaults, sorted by name.
    """

    shapes: tuple[Shape, ...]
    method: str
    q: int | float
    g: int
    options: tuple[tuple[str, Any], ...] = ()
    kernel: str = "auto"
    knobs: tuple[tuple[str, Any], ...] = ()
    device: str = "cpu"
    dtype: str = "float32"
    seed: int = 0

    @property
    def name(self) -> str:
        """`synthetic-4096x1024`, with the rows of x where there is more than one; a table's label."""
        parts = ("x".join(map(str, (n, k) if m == 1 else (n, k, m))) for n, k, m in self.shapes)
        return f"synthetic-{'+'.join(parts)}"


RunSpec = ModelRun | ProductRun


@dataclass(frozen=True)
class LayerStats:
    """One quantized linear layer: squared error and squared norm of W [N, K], its widths, and its size in bits.

    output_error, output_norm: the same of the outputs on the calibration inputs, tr(D H D^T) with H as CalibStats has
    it; None without calibration. W is the layer's own weight, whatever target the method had (compress/target.py).
    Errors and norms are nan of a checkpoint that was quantized before (method=stored), whose weights in full precision
    nobody has. q and g are 16 and -1 where the layer stays in full precision. format: the name of the format that
    bits_stored counts; bits_bcq: bits of the binary form (LUT-GEMM Eq. 5), None where there is none.
    bits_average: bits a weight as Eq. 10 of the 2/4/16-bit paper counts them, None of a format that it does not count.
    widened: its coefficients are in float32 because float16 would lose them (quantizers/coefficients.py).
    """

    name: str
    out_features: int
    in_features: int
    squared_error: float
    squared_norm: float
    bits_stored: int
    q: int | float
    g: int
    format: str
    bits_bcq: int | None
    output_error: float | None = None
    output_norm: float | None = None
    bits_average: float | None = None
    widened: bool = False


@dataclass(frozen=True)
class Text:
    """Rows of a split as its source gives them; `sha256` is over all rows, `origin` names source and version.

    `limit` is the spec's; who makes windows or examples of the rows keeps to it. `differs` says in which way the rows
    are not those that the data set is known to have (data/known.py), for the record and its table.
    """

    protocol: str
    rows: tuple[str, ...]
    sha256: str
    origin: str
    limit: int | None = None
    differs: str = ""


@dataclass(frozen=True)
class Subject:
    """A (quantized) model as an evaluator sees it: its tokenizer, the statistics of its layers, a text.

    `run` is what was asked for; of a product it is all there is, and model is None.
    """

    model: PreTrainedModel | None
    tokenizer: PreTrainedTokenizerBase | None
    layers: tuple[LayerStats, ...]
    text: Text | None
    seqlen: int
    run: RunSpec | None = None


@dataclass(frozen=True)
class Measurement:
    """Values by metric name (unit in the name), the count they rest on, all samples, and facts worth keeping.

    The fact `kernel`, where layers are multiplied by kernels, is a list of their names. errors: standard error of each
    value that has one, in its unit; a record has them as the fact `standard_error`.
    """

    values: Mapping[str, float]
    n: int
    samples: tuple[float, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)  # token hash, protocol fields, …
    errors: Mapping[str, float] = field(default_factory=dict)
