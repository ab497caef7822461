"""From a composed configuration to what is to be measured: RunSpecs and content-addressed cells, pure data.

A column is one metric of one evaluation; several columns may read the same evaluation, which is measured once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from omegaconf import DictConfig, OmegaConf

from lutlab import registry
from lutlab.data import folder
from lutlab.data.protocols import PROTOCOLS
from lutlab.errors import LutlabError, nearest
from lutlab.experiment.artifact.artifact import ColumnSpec
from lutlab.experiment.plan.ids import cell_identity
from lutlab.experiment.plan.resolve import cached_text, readable
from lutlab.experiment.plan.settings import Config, evaluator_options
from lutlab.experiment.store.record import Record
from lutlab.experiment.store.store import Store, content_id
from lutlab.groups import check_bits, check_group_size
from lutlab.kernels.gpu.short_names import full_name
from lutlab.quantizers.contract import Calibrated
from lutlab.specs import CalibrationSpec, EvalSpec, ModelSpec, RunSpec, Sublayer, TextSpec

_DTYPES = ("float32", "float16", "bfloat16")


@dataclass(frozen=True)
class PlannedCell:
    """One evaluation of one row. `record` is what the store holds of it; `missing` says why it cannot be run.

    `cell_id` is None where it is missing, and in mode=plan where files must be downloaded before it is known;
    `identity` is what it is the hash of (ids.py).
    """

    evaluation: EvalSpec
    cell_id: str | None
    record: Record | None = None
    missing: str = ""
    identity: Mapping[str, Any] | None = None

    @property
    def done(self) -> bool:
        """Measured already (a failed try is not)."""
        return self.record is not None and self.record.status == "done"


@dataclass(frozen=True)
class PlannedRow:
    """One row: what to run and its cells by column."""

    key: str
    labels: Mapping[str, str]
    spec: RunSpec
    columns: Mapping[str, ColumnSpec]
    cells: Mapping[str, PlannedCell]

    @property
    def todo(self) -> dict[str, PlannedCell]:
        """Cells to measure by id: not done, runnable, each evaluation once."""
        return {c.cell_id: c for c in self.cells.values() if c.cell_id and not c.done}

    @property
    def alone(self) -> bool:
        """Whether it measures the machine itself, so that no other row may run at the same time."""
        return any(_of_this_machine(c.evaluation.evaluator) for c in self.todo.values())


def run_spec(config: DictConfig) -> RunSpec:
    """The RunSpec of a composed configuration.

    Raises:
        LutlabError: q, g, budget, device or dtype out of range, or a budget for what has no widths to choose.
    """
    method = OmegaConf.to_container(config.method)
    name = method.pop("name")
    quantizer = registry.lookup("method", name)(**method)  # refuses parameters out of range
    quantizes = quantizer.quantizes
    device = _device(config.device)
    dtype = (
        config.dtype if config.dtype != "auto" else ("float32" if device == "cpu" else "float16")
    )
    if dtype not in _DTYPES:
        raise LutlabError(f"unknown dtype '{dtype}': {nearest(dtype, _DTYPES)}")
    knobs = dict(config.knobs) | ({"mu": config.mu} if config.mu != Config.mu else {})
    if (config.kernel != "auto" or knobs) and config.model.source != "product":
        named = min(knobs) if config.kernel == "auto" else f"kernel={config.kernel}"
        raise LutlabError(f"{named} is of a single product: set model=product")
    candidates = _candidates(config, name, quantizes)
    q, g = (max(q for q, _ in candidates), -1) if candidates else (config.q, config.g)
    looks = candidates or isinstance(quantizer, Calibrated)
    return RunSpec(
        model=_model(config),
        method=name,
        q=check_bits(q) if quantizes else 16,
        g=check_group_size(g) if quantizes else -1,
        options=tuple(sorted(method.items())),
        calibration=_calibration(config) if looks else None,
        sublayers=_sublayers(config) if quantizes else (),
        budget=config.budget,
        candidates=candidates,
        skip=tuple(config.skip) if quantizes else (),
        device=device,
        dtype=dtype,
        seed=config.seed,
        kernel=full_name(config.kernel),
        knobs=tuple(sorted(knobs.items())),
    )


def _model(config: DictConfig) -> ModelSpec:
    """A folder is named by its last part, as whole paths do not fit a table; a cut model says to how many layers."""
    spec = ModelSpec(**OmegaConf.to_container(config.model, resolve=True))
    if spec.source == "folder" and spec.name == spec.id:
        return dataclasses.replace(spec, name=PurePath(spec.id).name)
    if spec.source == "synthetic" and spec.name == f"synthetic-{spec.id}":
        cut = f", {spec.layers} layers" if spec.layers else ""
        return dataclasses.replace(spec, name=f"synthetic-{PurePath(spec.id).name}{cut}")
    return spec


def _calibration(config: DictConfig) -> CalibrationSpec:
    chosen = config.calibration
    for name in ("samples", "seqlen"):
        if chosen[name] is not None and chosen[name] < 1:
            raise LutlabError(f"calibration.{name}={chosen[name]}: give a number of at least 1")
    text = text_spec(chosen.text, config.data)
    return CalibrationSpec(text, chosen.samples, chosen.seqlen, chosen.seed)


def _sublayers(config: DictConfig) -> tuple[Sublayer, ...]:
    """Kinds of sub-layer that have a width of their own."""
    own = []
    for kind, width in sorted(config.sublayers.items()):
        q = config.q if width.q is None else width.q
        g = config.g if width.g is None else width.g
        if (q, g) != (config.q, config.g):
            own.append(Sublayer(kind, check_bits(q), check_group_size(g)))
    return tuple(own)


def _candidates(config: DictConfig, method: str, quantizes: bool) -> tuple[tuple[int, int], ...]:
    """What a budget may choose from for each layer; () without one."""
    if config.budget is None:
        return ()
    if not quantizes:
        raise LutlabError(f"method={method} has no widths to choose: drop budget={config.budget}")
    if not config.budget > 0:
        raise LutlabError(f"budget={config.budget}: give a positive number of stored bits a weight")
    if config.stream:
        raise LutlabError("budget tries widths out on copies of the model: drop stream=true")
    if own := _sublayers(config):
        raise LutlabError(
            f"budget chooses the widths of all layers: drop sublayers.{own[0].kind} or the budget"
        )
    found = [
        (check_bits(q), check_group_size(g))
        for q in config.candidates.q
        for g in config.candidates.g
    ]
    if not found:
        raise LutlabError(
            "budget needs widths to choose from: candidates.q or candidates.g is empty"
        )
    return tuple(dict.fromkeys(found))


def _device(wanted: str) -> str:
    import torch

    if wanted == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if wanted.startswith(("cuda", "spread")) and not torch.cuda.is_available():
        raise LutlabError(
            f"device={wanted}, but this machine has no CUDA device; use device=cpu or device=auto"
        )
    if wanted != "spread" and wanted.partition(":")[0] not in ("cpu", "cuda"):
        known = ["cpu", "cuda", "auto", "spread"]
        raise LutlabError(f"unknown device '{wanted}': {nearest(wanted, known)}")
    return wanted


def text_spec(protocol: str, data: DictConfig) -> TextSpec:
    """Where a column's text comes from: the folder data.root if given, else the preset, which may name a stand-in."""
    if data.root is not None:
        return TextSpec(folder.resolve(protocol, data.root), "folder", str(data.root))
    spec = TextSpec(data.stand_in.get(protocol, protocol), data.source)
    if spec.protocol not in PROTOCOLS:
        raise LutlabError(f"unknown text '{spec.protocol}': {nearest(spec.protocol, PROTOCOLS)}")
    return spec


