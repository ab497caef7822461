"""Frozen records: a row's request, and an evaluator's subject and measurement.

    ModelRun, EvalSpec -> Subject -> Measurement        ProductRun, EvalSpec -> Measurement

No layer imports another's code to exchange these; nothing here imports torch when run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from lutlab.base.errors import LutlabError
from lutlab.base.fields import MISSING, check, defaults
from lutlab.base.lazy import PreTrainedModel, PreTrainedTokenizerBase
from lutlab.base.limits import Budget, Count, CountFrom0, a_path, a_seed

Options = Annotated[  # names and values, sorted by name; a record has them as a mapping
    tuple[tuple[str, Any], ...],
    BeforeValidator(lambda given: sorted(given.items()) if isinstance(given, Mapping) else given),
]
Loss = Literal["labels", "distribution"]
Rate = Annotated[float, Field(gt=0, lt=1)]
Window = Annotated[int, Field(ge=2)]  # tokens
_TUNING_OF_BEFORE = 5  # fields of the first Tuning, of which published records say all
# Of weights and 1e-3, 2e-3 and 4e-3 for 100 steps, the first had the least held-out loss on opt-embedded-m and
# llama-embedded-m; the last never improved them.
_RATE = 1e-3
MNLI_LABELS = ("entailment", "neutral", "contradiction")  # as GLUE numbers them


@dataclass(frozen=True)
class ModelSpec:
    """Source of a model.

    Attributes:
        name: name of the model in tables.
        source: place of its files; `product`, a single product of matrices, has none.
        id: hub id, folder, GGUF file or embedded name; of a package <name>/<file>; of a product its shapes, <N>x<K>.
        revision: commit on the hub, or version of the package.
        layers: number of layers that a synthetic model keeps, from the first; null: all.
        packed: true: the layers of a synthetic model are drawn as the method stores them, and nothing is quantized.
        task: sequence_classification: a causal model gets a new head of three classes, to be fine-tuned; null: the
            checkpoint's own task.
    """

    name: str
    source: Literal["hub", "folder", "package", "embedded", "synthetic", "product"]
    id: Annotated[str, a_path]
    revision: str | None = None
    layers: Count | None = None
    packed: bool = False
    task: Literal["sequence_classification"] | None = None

    def changed(self) -> dict[str, Any]:
        """Fields that are not at their defaults, by name."""
        fixed = defaults(ModelSpec)
        return {k: v for k, v in vars(self).items() if fixed[k] not in (MISSING, v)}


@dataclass(frozen=True)
class TextSpec:
    """A text from a named source.

    Attributes:
        protocol: name of its protocol (data/protocols.py).
        source: embedded, folder, hub; file, a text of the user's; or lm_eval, a task whose rows lm-eval fetches.
        root: folder of source=folder; file or folder of source=file.
        limit: number of windows of a stream, or of examples, to evaluate, the first ones; null: all.
        window: tokens of a window of a stream; null: the model's evaluation window.
    """

    protocol: str
    source: str
    root: str | None = None
    limit: Count | None = None
    window: Window | None = None

    @property
    def name(self) -> str:
        """The protocol's name; a part of a text, or another window, bears another name than the whole."""
        window = f", windows of {self.window}" if self.window else ""
        return f"{self.protocol}{window}{f', first {self.limit}' if self.limit else ''}"


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
    """Tuning of a quantized model by gradients (tuning/): block by block, then end to end.

    Attributes:
        steps: number of training steps of the whole model; 0: none.
        learning_rate: peak learning rate of the end-to-end steps; null: 1e-3, but of scales 0.04 times what their
            group's rounding errs by, and half of that again and again, wherever a held-out loss does not fall.
        batch: number of calibration windows of a step.
        loss: target of training: labels, the text's next token; distribution, the full-precision model's probabilities.
        seed: seed of the order of calibration windows.
        trains: parameters that are trained: weights, rounded in every pass; or scales, with fixed codes.
        weight_decay: weight decay of the optimizer, AdamW.
        block_steps: number of training steps of each block against its full-precision outputs, before those of the
            whole model; 0: none.
        block_learning_rate: peak learning rate of the block-wise steps, times what a group's rounding errs by.
        samples: number of windows that are trained on and that the method does not see, drawn behind its own (of those
            that are given, the last ones); null: the method's own.

    Raises:
        LutlabError: a value is out of range, or there are no steps at all.
    """

    steps: CountFrom0 = 0
    learning_rate: Rate | None = None
    batch: Count = 8
    loss: Loss = "distribution"
    seed: Annotated[int, a_seed] = 0
    trains: Literal["weights", "scales"] = "weights"
    weight_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    block_steps: CountFrom0 = 0
    # At 0.12 and q=2 the held-out error of a block of opt-embedded-s rose, whose codes coordinate descent had found.
    block_learning_rate: Rate = 0.04
    samples: Count | None = None

    def __post_init__(self) -> None:
        check(self, "tuning.")
        if self.trains == "weights" and self.learning_rate == _RATE:
            object.__setattr__(self, "learning_rate", None)  # one spelling: ids leave defaults out
        if not self.steps and not self.block_steps:
            raise LutlabError(
                "tuning.steps=0 and tuning.block_steps=0: give one of them, or drop tuning"
            )

    @property
    def rate(self) -> float:
        """Peak learning rate of the end-to-end steps; of scales, where none is given, in units of tuning/stages.py."""
        return self.learning_rate or _RATE

    @property
    def adapts(self) -> bool:
        """Whether a held-out loss that does not fall halves the rate: that of scales, where none is given."""
        return self.trains == "scales" and self.learning_rate is None

    def changed(self) -> dict[str, Any]:
        """The steps, and what else is not at its default, by name."""
        fixed = defaults(Tuning)
        return {k: v for k, v in vars(self).items() if k == "steps" or v != fixed[k]}

    def recorded(self) -> dict[str, Any]:
        """Fields by name, but for later ones at their defaults, so that ids of published rows stay."""
        changed, first = self.changed(), list(defaults(Tuning))[:_TUNING_OF_BEFORE]
        kept = {k: v for k, v in vars(self).items() if k in first or k in changed}
        return kept | ({"learning_rate": self.rate} if self.trains == "weights" else {})


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
    options: Options = ()

    @property
    def options_named(self) -> str:
        """Options in the command line's spelling."""
        return ", ".join(f"evaluator.{self.evaluator}.{key}={value}" for key, value in self.options)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Fields of a row that reach its run as they are: key, help, axis, record and id follow from the field alone.

    Attributes:
        budget: largest number of stored bits a weight over all layers; each layer then has a width of its own, which is
            searched.
        skip: patterns of layer names that stay in full precision: skip=[*.fc2].
        seed: seed of all random numbers.
    """

    budget: Budget | None = None
    skip: tuple[str, ...] = ()
    tuning: Tuning | None = None
    seed: Annotated[int, a_seed] = 0


@dataclass(frozen=True)
class ModelRun(Settings):
    """One row: a model quantized one way.

    Attributes:
        options: the method's own parameters, sorted by name.
        calibration: windows of a text; None for methods that look at weights only.
        sublayers: kinds of sub-layer with their own q and g, sorted by kind.
        candidates: (q, g) that a layer may have under a budget; q is then the largest of theirs, and g -1. () without a
            budget.
        layers: patterns of layer names with their own q and g; where several fit, the last one counts.
    """

    model: ModelSpec
    method: str
    q: int | float
    g: int
    options: Options = ()
    calibration: CalibrationSpec | None = None
    sublayers: tuple[Sublayer, ...] = ()
    candidates: tuple[tuple[int | float, int], ...] = ()
    layers: tuple[LayerWidth, ...] = ()
    device: str = "cpu"
    dtype: str = "float32"

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
        knobs: knobs of a named GPU kernel that differ from its defaults, sorted by name.
    """

    shapes: tuple[Shape, ...]
    method: str
    q: int | float
    g: int
    options: Options = ()
    kernel: str = "auto"
    knobs: Options = ()
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
    bits_stored counts, with ggml's type where it is that; bits_bcq: bits of the binary form (LUT-GEMM Eq. 5), None
    where there is none.
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
    are not those that the data set is known to have (data/splits.py), for the record and its table.
    """

    protocol: str
    rows: tuple[str, ...]
    sha256: str
    origin: str
    limit: int | None = None
    differs: str = ""


@dataclass(frozen=True)
class Subject:
    """A (quantized) model as an evaluator sees it: its tokenizer, the statistics of its layers, a text, its row."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    layers: tuple[LayerStats, ...]
    text: Text | None
    seqlen: int
    run: ModelRun


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
