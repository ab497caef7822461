"""Typed configuration: the schema of conf/, the Hydra choices that exist by being there, and Settings, which they make.

    conf/, command line -> DictConfig (Config's fields) -> Settings

A quantizer's dataclass is a choice of `method=`; a file experiments/<paper>/<artifact>.yaml is a choice of `+exp=`.
No file after this one sees a DictConfig.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from lutlab import registry
from lutlab.data import check_limit
from lutlab.errors import LutlabError, nearest
from lutlab.experiment.artifact.catalog import artifact_groups, artifacts, long_name
from lutlab.groups import CANDIDATE_BITS, CANDIDATE_GROUP_SIZES


class Mode(Enum):
    """run: measure what is missing, then report. plan: say what would run. report: render what is measured."""

    run = "run"
    plan = "plan"
    report = "report"


@dataclass
class ModelConfig:
    """Where the model comes from, see specs.ModelSpec; source `product`: the shapes of a ProductRun are the id."""

    name: str = MISSING
    source: str = MISSING
    id: str = MISSING
    revision: str | None = None
    layers: int | None = None


@dataclass
class DataConfig:
    """Where texts come from. A `root` means files in that folder, whatever the preset.

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
    """What calibrated methods look at, see specs.CalibrationSpec."""

    text: str = "c4-train"
    samples: int = 128
    seqlen: int | None = None
    seed: int = 0


@dataclass
class WidthConfig:
    """q and g of one kind of sub-layer; null: the model's."""

    q: int | None = None
    g: int | None = None


@dataclass
class SublayersConfig:
    """Widths by kind of sub-layer (LUT-GEMM Appendix A.2)."""

    attention: WidthConfig = field(default_factory=WidthConfig)
    feed_forward: WidthConfig = field(default_factory=WidthConfig)


@dataclass
class CandidatesConfig:
    """What a budget may choose from for each layer: every q with every g."""

    q: list[int] = field(default_factory=lambda: list(CANDIDATE_BITS))
    g: list[int] = field(default_factory=lambda: list(CANDIDATE_GROUP_SIZES))


@dataclass
class LoggerConfig:
    """Weights & Biases: mode none | offline | online."""

    mode: str = MISSING
    project: str = "lutlab"


@dataclass
class Config:
    """Everything a run depends on. `artifact` is set by +exp, `job` by the sweeper (job.py); `threads`: null, torch's.

    `knobs` are those of the GPU kernel's variant that `kernel` names (kernels/lut_gemv); mu is one, as the papers call
    it. `evaluator` has the fields of each evaluator's class by its name: evaluator.kernel_latency.weights=resident.
    """

    artifact: str = ""
    job: str = ""
    rows: list[str] = field(default_factory=list)
    mode: Mode = Mode.run
    scale: str = MISSING
    model: ModelConfig = field(default_factory=ModelConfig)
    method: Any = MISSING
    q: int = 4
    g: int = 128
    mu: int = 8
    kernel: str = "auto"
    knobs: dict[str, Any] = field(default_factory=dict)
    sublayers: SublayersConfig = field(default_factory=SublayersConfig)
    budget: float | None = None
    candidates: CandidatesConfig = field(default_factory=CandidatesConfig)
    skip: list[str] = field(default_factory=list)
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
    stream: bool = False
    data: DataConfig = field(default_factory=DataConfig)
    evaluate: list[str] = field(default_factory=list)
    evaluator: dict[str, Any] = field(default_factory=dict)
    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None
    seed: int = 0
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    results: str = "results"


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


# ---- what planning sees ----

Options = tuple[tuple[str, Any], ...]  # names and values, sorted by name


@dataclass(frozen=True)
class ModelSettings:
    """As ModelConfig; id and name are empty where none is given."""

    name: str
    source: str
    id: str
    revision: str | None
    layers: int | None


@dataclass(frozen=True)
class DataSettings:
    """As DataConfig."""

    source: str
    root: str | None
    limit: int | None
    stand_in: Mapping[str, str]


@dataclass(frozen=True)
class CalibrationSettings:
    """As CalibrationConfig."""

    text: str
    samples: int
    seqlen: int | None
    seed: int


