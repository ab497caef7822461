"""A row as conf/ and the command line ask for it: each field once, with its type, default, limit and meaning.

    conf/, command line -> DictConfig -> Row.of: every value read by its key (base/fields.py)

No file after this one sees a DictConfig. What a row asks for, a model quantized one way or a product of matrices, is
run.py's.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from lutlab.base import registry, sources
from lutlab.base.errors import LutlabError, Mistakes, nearest
from lutlab.base.fields import Key, default_of, defaults, keys_of, nested
from lutlab.base.groups import CANDIDATE_BITS, CANDIDATE_GROUP_SIZES, Bits
from lutlab.base.limits import (
    DEVICES,
    Count,
    Threads,
    a_device,
    a_folder_name,
    a_group_size,
    a_path,
    a_project,
    a_seed,
)
from lutlab.base.specs import ModelSpec, Options, Settings, Tuning, Window
from lutlab.data import Source
from lutlab.experiment.artifact.catalog import artifact_groups, artifacts, long_name
from lutlab.experiment.artifact.rows import Scale
from lutlab.experiment.artifact.yaml_file import read_yaml

Logging = Literal["none", "offline", "online"]
_OF_GROUPS = ("method", "options", "evaluator")  # set by keys of their own classes
_ELSEWHERE = ("scale", "artifact", "job")
# The fixed part of a sweep may lack what its rows give.
_EMPTY: dict[type, dict[str, str]] = {ModelSpec: {"id": "", "name": ""}}


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
        """Spelling on the command line."""
        return self.value


def _widths_by_pattern(name: str, value: Any) -> None:
    """Patterns of layers with [q, g]; compress/widths.py checks the widths."""
    if not isinstance(value, Mapping):
        raise LutlabError(
            f'layers={value}: give patterns of layer names with [q, g], as "layers={{*.layers.0.*: [4, 128]}}"'
        )


@dataclass(frozen=True)
class Data:
    """Source of texts.

    Attributes:
        source: place that texts come from: the package, a folder, or the hub.
        root: folder that texts are read from, whatever data.source says (docs/data-layout.md).
        limit: number of windows or examples of each text that are evaluated, from its beginning; null: all. Every table
            names it.
        examples: number of examples that are evaluated of each task (LAMBADA, zero-shot); null: data.limit.
        window: number of tokens of an evaluated window; null: the model's own window. Every table names it.
        text: texts of your own, by names that you choose: data.text.mine=<file or folder>.
        stand_in: text of the paper -> the text that is evaluated in its place.
    """

    source: Source
    root: Annotated[str | None, a_path] = None
    limit: Count | None = None
    examples: Count | None = None
    window: Window | None = None
    text: dict[str, str] = field(default_factory=dict)
    stand_in: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Calibration:
    """Windows for calibrated methods, see specs.CalibrationSpec.

    Attributes:
        text: name of the calibration text.
        samples: number of calibration windows.
        seqlen: number of tokens of a calibration window; null: the model's own window.
        seed: seed of the places that windows are drawn from.
    """

    text: str = "c4-train"
    samples: Count = 128
    seqlen: Count | None = None
    seed: Annotated[int, a_seed] = 0


@dataclass(frozen=True)
class OwnWidth:
    """Width of one kind of sub-layer.

    Attributes:
        q: bits of these sub-layers; null: q.
        g: group size of these sub-layers; null: g.
    """

    q: Bits | None = None
    g: Annotated[int | None, a_group_size] = None


@dataclass(frozen=True)
class Sublayers:
    """Widths by kind of sub-layer (LUT-GEMM Appendix A.2)."""

    attention: OwnWidth = OwnWidth()
    feed_forward: OwnWidth = OwnWidth()


@dataclass(frozen=True)
class Candidates:
    """Widths that a budget chooses from for each layer: every q with every g.

    Attributes:
        q: numbers of bits that a budget chooses from.
        g: group sizes that a budget chooses from.
    """

    q: tuple[float, ...] = CANDIDATE_BITS
    g: tuple[int, ...] = CANDIDATE_GROUP_SIZES


@dataclass(frozen=True)
class Logger:
    """Weights & Biases.

    Attributes:
        mode: destination of runs: none; offline, files; online, the service.
        project: name of the project.
        records: folder that mode=track copies; null: `results`.
    """

    mode: Logging
    project: Annotated[str, a_project] = "lutlab"
    records: Annotated[str | None, a_path] = None


@dataclass(frozen=True)
class Dashboard:
    """The page of mode=dashboard.

    Attributes:
        of: folders of results or of published artifacts; empty: `results`.
        tracked: folder of offline Weights & Biases runs that is read in the place of records.
        output: path of the page; null: dashboard.html in `results`.
    """

    of: tuple[str, ...] = ()
    tracked: Annotated[Path | None, a_path] = None
    output: Annotated[Path | None, a_path] = None


@dataclass(frozen=True, kw_only=True)
class Row(Settings):
    """Everything a run depends on; `artifact` is set by +exp, `scale` by its preset, `job` by the sweeper.

    `method` is the name of a method and `options` are its fields, sorted by name; `evaluator` has of each evaluator
    the fields that are not at their defaults.

    Attributes:
        rows: names or patterns of the rows of a table that are measured: "rows=[opt-30b/*]"; []: all.
        name: name of a sweep and of its folder; null: made of its axes.
        baseline: true: a sweep shows full precision and stored sizes beside its rows.
        mode: action: run, measure what is missing and report; plan, say what would run; report, render what is
            measured; dashboard, draw it on one page; track, copy it to Weights & Biases.
        q: bits of a code, 1 to 8; a fraction as 2.5 is a mean width, for methods with several widths.
        g: number of neighbouring weights that share a scale, at least 8; -1: a whole row.
        mu: number of activations that index one lookup table, in a single product (model=product).
        kernel: kernel of a single product (model=product); auto: the best of lutlab's.
        knobs: knobs of the GPU kernel's variant that `kernel` names (kernels/README.md): knobs.luts=4.
        layers: patterns of layer names -> [q, g]: "layers={*.layers.0.*: [4, 128]}".
        stream: true: one block of the model is in memory at a time.
        evaluate: evaluators, each with the text that it reads: evaluate=[ppl:wikitext2,weight_error].
        device: device that models run on; spread: shared among all GPUs.
        dtype: dtype of everything that is not quantized; auto: float32 on a CPU, float16 on a GPU.
        threads: number of CPU threads; null: torch's own choice.
        alone: rows that are measured: true, those of speed or memory; false, the others; null: all.
        results: folder that records and reports are written to.
        plugins: names of Python modules of yours: plugins=my_methods,my_metrics.
        experiments: folder with tables of yours, as <paper>/<artifact>.yaml.
    """

    artifact: str = ""
    job: str = ""
    name: Annotated[str | None, a_folder_name] = None
    baseline: bool = True
    rows: tuple[str, ...] = ()
    mode: Mode = Mode.run
    scale: Scale
    model: ModelSpec
    method: str
    options: Options = ()
    q: Bits = 4
    g: Annotated[int, a_group_size] = 128
    mu: Count = 8
    kernel: str = "auto"
    knobs: dict[str, Any] = field(default_factory=dict)
    sublayers: Sublayers = Sublayers()
    layers: Annotated[Any, _widths_by_pattern] = None
    candidates: Candidates = Candidates()
    calibration: Calibration = Calibration()
    stream: bool = False
    data: Data
    evaluate: tuple[str, ...] = ()
    evaluator: Mapping[str, Options] = field(default_factory=dict)
    device: Annotated[str, DEVICES, a_device] = "auto"
    dtype: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    threads: Threads | None = None
    alone: bool | None = None
    logger: Logger
    results: Annotated[Path, a_path] = Path("results")
    dashboard: Dashboard = Dashboard()
    plugins: tuple[str, ...] = ()
    experiments: Annotated[str | None, a_path] = None

    @classmethod
    def of(cls, config: DictConfig) -> Row:
        """The row of a composed configuration. Presets and artifacts set values too, which no command line has.

        Raises:
            Mistakes: keys that do not exist, values that their keys refuse.
            LutlabError: tuning out of range.
        """
        composed = {str(name): _value(config, str(name)) for name in config if name != "hydra"}
        method = composed["method"].pop("name")
        keys = all_row_keys() | method_keys(method) | evaluator_keys()
        mistakes, flat = [], {}
        for name, value in _leaves(composed, keys):
            if name not in keys:
                mistakes.append(f"no key '{name}': {nearest(name, keys)}")
                continue
            try:
                flat[name] = keys[name].read(value)
            except LutlabError as error:
                mistakes.append(str(error))
        if mistakes:
            raise Mistakes(mistakes)
        evaluators = {}
        for name, evaluator in registry.classes("evaluator").items():
            fields = _below(f"evaluator.{name}.", flat).items()
            if changed := {k: value for k, value in fields if value != defaults(evaluator)[k]}:
                evaluators[name] = _sorted(changed)
        options = _sorted(_below("method.", flat))
        return _built(
            cls, "", flat | {"method": method, "options": options, "evaluator": evaluators}
        )

    @property
    def all_knobs(self) -> Options:
        """Knobs of the kernel, mu among them where it is not the default."""
        return _sorted(self.knobs | ({"mu": self.mu} if self.mu != Row.mu else {}))


@functools.cache
def all_row_keys() -> dict[str, Key]:
    """Keys of a row's own fields, those among them that lutlab sets itself."""
    keys = {key.name: key for key in keys_of(Row) if key.name not in _OF_GROUPS}
    settings = [
        key.name for key in keys_of(Settings)
    ]  # --help has them behind the row's other widths
    names = [name for name in keys if name not in settings]
    at = names.index("stream")
    return {name: keys[name] for name in (*names[:at], *settings, *names[at:])}


