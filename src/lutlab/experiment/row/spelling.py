"""A run spelled out: in JSON's types for its record, as axes for tables, as the command that gives its number again.

    ModelRun | ProductRun, EvalSpec  ⇄  Record.run, Record.evaluation
                                     ─▶  {"method": "bcq", "method.offset": True, …}       its axes
                                     ─▶  ["method=bcq", "method.offset=true", …]           run.py backwards

An axis is one setting of a row, by its name on the command line. Tables, sweeps, tracked runs and
`lutlab.results` name a row by its axes, so that nothing that differs is hidden in one of them.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml
from pydantic import TypeAdapter

from lutlab.base import registry, sources
from lutlab.base.fields import defaults, spelled
from lutlab.base.specs import EvalSpec, ModelRun, ModelSpec, ProductRun, RunSpec, Settings
from lutlab.data import user
from lutlab.experiment.artifact.catalog import program, short_name
from lutlab.experiment.store.record import canonical

_OF_FIRST_RECORDS = ("budget", "skip", "tuning", "seed")  # fields of Settings that every record has
_MODEL_RUN: TypeAdapter[ModelRun] = TypeAdapter(ModelRun)
_PRODUCT_RUN: TypeAdapter[ProductRun] = TypeAdapter(ProductRun)
_EVALUATION: TypeAdapter[EvalSpec] = TypeAdapter(EvalSpec)


def to_json(spec: RunSpec | EvalSpec) -> dict[str, Any]:
    """The spec in JSON's types; options are a mapping. Fields that were added to a spec are left out at their defaults,
    so that ids of records and folders of sweeps stay.
    """
    fields = dataclasses.asdict(spec) | {"options": dict(spec.options)}
    fields = {k: value for k, value in fields.items() if k not in _later(spec, at_default=True)}
    calibration = fields.get("calibration") or {}
    for text in filter(None, (fields.get("text"), calibration.get("text"))):
        if text["window"] is None:
            del text["window"]
    if isinstance(spec, ModelRun) and not spec.model.packed:
        del fields["model"]["packed"]
    if isinstance(spec, ModelRun) and spec.tuning:
        fields["tuning"] = spec.tuning.recorded()
    return json.loads(canonical(fields))


def _later(spec: RunSpec | EvalSpec, at_default: bool) -> dict[str, Any]:
    """Fields that were added to Settings after the first records, by name: those at their defaults, or the others."""
    fixed = {k: v for k, v in defaults(Settings).items() if k not in _OF_FIRST_RECORDS}
    values = {name: getattr(spec, name) for name in fixed if isinstance(spec, Settings)}
    return {name: v for name, v in values.items() if (v == fixed[name]) is at_default}


def run_from(stored: Mapping[str, Any]) -> RunSpec:
    """The run that `to_json` wrote, in this version or an earlier one; fields that are missing get their defaults."""
    kind = _MODEL_RUN if "model" in stored else _PRODUCT_RUN
    options = stored.get("options", {})
    known = registry.classes("method").get(stored.get("method", ""))
    if options and known:  # a record says all that the method had then
        options = {**defaults(known), **options}
    return kind.validate_python({**stored, "options": options})


def evaluation_from(stored: Mapping[str, Any]) -> EvalSpec:
    """The evaluation that `to_json` wrote."""
    return _EVALUATION.validate_python(stored)


def axes(run: RunSpec, evaluation: EvalSpec | None = None) -> dict[str, Any]:
    """The axes of a row by their names on the command line, or those of a cell.

    >>> axes(ProductRun(((8, 16, 1),), "rtn", 4, 8))["model"]
    'synthetic-8x16'

    Returns:
        Axis -> a number, a word or a flag. A setting that is absent (no budget, no calibration) has no axis.
    """
    settings: dict[str, Any] = {"model": run.name, "method": run.method, "q": run.q, "g": run.g}
    settings |= {f"method.{key}": value for key, value in run.options}
    if isinstance(run, ModelRun):
        settings |= dict(_axes_of_model(run))
    else:
        settings |= {"kernel": run.kernel} | {f"knobs.{name}": value for name, value in run.knobs}
    settings |= {"device": run.device, "dtype": run.dtype, "seed": run.seed}
    if evaluation:
        settings |= dict(_axes_of_evaluation(evaluation))
    return {key: value for key, value in settings.items() if value not in (None, "")}


def differing(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The axes that do not have one value in all rows, in the order of their first appearance."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if len({canonical(row.get(name)) for row in rows}) > 1]


def _axes_of_model(run: ModelRun) -> Iterator[tuple[str, Any]]:
    yield "model.id", run.model.id
    yield "model.source", run.model.source
    yield from ((f"model.{name}", value) for name, value in run.model.changed().items())
    yield from _sublayers(run)
    yield "layers", _layers(run)
    yield "skip", ", ".join(run.skip)
    yield "budget", run.budget
    yield "candidates", ", ".join(f"q{q} g{g}" for q, g in run.candidates)
    yield from _calibration(run)
    if run.tuning:
        yield from ((f"tuning.{name}", value) for name, value in run.tuning.recorded().items())
    yield from _later(run, at_default=False).items()


def _sublayers(run: ModelRun) -> Iterator[tuple[str, Any]]:
    for sublayer in run.sublayers:
        yield f"sublayers.{sublayer.kind}.q", sublayer.q
        yield f"sublayers.{sublayer.kind}.g", sublayer.g


def _layers(run: ModelRun) -> str:
    return ", ".join(f"{layer.pattern}: [{layer.q}, {layer.g}]" for layer in run.layers)


def _calibration(run: ModelRun) -> Iterator[tuple[str, Any]]:
    if run.calibration:
        yield "calibration.text", run.calibration.text.protocol
        for name in ("samples", "seqlen", "seed"):
            yield f"calibration.{name}", getattr(run.calibration, name)


def _axes_of_evaluation(evaluation: EvalSpec) -> Iterator[tuple[str, Any]]:
    yield "evaluator", evaluation.evaluator
    if text := evaluation.text:
        yield "text", text.protocol
        yield "data.source", text.source
        yield "data.root", text.root
        yield "data.limit", text.limit
        yield "data.window", text.window
    for name, value in evaluation.options:
        yield f"evaluator.{evaluation.evaluator}.{name}", value


# ---- commands ----

# Settings of how and where a run works: they change no number, so that a table's command goes without them.
OF_NO_NUMBER = ("mode", "results", "logger", "alone", "hydra", "name", "job", "dashboard")
_PLAIN = re.compile(r"[\w./+-]+")  # what Hydra's grammar reads as one word


def shell(overrides: Sequence[str]) -> str:
    """The command as a reader types it."""
    return f"{program()} {shlex.join(overrides)}".strip()


def table_command(artifact: str, typed: Sequence[str]) -> str:
    """The command that gives a table again.

    Args:
        artifact: long name of the artifact; empty for a sweep of one's own.
        typed: the other overrides of the command line. Those of conf/local, which nobody else has, go before them.
    """
    exp = [f"+exp={short_name(artifact)}"] if artifact else []
    return shell([*exp, *_local(), *typed])


def _local() -> Iterator[str]:
    """Overrides of conf/local/default.yaml."""
    path = sources.folder("conf") / "local" / "default.yaml"
    if not path.is_file():
        return
    config = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    for choice in config.pop("defaults", []):
        if isinstance(choice, dict):
            for group, option in choice.items():
                yield f"{group.removeprefix('override').strip(' /')}={option}"
    for key, value in flatten("", config):
        if not is_one_of(key, OF_NO_NUMBER):
            yield f"{key}={_value(value)}"


def flatten(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Nested mappings as (dotted name, leaf) pairs."""
    if not isinstance(value, dict):
        yield prefix, value
        return
    for key, inner in value.items():
        yield from flatten(f"{prefix}.{key}" if prefix else str(key), inner)


