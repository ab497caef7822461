"""Schema of conf/, and the Hydra choices that exist by being there.

A quantizer's dataclass is a choice of `method=`; a file experiments/<paper>/<artifact>.yaml is a choice of `+exp=`.
What a class says under "Attributes" is what `--help` says of its keys (keys.py).
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from lutlab import registry
from lutlab.data import SOURCES
from lutlab.experiment.artifact.catalog import artifact_groups, artifacts, long_name
from lutlab.experiment.plan.setting import (
    DEVICES,
    DTYPES,
    a_budget,
    a_device,
    a_group_size,
    a_limit,
    a_path,
    a_seed,
    at_least_one,
    setting,
    threads,
)
from lutlab.groups import CANDIDATE_BITS, CANDIDATE_GROUP_SIZES
from lutlab.models.contract import CLASSIFIES
from lutlab.specs import TRAINED, TUNING_LOSSES, Tuning

MODEL_SOURCES = ("hub", "folder", "embedded", "synthetic", "product")
LOGGERS = ("none", "offline", "online")


class Mode(Enum):
    """run: measure what is missing, then report. plan: say what would run. report: render what is measured. dashboard:
    draw all that was measured on one page. track: copy what is measured to Weights & Biases, from tables and records
    alone.
    """

    run = "run"
    plan = "plan"
    report = "report"
    dashboard = "dashboard"
    track = "track"

    def __str__(self) -> str:
        """As the command line has it: tab completion prints it so."""
        return self.value


@dataclass
class ModelConfig:
    """Source of the model, see specs.ModelSpec.

    Attributes:
        name: how tables call it.
        source: where its files are; of `product`, a single product of matrices, there are none.
        id: hub id, folder or embedded name; of a product its shapes, <N>x<K>.
        revision: commit on the hub.
        layers: cuts a synthetic model to its first so many; null: all.
        packed: draws the linear layers of a synthetic model as the method stores them; nothing is quantized.
        task: a new head of three classes on a causal model, to be fine-tuned; null: the checkpoint's own task.
    """

    name: str = MISSING
    source: str = setting(MISSING, values=MODEL_SOURCES)
    id: str = setting(MISSING, check=a_path)
    revision: str | None = None
    layers: int | None = setting(None, check=at_least_one)
    packed: bool = False
    task: str | None = setting(None, values=(CLASSIFIES,))


@dataclass
class DataConfig:
    """Source of texts.

    Attributes:
        source: where texts come from.
        root: folder of texts as files (docs/data-layout.md), whatever the source.
        limit: evaluate only the first so many windows or examples of each text; every table names it.
        stand_in: the paper's protocol -> the one evaluated instead.
    """

    source: str = setting(MISSING, values=SOURCES)
    root: str | None = setting(None, check=a_path)
    limit: int | None = setting(None, check=a_limit)
    stand_in: dict[str, str] = field(default_factory=dict)


@dataclass
class CalibrationConfig:
    """Windows for calibrated methods, see specs.CalibrationSpec.

    Attributes:
        text: protocol of the text.
        samples: windows.
        seqlen: tokens of a window; null: the model's evaluation window.
        seed: of the windows' places.
    """

    text: str = "c4-train"
    samples: int = setting(128, check=at_least_one)
    seqlen: int | None = setting(None, check=at_least_one)
    seed: int = setting(0, check=a_seed)


@dataclass
class WidthConfig:
    """Width of one kind of sub-layer.

    Attributes:
        q: bits; null: the model's.
        g: group size; null: the model's.
    """

    q: float | None = None
    g: int | None = setting(None, check=a_group_size)


@dataclass
class SublayersConfig:
    """Widths by kind of sub-layer (LUT-GEMM Appendix A.2)."""

    attention: WidthConfig = field(default_factory=WidthConfig)
    feed_forward: WidthConfig = field(default_factory=WidthConfig)


@dataclass
class CandidatesConfig:
    """Widths that a budget chooses from for each layer: every q with every g.

    Attributes:
        q: numbers of bits a budget chooses from.
        g: group sizes a budget chooses from.
    """

    q: list[float] = field(default_factory=lambda: list(CANDIDATE_BITS))
    g: list[int] = field(default_factory=lambda: list(CANDIDATE_GROUP_SIZES))


@dataclass
class TuningConfig:
    """Tuning by gradients, see specs.Tuning.

    Attributes:
        steps: of the optimizer, end to end; 0: none.
        learning_rate: AdamW's, at its peak.
        batch: calibration windows a step.
        loss: the text's next token, or the full-precision model's distribution of it.
        seed: of the order of the windows.
        trains: the weights, rounded in every pass, or the scales alone, under codes that stay.
        weight_decay: AdamW's.
        block_steps: steps on each block against its full-precision outputs, before those end to end; 0: none.
        block_learning_rate: AdamW's, at its peak, of those.
    """

    steps: int = Tuning.steps
    learning_rate: float = Tuning.learning_rate
    batch: int = setting(Tuning.batch, check=at_least_one)
    loss: str = setting(Tuning.loss, values=TUNING_LOSSES)
    seed: int = setting(Tuning.seed, check=a_seed)
    trains: str = setting(Tuning.trains, values=TRAINED)
    weight_decay: float = Tuning.weight_decay
    block_steps: int = Tuning.block_steps
    block_learning_rate: float = Tuning.block_learning_rate


@dataclass
class LoggerConfig:
    """Weights & Biases.

    Attributes:
        mode: where runs go: nowhere, into files, or to the service.
        project: of Weights & Biases.
        records: folder that mode=track copies; null: `results`.
    """

    mode: str = setting(MISSING, values=LOGGERS)
    project: str = "lutlab"
    records: str | None = setting(None, check=a_path)


@dataclass
class DashboardConfig:
    """The page of mode=dashboard.

    Attributes:
        of: results folders or published ones; none: that of `results`.
        tracked: a folder of offline Weights & Biases runs, read instead of records.
        output: the file; null: dashboard.html in `results`.
    """

    of: list[str] = field(default_factory=list)
    tracked: str | None = setting(None, check=a_path)
    output: str | None = setting(None, check=a_path)


@dataclass
class Config:
    """Everything a run depends on; `artifact` is set by +exp, `scale` by its preset, `job` by the sweeper (job.py).

    `layers` is Any, since into a typed mapping Hydra would put new keys by `+layers` only. `evaluator` has the fields
    of each evaluator's class by its name.

    Attributes:
        rows: rows of a table, by name or pattern: "rows=[opt-30b/*]"; [] is all.
        name: of a sweep of one's own, and of its folder; null: made of its axes.
        baseline: full precision and stored size beside each row of a sweep of one's own.
        mode: measure what is missing and report, say what would run, render what is measured, draw all of it on one
            page, or copy it to Weights & Biases.
        q: bits of a code, 1 to 8; of some methods a mean width, as 2.5.
        g: weights along K that share a scale, at least 8; -1: one scale a row.
        mu: bits of x that index a lookup table, of a single product (model=product).
        kernel: which kernel multiplies, of a single product; auto: the best of lutlab's.
        knobs: of the GPU kernel's variant that `kernel` names (kernels/README.md): knobs.luts=4.
        layers: patterns of layer names -> [q, g]: "layers={*.layers.0.*: [4, 128]}".
        budget: stored bits a weight, of all layers together, which then have widths of their own.
        skip: patterns of layer names that stay in full precision: skip=[*.fc2].
        stream: one block in memory at a time.
        evaluate: evaluators of a sweep, each with its text if it reads one: evaluate=[ppl:wikitext2,weight_error].
        device: where models run; spread: over several GPUs.
        dtype: of what is not quantized; auto: float32 on a CPU, float16 on a GPU.
        threads: of torch; null: its own choice.
        alone: true: only rows that measure speed or memory; false: only the others; null: all.
        seed: of all that is drawn.
        results: folder of records and reports.
        plugins: modules of yours: plugins=my_methods,my_metrics.
        experiments: folder of tables of yours, <paper>/<artifact>.yaml.
    """

    artifact: str = ""
    job: str = ""
    name: str | None = None
    baseline: bool = True
    rows: list[str] = field(default_factory=list)
    mode: Mode = Mode.run
    scale: str = MISSING
    model: ModelConfig = field(default_factory=ModelConfig)
    method: Any = MISSING
    q: float = 4
    g: int = setting(128, check=a_group_size)
    mu: int = setting(8, check=at_least_one)
    kernel: str = "auto"
    knobs: dict[str, Any] = field(default_factory=dict)
    sublayers: SublayersConfig = field(default_factory=SublayersConfig)
    layers: Any = None
    budget: float | None = setting(None, check=a_budget)
    candidates: CandidatesConfig = field(default_factory=CandidatesConfig)
    skip: list[str] = field(default_factory=list)
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
    tuning: TuningConfig = field(default_factory=TuningConfig)
    stream: bool = False
    data: DataConfig = field(default_factory=DataConfig)
    evaluate: list[str] = field(default_factory=list)
    evaluator: dict[str, Any] = field(default_factory=dict)
    device: str = setting("auto", values=DEVICES, check=a_device)
    dtype: str = setting("auto", values=DTYPES)
    threads: int | None = setting(None, check=threads)
    alone: bool | None = None
    seed: int = setting(0, check=a_seed)
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    results: str = setting("results", check=a_path)
    dashboard: DashboardConfig = field(default_factory=DashboardConfig)
    plugins: list[str] = field(default_factory=list)
    experiments: str | None = setting(None, check=a_path)


def register_configs() -> None:
    """Tell Hydra the schema, the methods and the artifacts; imports neither torch nor any YAML."""
    store = ConfigStore.instance()
    evaluators = {name: schema_of(cls) for name, cls in registry.classes("evaluator").items()}
    store.store(name="schema", node=Config(evaluator=evaluators))
    for name, cls in registry.classes("method").items():
        named = ("name", str, field(default=name))
        store.store(group="method", name=name, node=schema_of(cls, named))
    choices = {name: long_name(path) for name, path in artifacts().items()}
    choices |= {name: name for name in artifact_groups()}
    for name, artifact in choices.items():
        group, _, leaf = f"exp/{name}".rpartition("/")
        store.store(group=group, name=leaf, node={"artifact": artifact}, package="_global_")


def schema_of(cls: type, *more: tuple[str, type, Any]) -> type:
    """Fields of a quantizer or an evaluator, typed, and more: what `method.<field>=` and the like may set."""
    fields = [(f.name, f.type, field(default=f.default)) for f in dataclasses.fields(cls)]
    schema = dataclasses.make_dataclass(f"{cls.__name__}Config", [*more, *fields])
    schema.__module__ = cls.__module__  # where OmegaConf resolves the annotations
    return schema