@functools.cache
def method_keys(name: str) -> dict[str, Key]:
    """Keys of a registered method."""
    return {key.name: key for key in keys_of(registry.lookup("method", name), "method.")}


def evaluator_keys() -> dict[str, Key]:
    """Keys of all registered evaluators."""
    evaluators = registry.classes("evaluator").items()
    return {key.name: key for name, cls in evaluators for key in keys_of(cls, f"evaluator.{name}.")}


def row_keys() -> dict[str, Key]:
    """The keys that every command line may have, those of methods and evaluators left out."""
    return {name: key for name, key in all_row_keys().items() if name not in _ELSEWHERE}


def _value(config: DictConfig, name: str) -> Any:
    """A key's value as Python has it. A sweep's fixed part may lack a model's id, and so its name, made of it."""
    if name == "model" and OmegaConf.is_missing(config.model, "id"):
        fields: Any = OmegaConf.to_container(config.model)
        return fields | {"id": MISSING, "name": MISSING}
    value = MISSING if OmegaConf.is_missing(config, name) else config[name]
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _leaves(values: Mapping[str, Any], keys: Mapping[str, Key], above: str = "") -> Iterator[Any]:
    """(dotted name, value) of what is composed: a mapping is a value where a key holds one."""
    for name, value in values.items():
        name = f"{above}{name}"
        if name not in keys and isinstance(value, dict):
            yield from _leaves(value, keys, f"{name}.")
        elif value != MISSING:
            yield name, value


