"""A composed configuration -> Settings: one row as it is asked for, typed and frozen.

conf/, command line -> DictConfig of schema.py -> Settings        no file after this one sees a DictConfig
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from lutlab import registry
from lutlab.errors import LutlabError, Mistakes
from lutlab.experiment.plan.keys import config_keys, evaluator_keys
from lutlab.experiment.plan.schema import Config, Mode
from lutlab.groups import Bits, whole
from lutlab.specs import Tuning

Options = tuple[tuple[str, Any], ...]  # names and values, sorted by name


@dataclass(frozen=True)
class ModelSettings:
    """As ModelConfig; id and name are empty where none is given."""

    name: str
    source: str
    id: str
    revision: str | None
    layers: int | None
    packed: bool = False
    task: str | None = None


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
class DashboardSettings:
    """As DashboardConfig, with its defaults filled in."""

    of: tuple[Path, ...]
    tracked: Path | None
    output: Path


@dataclass(frozen=True)
class LoggerSettings:
    """As LoggerConfig."""

    mode: str
    project: str
    records: str | None


@dataclass(frozen=True)
class Settings:
    """One row as conf/ and the command line ask for it; fields are those of Config, typed and frozen.

    Attributes:
        options: of the method.
        knobs: of the kernel, mu among them where it is not the default.
        sublayers: kind -> (q, g), None being the model's.
        layers: pattern of layer names -> [q, g], in the order given.
        candidates: (q values, g values).
        tuning: None where it has no steps.
        evaluators: evaluator -> the fields of its class that were set to other values than their own.
    """

    artifact: str
    name: str | None
    baseline: bool
    rows: tuple[str, ...]
    mode: Mode
    scale: str
    model: ModelSettings
    method: str
    options: Options
    q: Bits
    g: int
    mu: int
    kernel: str
    knobs: Options
    sublayers: Mapping[str, tuple[Bits | None, int | None]]
    layers: Mapping[str, Any]
    budget: float | None
    candidates: tuple[tuple[Bits, ...], tuple[int, ...]]
    skip: tuple[str, ...]
    calibration: CalibrationSettings
    tuning: Tuning | None
    stream: bool
    data: DataSettings
    evaluate: tuple[str, ...]
    evaluators: Mapping[str, Options]
    device: str
    dtype: str
    threads: int | None
    alone: bool | None
    seed: int
    logger: LoggerSettings
    results: Path
    dashboard: DashboardSettings


_AS_THEY_ARE = (
    "artifact", "name", "baseline", "mode", "scale", "g", "mu", "kernel", "budget", "stream", "device", "dtype",
    "threads", "alone", "seed",
)  # fmt: skip


def settings_of(config: DictConfig) -> Settings:
    """The settings of a composed configuration.

    Raises:
        LutlabError: a value that its key refuses (schema.py), of another type by an interpolation, layers that are no
            mapping, or tuning out of range.
    """
    _check(config)
    method, calibration, data = map(_plain, (config.method, config.calibration, config.data))
    knobs = dict(config.knobs) | ({"mu": config.mu} if config.mu != Config.mu else {})
    return Settings(
        **{name: config[name] for name in _AS_THEY_ARE},
        q=whole(config.q),
        rows=tuple(config.rows),
        model=_model(config.model),
        method=method.pop("name"),
        options=_sorted(method),
        knobs=_sorted(knobs),
        sublayers={kind: _width(width) for kind, width in config.sublayers.items()},
        layers=_layers(config.layers),
        candidates=(tuple(map(whole, config.candidates.q)), tuple(config.candidates.g)),
        skip=tuple(config.skip),
        calibration=CalibrationSettings(**calibration),
        tuning=_tuning(config.tuning),
        data=DataSettings(**data),
        evaluate=tuple(config.evaluate),
        evaluators=_evaluators(_plain(config.evaluator)),
        logger=LoggerSettings(**_plain(config.logger)),
        results=Path(config.results),
        dashboard=_dashboard(config.dashboard, Path(config.results)),
    )


def _tuning(config: DictConfig) -> Tuning | None:
    """None where it is asked for no steps."""
    given = _plain(config)
    return Tuning(**given) if given["steps"] or given["block_steps"] else None


def _dashboard(config: DictConfig, results: Path) -> DashboardSettings:
    return DashboardSettings(
        of=tuple(map(Path, config.of)) or (results,),
        tracked=Path(config.tracked) if config.tracked else None,
        output=Path(config.output or results / "dashboard.html"),
    )


def _check(config: DictConfig) -> None:
    """Refuse what keys refuse by themselves: presets and artifacts set values too, which no command line has."""
    said = []
    for key in (*config_keys().values(), *evaluator_keys().values()):
        if not (key.check or key.many or key.open):
            continue
        value = OmegaConf.select(config, key.name)
        try:
            if (key.many and not isinstance(value, ListConfig)) or (
                key.open and not isinstance(value, DictConfig)
            ):
                key.convert(value)  # by an interpolation, of which OmegaConf takes any type
            if key.check and value is not None:
                key.check(key.name, value)
        except LutlabError as error:
            said.append(str(error))
    if said:
        raise Mistakes(said)


def _width(config: DictConfig) -> tuple[Bits | None, int | None]:
    return None if config.q is None else whole(config.q), config.g


def _model(config: DictConfig) -> ModelSettings:
    """Without an id, which a name may be made of, there is no name either: a sweep's fixed part may lack it."""
    given = OmegaConf.to_container(config)
    if OmegaConf.is_missing(config, "id"):
        return ModelSettings(**given | {"id": "", "name": ""})
    return ModelSettings(**given | {"name": config.name})


def _layers(given: DictConfig | None) -> Mapping[str, Any]:
    """Pattern of layer names -> [q, g]; compress/widths.py checks the widths."""
    if given is None:
        return {}
    if not isinstance(given, DictConfig):
        raise LutlabError(
            f'layers={given}: give patterns of layer names with [q, g], as "layers={{*.layers.0.*: [4, 128]}}"'
        )
    return _plain(given)


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
        changed = {key: value for key, value in values.items() if value != defaults[key]}
        if changed:
            found[name] = _sorted(changed)
    return found