def is_one_of(key: str, names: Sequence[str]) -> bool:
    """Whether a key is one of some, or lies below one."""
    return any(key == name or key.startswith((f"{name}.", f"{name}/")) for name in names)


def overrides_of(run: RunSpec, evaluation: EvalSpec, threads: int | None = None) -> list[str]:
    """Overrides whose only cell is this one, by today's defaults.

    Args:
        run: the row.
        evaluation: the evaluator, its text and its options.
        threads: number of the CPU's threads, which only a speed depends on.
    """
    text = evaluation.text
    overrides = [*(_model_run(run) if isinstance(run, ModelRun) else _product_run(run))]
    if run.device != "cpu":
        overrides.append(f"device={run.device}")
    if run.dtype != ("float32" if run.device == "cpu" else "float16"):
        overrides.append(f"dtype={run.dtype}")
    if run.seed:
        overrides.append(f"seed={run.seed}")
    name = evaluation.evaluator + (f":{text.protocol}" if text else "")
    overrides.append(f"evaluate=[{name}]")
    overrides += [
        f"evaluator.{evaluation.evaluator}.{k}={_value(v)}" for k, v in evaluation.options
    ]
    calibration = run.calibration if isinstance(run, ModelRun) else None
    texts = [read for read in (text, calibration and calibration.text) if read]
    files = {read.protocol: read.root for read in texts if read.source == user.SOURCE}
    overrides += [f"data.text.{name}={_value(place)}" for name, place in files.items()]
    if read := next((read for read in texts if read.source != user.SOURCE), None):
        overrides += ["data=hub"] if read.source == "hub" else []
        overrides += [f"data.root={_value(read.root)}"] if read.root else []
    if text and text.limit:
        overrides.append(f"data.limit={text.limit}")
    if text and text.window:
        overrides.append(f"data.window={text.window}")
    if threads and registry.lookup("evaluator", evaluation.evaluator).of_this_machine:
        overrides.append(f"threads={threads}")
    return overrides