def _built(cls: type, above: str, flat: Mapping[str, Any]) -> Any:
    """An instance of a row's class, or of one within it, by dotted names; tuning of no steps is None."""
    values = {}
    for field_ in dataclasses.fields(cls):
        if inner := nested(cls, field_):
            values[field_.name] = _built(inner, f"{above}{field_.name}.", flat)
        elif (name := f"{above}{field_.name}") in flat:
            values[field_.name] = flat[name]
    if cls is Tuning and not (values["steps"] or values["block_steps"]):
        return None
    return cls(**_EMPTY.get(cls, {}) | values)


def _below(above: str, flat: Mapping[str, Any]) -> dict[str, Any]:
    """Field -> value, of the keys below one."""
    return {k.removeprefix(above): v for k, v in flat.items() if k.startswith(above)}


def _sorted(values: Mapping[str, Any]) -> Options:
    return tuple(sorted(values.items()))


# ---- groups of the command line and their choices, as `model=opt-125m`; and Hydra's copy ----


def choices(config_dirs: Sequence[Path] = ()) -> dict[str, list[str]]:
    """Group -> its choices: the presets of conf/ and other folders, the methods, the artifacts."""
    groups: dict[str, list[str]] = {}
    for folder in (sources.folder("conf"), *config_dirs):
        for path in sorted(folder.glob("*/**/*.yaml")):
            group, _, name = path.relative_to(folder).with_suffix("").as_posix().partition("/")
            groups.setdefault(group, []).append(name)
    groups["method"] = list(registry.classes("method"))
    groups["exp"] = [*artifacts(), *artifact_groups()]
    return dict(sorted(groups.items()))


def check_presets(config_dirs: Sequence[Path] = ()) -> None:
    """Read the user's own presets, of whose damage Hydra's message would not always name the file.

    Raises:
        LutlabError: a file cannot be read, is no UTF-8 or no YAML, or is empty.
    """
    groups = [*choices(), "local", "hydra"]
    added = [folder / group for folder in config_dirs for group in groups]  # and no other folders
    for folder in (sources.folder("conf") / "local", *added):
        for path in sorted(folder.glob("**/*.yaml")):
            read_yaml(path)
            if not path.stat().st_size:
                raise LutlabError(
                    f"{path} is empty: a preset sets a key or more; restore or remove it"
                )


def default_choice(group: str) -> str:
    """The choice that conf/config.yaml makes in a group."""
    defaults = OmegaConf.load(sources.folder("conf") / "config.yaml").defaults
    return next(item[group] for item in defaults if not isinstance(item, str) and group in item)


def register_choices() -> None:
    """Tell Hydra the keys, the methods and the artifacts; imports neither torch nor any YAML."""
    store = ConfigStore.instance()
    evaluators = {name: _defaults(cls) for name, cls in registry.classes("evaluator").items()}
    keys = _defaults(Row) | {"method": MISSING, "evaluator": evaluators}
    del keys["options"]
    store.store(name="schema", node=keys)
    for name, cls in registry.classes("method").items():
        store.store(group="method", name=name, node={"name": name} | _defaults(cls))
    choices = {name: long_name(path) for name, path in artifacts().items()}
    choices |= {name: name for name in artifact_groups()}
    for name, artifact in choices.items():
        group, _, leaf = f"exp/{name}".rpartition("/")
        store.store(group=group, name=leaf, node={"artifact": artifact}, package="_global_")


def _defaults(cls: type) -> dict[str, Any]:
    """Field -> default in OmegaConf's types; fields of a dataclass within it as a mapping."""
    node = {}
    for field_ in dataclasses.fields(cls):
        inner, value = nested(cls, field_), default_of(field_)
        if inner:
            value = _defaults(inner)
        if value is dataclasses.MISSING:
            value = MISSING
        node[field_.name] = str(value) if isinstance(value, Path | Enum) else value
    return node