@dataclass(frozen=True)
class Settings:
    """One row as conf/ and the command line ask for it; fields are those of Config, typed and frozen.

    Attributes:
        options: of the method.
        knobs: of the kernel, mu among them where it is not the default.
        sublayers: kind -> (q, g), None being the model's.
        candidates: (q values, g values).
        evaluators: evaluator -> the fields of its class that were set to other values than their own.
        logger: (mode, project).
    """

    artifact: str
    rows: tuple[str, ...]
    mode: Mode
    scale: str
    model: ModelSettings
    method: str
    options: Options
    q: int
    g: int
    mu: int
    kernel: str
    knobs: Options
    sublayers: Mapping[str, tuple[int | None, int | None]]
    budget: float | None
    candidates: tuple[tuple[int, ...], tuple[int, ...]]
    skip: tuple[str, ...]
    calibration: CalibrationSettings
    stream: bool
    data: DataSettings
    evaluate: tuple[str, ...]
    evaluators: Mapping[str, Options]
    device: str
    dtype: str
    threads: int | None
    seed: int
    logger: tuple[str, str]
    results: Path


_AS_THEY_ARE = (
    "artifact", "mode", "scale", "q", "g", "mu", "kernel", "budget", "stream", "device", "dtype", "threads", "seed",
)  # fmt: skip


def settings_of(config: DictConfig) -> Settings:
    """The settings of a composed configuration.

    Raises:
        LutlabError: no such evaluator or field of one, or a number that is less than 1 and counts.
    """
    if config.threads is not None and config.threads < 1:
        raise LutlabError(
            f"threads={config.threads}: give at least 1, or null for torch's own choice"
        )
    method, calibration, data = map(_plain, (config.method, config.calibration, config.data))
    for name in ("samples", "seqlen"):
        if calibration[name] is not None and calibration[name] < 1:
            raise LutlabError(
                f"calibration.{name}={calibration[name]}: give a number of at least 1"
            )
    check_limit(data["limit"])
    knobs = dict(config.knobs) | ({"mu": config.mu} if config.mu != Config.mu else {})
    return Settings(
        **{name: config[name] for name in _AS_THEY_ARE},
        rows=tuple(config.rows),
        model=_model(config.model),
        method=method.pop("name"),
        options=_sorted(method),
        knobs=_sorted(knobs),
        sublayers={kind: (width.q, width.g) for kind, width in config.sublayers.items()},
        candidates=(tuple(config.candidates.q), tuple(config.candidates.g)),
        skip=tuple(config.skip),
        calibration=CalibrationSettings(**calibration),
        data=DataSettings(**data),
        evaluate=tuple(config.evaluate),
        evaluators=_evaluators(_plain(config.evaluator)),
        logger=(config.logger.mode, config.logger.project),
        results=Path(config.results),
    )


def _model(config: DictConfig) -> ModelSettings:
    """Without an id, which a name may be made of, there is no name either: a sweep's fixed part may lack it."""
    given = OmegaConf.to_container(config)
    if OmegaConf.is_missing(config, "id"):
        return ModelSettings(**given | {"id": "", "name": ""})
    return ModelSettings(**given | {"name": config.name})


def _plain(config: DictConfig) -> dict[str, Any]:
    return OmegaConf.to_container(config, resolve=True)


def _sorted(values: Mapping[str, Any]) -> Options:
    return tuple(sorted(values.items()))


def _evaluators(given: Mapping[str, Mapping[str, Any]]) -> dict[str, Options]:
    """Evaluator -> its fields that were changed."""
    found = {}
    for name, values in given.items():
        defaults = {
            f.name: f.default for f in dataclasses.fields(registry.lookup("evaluator", name))
        }
        for key, value in values.items():
            if key not in defaults:
                raise LutlabError(f"evaluator.{name} has no '{key}': {nearest(key, defaults)}")
            if isinstance(value, int) and value < 1:
                raise LutlabError(f"evaluator.{name}.{key}={value}: give at least 1")
        changed = {key: value for key, value in values.items() if value != defaults[key]}
        if changed:
            found[name] = _sorted(changed)
    return found


def _schema(cls: type, *more: tuple[str, type, Any]) -> type:
    """The fields of a quantizer or an evaluator, typed, and more: what `method.<field>=` and the like may set."""
    fields = [(f.name, f.type, field(default=f.default)) for f in dataclasses.fields(cls)]
    schema = dataclasses.make_dataclass(f"{cls.__name__}Config", [*more, *fields])
    schema.__module__ = cls.__module__  # where OmegaConf resolves the annotations
    return schema
