"""Ids of cells, of quantized models and of calibration inputs: hashes of all that decides their content.

    id = hash of  versions of the components that decide it (store/components.py)
                  what is asked for, without what is at its default
                  hashes of model, tokenizer and text
                  torch and transformers at major.minor; lm-eval's version, of what it measures
    and of a speed  machine, threads, fingerprint of the device's kernels, what tuning and races decided

A default is in no id, so that an option that is added later leaves the ids as they are. So whoever changes the default
of a method's or an evaluator's option raises its version (the lock sees it), and a default of a run stays as it is.
The tokenizer's files are hashed with the model's (models/load.py). No path, comment or import is in an id.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from lutlab import registry
from lutlab.data.protocols import PROTOCOLS
from lutlab.experiment.plan.resolve import cached_text, model_sha256
from lutlab.experiment.store.components import (
    kernels_fingerprint,
    versions,
)
from lutlab.experiment.store.machine import machine
from lutlab.experiment.store.provenance import libraries
from lutlab.experiment.store.record import canonical, content_id
from lutlab.quantizers.stored import STORED
from lutlab.specs import EvalSpec, ModelRun, ProductRun, RunSpec


def cell_id(spec: RunSpec, evaluation: EvalSpec, threads: int | None) -> str:
    """Names a cell: everything that decides its number."""
    return content_id(cell_identity(spec, evaluation, threads))


def cell_identity(spec: RunSpec, evaluation: EvalSpec, threads: int | None) -> dict[str, Any]:
    """Everything that a cell's id is the hash of, in JSON's types; its record keeps it (provenance.identity).

    Args:
        spec: the row.
        evaluation: the evaluator and its text.
        threads: of the CPU; None: torch's own. Only speeds depend on them.

    Raises:
        LutlabError: unknown names, no such model or text, a component without a version.
    """
    names = [*_components(spec), f"evaluator/{evaluation.evaluator}"]
    evaluator = registry.lookup("evaluator", evaluation.evaluator)
    identity = {"run": _run_identity(spec), "libraries": libraries(*evaluator.libraries)}
    if evaluation.text:
        text = cached_text(evaluation.text)
        # Another text is a task of lm-eval: the hash of its definition, and lm-eval's version.
        if text.protocol in PROTOCOLS:
            names.append(f"protocol/{text.protocol}")
        identity["text"] = {"sha256": text.sha256, "limit": text.limit}
    if evaluation.options:
        identity["options"] = dict(evaluation.options)
    if evaluator.of_this_machine:
        identity["speed"] = _speed_identity(spec, evaluation, threads)
    return json.loads(canonical(identity | {"components": versions(*names)}))


def quantized_id(spec: ModelRun) -> str:
    """Names the quantized model of a row: everything that decides its weights."""
    return content_id([_run_identity(spec), versions(*_components(spec)), libraries()])


def inputs_id(spec: ModelRun) -> str:
    """Names the calibration statistics of the full-precision model: the same for every method, q and g."""
    run, text = _run_identity(spec), cached_text(spec.calibration.text)
    said = {k: run.get(k) for k in ("model", "device", "dtype", "seed", "calibration")}
    return content_id(
        [said, versions("driver", "models", f"protocol/{text.protocol}"), libraries()]
    )


def _components(spec: RunSpec) -> list[str]:
    """The components that decide a row's weights; a product's are drawn."""
    if isinstance(spec, ProductRun):
        return ["measure"]
    formats: tuple[str, ...] = (registry.lookup("method", spec.method).format,)
    names = ["driver", "models", f"method/{spec.method}"]
    if spec.method == STORED:
        from lutlab.checkpoint.stored import formats_of

        formats = formats_of(spec.model)
        names[0] = "checkpoint"  # reads the layers; nothing drives a quantizer
    elif spec.model.packed:
        names[0] = "synthetic"  # draws them
    for name in formats:
        kernels = registry.lookup("format", name).kernels
        on_device = kernels.get("cpu" if spec.device == "cpu" else "cuda", ())
        names += [f"format/{name}", *(f"kernel/{kernel}" for kernel in on_device)]
    if spec.calibration:
        names.append(f"protocol/{cached_text(spec.calibration.text).protocol}")
    if spec.budget is not None:
        names.append("search")
    if spec.tuning:
        names += _stages(spec)
    return names


def _stages(spec: ModelRun) -> list[str]:
    """The components of a tuning's stages, and of its loss where labelled pairs are learnt."""
    tuning, text = spec.tuning, spec.calibration and spec.calibration.text
    found = ["tuning/blocks"] if tuning.block_steps else []
    if text and PROTOCOLS[text.protocol].kind == "calibration-pairs":
        found.append("tuning/labels")
    end_to_end = "tuning" if tuning.trains == "weights" else f"tuning/{tuning.trains}"
    if not registry.lookup("method", spec.method).quantizes:
        end_to_end = "tuning/whole"
    return [*found, end_to_end] if tuning.steps else found


def _run_identity(spec: RunSpec) -> dict[str, Any]:
    """A run with hashes in the place of names that files may change under, and without what is at its default."""
    defaults = {f.name: f.default for f in dataclasses.fields(spec)}
    run = {k: v for k, v in dataclasses.asdict(spec).items() if getattr(spec, k) != defaults[k]}
    own = {f.name: f.default for f in dataclasses.fields(registry.lookup("method", spec.method))}
    options = {key: value for key, value in spec.options if value != own[key]}
    run |= {"device": _device(spec), "options": options}
    if isinstance(spec, ProductRun):
        return run
    if spec.calibration:
        run["calibration"]["text"] = cached_text(spec.calibration.text).sha256
    if spec.tuning:
        run["tuning"] = spec.tuning.changed()
    return run | {"model": model_sha256(spec.model)}


def _device(spec: RunSpec) -> str:
    return spec.device.partition(":")[0]


def _speed_identity(spec: RunSpec, evaluation: EvalSpec, threads: int | None) -> dict[str, Any]:
    known = machine(spec.device, threads)
    return {
        "machine": known,
        "kernels": kernels_fingerprint(_device(spec)),
        "chosen": _chosen(spec, evaluation, known),
    }


def _chosen(spec: RunSpec, evaluation: EvalSpec, known: dict[str, Any]) -> Any:
    """Decisions of tuning and races on this machine on the kernels that a row may call."""
    bits, shapes, kernel = {spec.q}, None, ""
    if isinstance(spec, ProductRun):
        shapes, kernel = {(rows, columns) for rows, columns, _ in spec.shapes}, spec.kernel
    else:
        bits |= {width.q for width in (*spec.sublayers, *spec.layers)}
        bits |= {q for q, _ in spec.candidates}
    if _device(spec) != "cpu":
        from lutlab.kernels.gpu import choice

        return choice.decisions(known["gpu"], spec.dtype, bits)
    from lutlab.kernels.cpu import qigen_gemv, rows_tuning

    found: dict[str, Any] = {"rows": rows_tuning.decisions(bits, known["threads"], shapes)}
    if rows_tuning.asked():  # the answer comes with the measurement: it is no untuned one
        found["tunes"] = True
    if evaluation.evaluator == "qigen" or kernel == "optq":  # on a CPU they are one kernel
        found["qigen"] = qigen_gemv.decisions(bits)
    return found