def plan_row(
    config: DictConfig, key: str, labels: Mapping[str, str], columns: Mapping[str, ColumnSpec]
) -> PlannedRow:
    """Resolve one row against the store.

    Raises:
        LutlabError: all texts or the model are missing, or a stored record is damaged.
    """
    spec = run_spec(config)
    store = Store(config.results)
    cells = {name: _plan_cell(spec, column, config, store) for name, column in columns.items()}
    wanted = [cell.evaluation.text for cell in cells.values() if cell.evaluation.text]
    if wanted and all(cell.missing for cell in cells.values() if cell.evaluation.text):
        cached_text(wanted[0])  # a folder without any of the texts is a mistake, which this names
    return PlannedRow(key, labels, spec, columns, cells)


def _plan_cell(spec: RunSpec, column: ColumnSpec, config: DictConfig, store: Store) -> PlannedCell:
    text = None
    if column.text:
        text = dataclasses.replace(text_spec(column.text, config.data), limit=config.data.limit)
    options = evaluator_options(config).get(column.evaluator, ())
    evaluation = EvalSpec(column.evaluator, text, options)
    evaluator = registry.lookup("evaluator", column.evaluator)
    evaluator(**dict(options))  # refuses values out of range
    if reason := column.not_run or _obstacle(evaluator, spec):
        return PlannedCell(evaluation, None, missing=reason)
    read = [text, spec.calibration and spec.calibration.text]
    if config.mode.name == "plan" and "hub" in (spec.model.source, *(t.source for t in read if t)):
        return PlannedCell(
            evaluation, None
        )  # a plan downloads nothing, and ids hash what was downloaded
    if text and not readable(text):
        return PlannedCell(
            evaluation, None, missing=f"no text '{text.protocol}' under data.root={text.root}"
        )
    identity = cell_identity(spec, evaluation, config.threads)
    cell = content_id(identity)
    return PlannedCell(evaluation, cell, store.load(cell), identity=identity)


def _of_this_machine(evaluator: str) -> bool:
    return registry.lookup("evaluator", evaluator).of_this_machine


def _obstacle(evaluator: type, spec: RunSpec) -> str:
    """Why an evaluator cannot measure a row here, as what it needs and is not installed; empty where it can."""
    if spec.model.source == "product" and not getattr(evaluator, "of_products", False):
        return "it is measured on a model, and a product is none: kernel_latency is for those"
    if hasattr(evaluator, "obstacle"):
        return evaluator.obstacle(spec)
    return getattr(evaluator, "lacking", str)()