def _model_run(run: ModelRun) -> Iterator[str]:
    yield from _model(run.model)
    yield from _method(run)
    if run.budget is not None:
        yield f"budget={run.budget:g}"
        for i, name in enumerate(("q", "g")):
            values = dict.fromkeys(str(width[i]) for width in run.candidates)
            yield f"candidates.{name}=[{','.join(values)}]"
    yield from (f"{name}={value}" for name, value in _sublayers(run))
    if run.layers:
        yield f"layers={{{_layers(run)}}}"
    if run.skip:
        yield "skip=[{}]".format(",".join(f"'{pattern}'" for pattern in run.skip))
    yield from (f"{name}={value}" for name, value in _calibration(run) if value)
    if run.tuning:
        yield from (f"tuning.{name}={_value(v)}" for name, v in run.tuning.changed().items())
    yield from (f"{name}={_value(v)}" for name, v in _later(run, at_default=False).items())


def _product_run(run: ProductRun) -> Iterator[str]:
    shapes = ("x".join(map(str, (n, k) if m == 1 else (n, k, m))) for n, k, m in run.shapes)
    yield "model=product"
    yield f"model.id={'+'.join(shapes)}"
    yield from _method(run)
    if run.kernel != "auto":
        yield f"kernel={run.kernel}"
    yield from (f"+knobs.{name}={_value(value)}" for name, value in run.knobs)


def _model(model: ModelSpec) -> Iterator[str]:
    """Overrides of a model, by its preset where it has one."""
    changed = model.changed()
    if preset := _presets().get((model.name, model.id, model.revision)):
        yield f"model={preset}"
        changed.pop("revision", None)
    else:
        yield f"model={'synthetic' if model.source == 'synthetic' else 'folder'}"
        yield f"model.id={_value(model.id)}"
        if model.source not in ("synthetic", "folder"):
            yield f"model.source={model.source}"
            yield f"model.name={_value(model.name)}"
    yield from (f"model.{name}={_value(value)}" for name, value in changed.items())


@functools.cache
def _presets() -> Mapping[tuple[str, str, str | None], str]:
    """Name, id and revision of a model -> its preset; read once: a page of all has thousands of commands."""
    presets = {}
    for path in sorted((sources.folder("conf") / "model").glob("*.yaml")):
        preset = yaml.safe_load(path.read_text(encoding="utf-8"))
        presets[preset["name"], preset["id"], preset.get("revision")] = path.stem
    return presets


def _method(run: RunSpec) -> Iterator[str]:
    """The method, its parameters that are not at their defaults, q and g where it has them."""
    method = registry.lookup("method", run.method)
    yield f"method={run.method}"
    yield from (f"method.{k}={_value(v)}" for k, v in run.options if v != defaults(method)[k])
    budget = run.budget if isinstance(run, ModelRun) else None
    if method.quantizes and budget is None:
        yield f"q={run.q}"
        yield f"g={run.g}"


def _value(value: Any) -> str:
    """A value in Hydra's grammar."""
    if isinstance(value, list):
        return f"[{','.join(map(_value, value))}]"
    if value is None or isinstance(value, bool):
        return spelled(value)
    text = str(value)
    return text if _PLAIN.fullmatch(text) else "'{}'".format(text.replace("'", "\\'"))
