"""A run and an evaluation as a record keeps them, in JSON's types, and back; and the axes of a row.

    ModelRun | ProductRun, EvalSpec  ⇄  Record.run, Record.evaluation  ─▶  {"method": "bcq", "method.offset": True, …}

An axis is one thing that a row can be asked for, by its name on the command line. Tables, sweeps, tracked runs and
`lutlab.results` name a row by its axes, so that nothing that differs is hidden in one of them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter

from lutlab import registry
from lutlab.experiment.store.record import canonical
from lutlab.specs import CalibrationSpec, EvalSpec, ModelRun, ProductRun, RunSpec

_MODEL_RUN: TypeAdapter[ModelRun] = TypeAdapter(ModelRun)
_PRODUCT_RUN: TypeAdapter[ProductRun] = TypeAdapter(ProductRun)
_EVALUATION: TypeAdapter[EvalSpec] = TypeAdapter(EvalSpec)


def to_json(spec: RunSpec | EvalSpec) -> dict[str, Any]:
    """The spec in JSON's types; options are a mapping. What came later and is not asked for is left out, so that rows
    of before have the records, and sweeps of before the folders, that they had.
    """
    said = dataclasses.asdict(spec) | {"options": dict(spec.options)}
    if isinstance(spec, ModelRun) and not spec.model.packed:
        del said["model"]["packed"]
    if isinstance(spec, ModelRun) and spec.tuning:
        said["tuning"] = spec.tuning.asked()
    return json.loads(canonical(said))


def run_from(stored: Mapping[str, Any]) -> RunSpec:
    """The run that `to_json` wrote, today's or an earlier version's: what it does not say is at its default."""
    kind = _MODEL_RUN if "model" in stored else _PRODUCT_RUN
    options = stored.get("options", {})
    known = registry.classes("method").get(stored.get("method"))
    if options and known:  # a record says all that the method had then
        options = {f.name: f.default for f in dataclasses.fields(known)} | options
    return kind.validate_python(_with_pairs({**stored, "options": options}))


def evaluation_from(stored: Mapping[str, Any]) -> EvalSpec:
    """The evaluation that `to_json` wrote."""
    return _EVALUATION.validate_python(_with_pairs(stored))


def _with_pairs(stored: Mapping[str, Any]) -> dict[str, Any]:
    return dict(stored) | {"options": sorted(stored.get("options", {}).items())}


def axes(run: RunSpec, evaluation: EvalSpec | None = None) -> dict[str, Any]:
    """The axes of a row by their names on the command line, or those of a cell.

    >>> axes(ProductRun(((8, 16, 1),), "rtn", 4, 8))["model"]
    'synthetic-8x16'

    Returns:
        Axis -> a number, a word or a flag. What was not asked for (no budget, no calibration) has no axis.
    """
    found = {"model": run.name, "method": run.method, "q": run.q, "g": run.g}
    found |= {f"method.{key}": value for key, value in run.options}
    found |= dict(_of_model(run) if isinstance(run, ModelRun) else _of_product(run))
    found |= {"device": run.device, "dtype": run.dtype, "seed": run.seed}
    if evaluation:
        found |= dict(_of_evaluation(evaluation))
    return {key: value for key, value in found.items() if value not in (None, "")}


def differing(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The axes that do not have one value in all rows, in the order of their first appearance."""
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if len({canonical(row.get(name)) for row in rows}) > 1]


def _of_model(run: ModelRun) -> Iterator[tuple[str, Any]]:
    yield "model.id", run.model.id
    yield "model.source", run.model.source
    yield "model.revision", run.model.revision
    yield "model.layers", run.model.layers
    yield "model.packed", run.model.packed or None
    for one in run.sublayers:
        yield f"sublayers.{one.kind}.q", one.q
        yield f"sublayers.{one.kind}.g", one.g
    yield "layers", ", ".join(f"{one.pattern}: [{one.q}, {one.g}]" for one in run.layers)
    yield "skip", ", ".join(run.skip)
    yield "budget", run.budget
    yield "candidates", ", ".join(f"q{q} g{g}" for q, g in run.candidates)
    if run.calibration:
        yield from _of_calibration(run.calibration)
    if run.tuning:
        for name, value in run.tuning.asked().items():
            yield f"tuning.{name}", value


def _of_calibration(calibration: CalibrationSpec) -> Iterator[tuple[str, Any]]:
    yield "calibration.text", calibration.text.protocol
    for name in ("samples", "seqlen", "seed"):
        yield f"calibration.{name}", getattr(calibration, name)


def _of_product(run: ProductRun) -> Iterator[tuple[str, Any]]:
    yield "kernel", run.kernel
    for name, value in run.knobs:
        yield f"knobs.{name}", value


def _of_evaluation(evaluation: EvalSpec) -> Iterator[tuple[str, Any]]:
    yield "evaluator", evaluation.evaluator
    if text := evaluation.text:
        yield "text", text.protocol
        yield "data.source", text.source
        yield "data.root", text.root
        yield "data.limit", text.limit
    for name, value in evaluation.options:
        yield f"evaluator.{evaluation.evaluator}.{name}", value
