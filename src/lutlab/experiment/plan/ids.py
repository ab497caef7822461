"""Ids of cells, of quantized models and of calibration inputs: hashes of all that decides their content."""

from __future__ import annotations

import dataclasses
from typing import Any

from lutlab import registry
from lutlab.experiment.plan.resolve import cached_text, model_sha256
from lutlab.experiment.store.machine import machine
from lutlab.experiment.store.provenance import code_sha256, kernels_sha256, search_sha256
from lutlab.experiment.store.store import content_id
from lutlab.specs import EvalSpec, ModelRun, RunSpec


def cell_id(spec: RunSpec, evaluation: EvalSpec, threads: int | None) -> str:
    """Names a cell: everything that decides its number."""
    identity = _identity(spec, evaluation)
    if registry.lookup("evaluator", evaluation.evaluator).of_this_machine:
        identity["machine"] = machine(spec.device, threads)
        identity["kernels"] = kernels_sha256(spec.device.partition(":")[0])
    return content_id(identity)


def _identity(spec: RunSpec, evaluation: EvalSpec) -> dict[str, Any]:
    """Everything that decides a cell's number."""
    text = evaluation.text and cached_text(evaluation.text)
    own = {"options": evaluation.options} if evaluation.options else {}
    return own | {
        "run": _run_identity(spec),
        "evaluator": evaluation.evaluator,
        "protocol": text and text.protocol,
        "text": text and text.sha256,
        "limit": text and text.limit,
        "code": code_sha256(
            _module("method", spec.method), _module("evaluator", evaluation.evaluator)
        ),
    }


def _run_identity(spec: RunSpec) -> dict[str, Any]:
    """A run with hashes in the place of names that files may change under."""
    run = dataclasses.asdict(spec)
    run["device"] = spec.device.partition(":")[0]
    if not isinstance(spec, ModelRun):
        return run
    run["model"] = model_sha256(spec.model)
    if spec.calibration:
        text = cached_text(spec.calibration.text)
        run["calibration"]["text"] = [text.protocol, text.sha256]
    if spec.budget is not None:
        run["search"] = search_sha256()
    return run


def quantized_id(spec: ModelRun) -> str:
    """Names the quantized model of a row: everything that decides its weights."""
    return content_id([_run_identity(spec), code_sha256(_module("method", spec.method))])


def _module(group: str, name: str) -> str:
    return registry.lookup(group, name).__module__


def inputs_id(spec: ModelRun) -> str:
    """Names what calibration sees of the full-precision model: the same for every method, q and g."""
    run = _run_identity(spec)
    return content_id(
        [run[key] for key in ("model", "device", "dtype", "seed", "calibration")]
        + [code_sha256("lutlab.compress.calibrate")]
    )
