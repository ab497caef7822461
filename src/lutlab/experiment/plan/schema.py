"""Schema of conf/, and the Hydra choices that exist by being there.

A quantizer's dataclass is a choice of `method=`; a file experiments/<paper>/<artifact>.yaml is a choice of `+exp=`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

from lutlab import registry
from lutlab.experiment.artifact.catalog import artifact_groups, artifacts, long_name
from lutlab.groups import CANDIDATE_BITS, CANDIDATE_GROUP_SIZES
from lutlab.specs import Tuning


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


@dataclass
class ModelConfig:
    """Source of the model, see specs.ModelSpec; source `product`: the shapes of a ProductRun are the id."""

    name: str = MISSING
    source: str = MISSING
    id: str = MISSING
    revision: str | None = None
    layers: int | None = None


@dataclass
class DataConfig:
    """Source of texts. A `root` means files in that folder, whatever the preset.

    `limit`: evaluate only the first so many windows or examples of each text; every table names it.
    """

    source: str = MISSING
    root: str | None = None
    limit: int | None = None
    stand_in: dict[str, str] = field(
        default_factory=dict
    )  # the paper's protocol -> the one evaluated instead


@dataclass
class CalibrationConfig:
    """Windows for calibrated methods, see specs.CalibrationSpec."""

    text: str = "c4-train"
    samples: int = 128
    seqlen: int | None = None
    seed: int = 0


@dataclass
class WidthConfig:
    """q and g of one kind of sub-layer; null: the model's."""

    q: float | None = None
    g: int | None = None


@dataclass
class SublayersConfig:
    """Widths by kind of sub-layer (LUT-GEMM Appendix A.2)."""

    attention: WidthConfig = field(default_factory=WidthConfig)
    feed_forward: WidthConfig = field(default_factory=WidthConfig)


@dataclass
class CandidatesConfig:
    """Widths that a budget chooses from for each layer: every q with every g."""

    q: list[float] = field(default_factory=lambda: list(CANDIDATE_BITS))
    g: list[int] = field(default_factory=lambda: list(CANDIDATE_GROUP_SIZES))


@dataclass
class TuningConfig:
    """Quantization-aware fine-tuning, see specs.Tuning; 0 steps: none."""

    steps: int = 0
    learning_rate: float = Tuning.learning_rate
    batch: int = Tuning.batch
    loss: str = Tuning.loss
    seed: int = Tuning.seed


@dataclass
class LoggerConfig:
    """Weights & Biases: mode none | offline | online; `records`: the folder that mode=track copies, null: results."""

    mode: str = MISSING
    project: str = "lutlab"
    records: str | None = None


@dataclass
class DashboardConfig:
    """The page of mode=dashboard.

    Attributes:
        of: results folders or published ones; none: that of `results`.
        tracked: a folder of offline Weights & Biases runs, read instead of records.
        output: the file; null: dashboard.html in `results`.
    """

    of: list[str] = field(default_factory=list)
    tracked: str | None = None
    output: str | None = None


@dataclass
class Config:
    """Everything a run depends on. `artifact` is set by +exp, `job` by the sweeper (job.py); `threads`: null, torch's.

    `name` names a sweep of one's own and its folder; `baseline`: the full-precision row of each model, and the stored
    size of each row, beside what such a sweep asks for.
    `alone`: true measures only the rows that need the machine to themselves, for a speed or a memory peak, false only
    the others, null all.
    `knobs` are those of the GPU kernel's variant that `kernel` names (kernels/lut_gemv); mu is one, as the papers call
    it. `evaluator` has the fields of each evaluator's class by its name: evaluator.kernel_latency.weights=resident.
    `layers` maps patterns of layer names to [q, g]: "layers={*.layers.0.*: [4, 128]}". It is Any, since into a typed
    mapping Hydra would put new keys by `+layers` only.
    `plugins` and `experiments` are a user's modules and folder of artifacts (additions.py), given on the command line.
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
    g: int = 128
    mu: int = 8
    kernel: str = "auto"
    knobs: dict[str, Any] = field(default_factory=dict)
    sublayers: SublayersConfig = field(default_factory=SublayersConfig)
    layers: Any = None
    budget: float | None = None
    candidates: CandidatesConfig = field(default_factory=CandidatesConfig)
    skip: list[str] = field(default_factory=list)
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
    tuning: TuningConfig = field(default_factory=TuningConfig)
    stream: bool = False
    data: DataConfig = field(default_factory=DataConfig)
    evaluate: list[str] = field(default_factory=list)
    evaluator: dict[str, Any] = field(default_factory=dict)
    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None
    alone: bool | None = None
    seed: int = 0
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    results: str = "results"
    dashboard: DashboardConfig = field(default_factory=DashboardConfig)
    plugins: list[str] = field(default_factory=list)
    experiments: str | None = None


def register_configs() -> None:
    """Tell Hydra the schema, the methods and the artifacts; imports neither torch nor any YAML."""
    store = ConfigStore.instance()
    evaluators = {name: _schema(cls) for name, cls in registry.classes("evaluator").items()}
    store.store(name="schema", node=Config(evaluator=evaluators))
    for name, cls in registry.classes("method").items():
        named = ("name", str, field(default=name))
        store.store(group="method", name=name, node=_schema(cls, named))
    choices = {name: long_name(path) for name, path in artifacts().items()}
    choices |= {name: name for name in artifact_groups()}
    for name, artifact in choices.items():
        group, _, leaf = f"exp/{name}".rpartition("/")
        store.store(group=group, name=leaf, node={"artifact": artifact}, package="_global_")


def _schema(cls: type, *more: tuple[str, type, Any]) -> type:
    """The fields of a quantizer or an evaluator, typed, and more: what `method.<field>=` and the like may set."""
    fields = [(f.name, f.type, field(default=f.default)) for f in dataclasses.fields(cls)]
    schema = dataclasses.make_dataclass(f"{cls.__name__}Config", [*more, *fields])
    schema.__module__ = cls.__module__  # where OmegaConf resolves the annotations
    return schema
