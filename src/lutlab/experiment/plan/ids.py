"""Ids of cells, of quantized models and of calibration inputs: hashes of all that decides their content.

    id = hash of  versions of the components that decide it (store/components.py)
                  the request, without what is at its default
                  hashes of model, tokenizer and text
                  torch at major.minor; of another library that quantizes, measures or is timed, its version
    and of a speed  machine, threads, fingerprint of the device's kernels, what tuning and races decided

A default is in no id, so that an option that is added later leaves the ids as they are. So whoever changes the default
of a method's or an evaluator's option raises its version (the lock sees it), and a default of a run stays as it is.
The tokenizer's files are hashed with the model's (models/load.py). No path, comment or import is in an id. Nor is
transformers, but where its own code is timed: the same weights give the same numbers by each of its versions
(tests/experiment/store/test_published_again.py), and a record says which one ran.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lutlab.base import registry
from lutlab.base.fields import defaults
from lutlab.base.specs import EvalSpec, ModelRun, ProductRun, RunSpec, TextSpec, Tuning
from lutlab.data import tasks
from lutlab.experiment.store.components import versions
from lutlab.experiment.store.provenance import libraries
from lutlab.experiment.store.record import canonical, content_id
from lutlab.quantizers.stored import STORED


@dataclass(frozen=True)
class Resolved:
    """A row with all that its ids and its job need to know of files and of this machine.

    Attributes:
        run: the row's.
        evaluations: evaluations by column.
        missing: column -> why it cannot be measured.
        absent: evaluations whose files must be downloaded first, which mode=plan does not.
        texts: hash of every text that is here.
        model: hash of the model's files; empty of a product, or where it is not here yet.
        formats: names of the formats that its layers are stored in.
        speeds: evaluation of speed or memory -> what its number depends on beside the row.
        labelled: whether it is calibrated on pairs with labels, which tuning then learns.
    """

    run: RunSpec
    evaluations: Mapping[str, EvalSpec]
    missing: Mapping[str, str] = field(default_factory=dict)
    absent: frozenset[EvalSpec] = frozenset()
    texts: Mapping[TextSpec, str] = field(default_factory=dict)
    model: str = ""
    formats: tuple[str, ...] = ()
    speeds: Mapping[EvalSpec, Mapping[str, Any]] = field(default_factory=dict)
    labelled: bool = False

    @property
    def runnable(self) -> list[EvalSpec]:
        """Evaluations with an id, each once: measured or to be measured."""
        wanted = dict.fromkeys(
            e for name, e in self.evaluations.items() if name not in self.missing
        )
        return [evaluation for evaluation in wanted if evaluation not in self.absent]


def of_this_machine(evaluation: EvalSpec) -> bool:
    """Whether an evaluation measures speed or memory."""
    return registry.lookup("evaluator", evaluation.evaluator).of_this_machine


def cell_identity(row: Resolved, evaluation: EvalSpec) -> dict[str, Any]:
    """Everything that decides a cell's number, in JSON's types: its id is the hash of it, and its record keeps it.

    Args:
        row: all that is known of its files.
        evaluation: the evaluator and its text.

    Raises:
        LutlabError: a component without a version.
    """
    names = [*_components(row), f"evaluator/{evaluation.evaluator}"]
    evaluator = registry.lookup("evaluator", evaluation.evaluator)
    identity: dict[str, Any] = {
        "run": _run_identity(row),
        "libraries": _libraries(row, *evaluator.libraries),
    }
    if text := evaluation.text:
        # Of a task that lm-eval fetches: the hash of its definition, and lm-eval's version.
        names += [] if text.source == tasks.SOURCE else [f"protocol/{text.protocol}"]
        identity["text"] = {"sha256": row.texts[text], "limit": text.limit}
        identity["text"] |= {"window": text.window} if text.window else {}
    if evaluation.options:
        identity["options"] = dict(evaluation.options)
    if evaluation in row.speeds:
        identity["speed"] = row.speeds[evaluation]
    return json.loads(canonical(identity | {"components": versions(*names)}))


def quantized_id(row: Resolved) -> str:
    """Names the quantized model of a row: everything that decides its weights."""
    return content_id([_run_identity(row), versions(*_components(row)), _libraries(row)])


def inputs_id(row: Resolved) -> str:
    """Names the calibration statistics of the full-precision model: the same for every method, q and g."""
    run = _run_identity(row)
    reads = {k: run.get(k) for k in ("model", "device", "dtype", "seed", "calibration")}
    components = versions("driver", "models", *_calibration_protocol(row.run))
    return content_id([reads, components, libraries()])


def _calibration_protocol(run: RunSpec) -> list[str]:
    """The component by which a calibration text becomes token ids; none without calibration."""
    calibration = run.calibration if isinstance(run, ModelRun) else None
    return [f"protocol/{calibration.text.protocol}"] if calibration else []


def _libraries(row: Resolved, *measuring: str) -> dict[str, str]:
    """Libraries that decide a row's weights, and the exact versions of those that measure them."""
    return libraries(*registry.lookup("method", row.run.method).libraries, *measuring)


def _components(row: Resolved) -> list[str]:
    """The components that decide a row's weights; a product's are drawn."""
    run = row.run
    if isinstance(run, ProductRun):
        return ["measure"]
    driver = "synthetic" if run.model.packed else "driver"
    if run.method == STORED:
        driver = "checkpoint"  # reads the layers; nothing drives a quantizer
    names = [driver, "models", f"method/{run.method}"]
    for name in row.formats:
        kernels = registry.lookup("format", name).kernels
        on_device = kernels.get("cpu" if run.device == "cpu" else "cuda", ())
        names += [f"format/{name}", *(f"kernel/{kernel}" for kernel in on_device)]
    names += _calibration_protocol(run)
    if run.budget is not None:
        names.append("search")
    return names + _stages(run.tuning, run.method, row.labelled) if run.tuning else names


def _stages(tuning: Tuning, method: str, labelled: bool) -> list[str]:
    """The components of a tuning's stages, and of its loss where labelled pairs are learnt."""
    names = ["tuning/blocks"] if tuning.block_steps else []
    if labelled:
        names.append("tuning/labels")
    end_to_end = "tuning" if tuning.trains == "weights" else f"tuning/{tuning.trains}"
    if not registry.lookup("method", method).quantizes:
        end_to_end = "tuning/whole"
    return [*names, end_to_end] if tuning.steps else names


def _run_identity(row: Resolved) -> dict[str, Any]:
    """A run with hashes in the place of names that files may change under, and without what is at its default."""
    run, method = row.run, registry.lookup("method", row.run.method)
    fixed = defaults(ProductRun) if isinstance(run, ProductRun) else defaults(ModelRun)
    fields = {k: v for k, v in dataclasses.asdict(run).items() if getattr(run, k) != fixed[k]}
    options = {key: value for key, value in run.options if value != defaults(method)[key]}
    fields |= {"device": run.device.partition(":")[0], "options": options}
    if isinstance(run, ProductRun):
        return fields
    if run.calibration:
        fields["calibration"]["text"] = row.texts[run.calibration.text]
    if run.tuning:
        fields["tuning"] = run.tuning.changed()
    return fields | {"model": row.model}
