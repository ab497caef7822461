"""The only file that sees all stages: plan -> launch rows -> measure -> store -> compare -> report.

`sweep` runs in the process the user started; `run_row` runs in the launcher's workers, one row a call.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from rich.console import Console

from lutlab import registry
from lutlab.errors import LutlabError
from lutlab.experiment.artifact.artifact import Artifact, ColumnSpec, free_columns, load_artifact
from lutlab.experiment.artifact.outcome import ResultTable
from lutlab.experiment.plan import additions, plan, sweeping
from lutlab.experiment.plan.plan import PlannedCell, PlannedRow
from lutlab.experiment.plan.resolve import cached_text
from lutlab.experiment.plan.settings import evaluator_options
from lutlab.experiment.report import compare
from lutlab.experiment.run.cli import RowsFailed
from lutlab.experiment.run.prepare import Prepared, prepare
from lutlab.experiment.store.components import every_name, versions
from lutlab.experiment.store.provenance import environment
from lutlab.experiment.store.record import Record
from lutlab.experiment.store.store import Store, content_id
from lutlab.specs import Measurement, Subject

log = logging.getLogger(__name__)
Compose = Callable[[Sequence[str]], DictConfig]
Launch = Callable[[Sequence[Sequence[str]]], list[Any]]


# ---- in the user's process ----


def sweep(arguments: Sequence[str], compose: Compose, launch: Launch) -> None:
    """Run what a command line asks for: every artifact, or one free sweep.

    Raises:
        LutlabError: a mistake or a limit the user can act on; nothing measured is lost.
        RowsFailed: some rows failed, after everything else was measured and reported.
    """
    failed = 0
    for request in sweeping.parse(arguments):
        first = compose(request.arguments)
        if first.mode.name == "run":
            Store(first.results).check_writable()
        overrides = sweeping.rows_of(request, first.scale, list(first.rows))
        configs = [compose(row.overrides) for row in overrides]
        planned = _plan(request.artifact, overrides, configs)
        if first.mode.name == "plan":
            from lutlab.experiment.plan.view import print_plan

            print_plan(request.artifact, planned, Path(first.results), Console())
            continue
        if first.mode.name == "run":
            _measure(planned, [row.overrides for row in overrides], first, launch)
            planned = _plan(request.artifact, overrides, configs)
        failed += _report(request, planned, first)
    if failed:
        raise RowsFailed(f"{failed} cells failed; the table says why; run again to try them again")


def _plan(
    artifact: Artifact | None, rows: Sequence[sweeping.ArtifactRow], configs: Sequence[DictConfig]
) -> list[PlannedRow]:
    planned = []
    options = [evaluator_options(config) for config in configs]
    for row, config, own in zip(rows, configs, options, strict=True):
        if artifact:
            planned.append(plan.plan_row(config, row.key, row.labels, artifact.columns))
        else:
            columns = free_columns(list(config.evaluate))
            spec = plan.run_spec(config)
            labels = {
                "Model": spec.model.name,
                "Method": _method_label(spec),
                "q": str(spec.q) if spec.budget is None else f"budget {spec.budget:g}",
                "g": str(spec.g) if spec.budget is None else "mixed",
            }
            if config.threads:
                labels["Threads"] = str(config.threads)
            if any(options):
                said = [f"{key}={value}" for some in own.values() for key, value in some]
                labels["Options"] = ", ".join(said) or "none"
            planned.append(plan.plan_row(config, "/".join(labels.values()), labels, columns))
    return planned


def _method_label(spec: plan.RunSpec) -> str:
    """`rtn(awq)`: the method and its parameters that differ from their defaults."""
    defaults = {
        f.name: f.default for f in dataclasses.fields(registry.lookup("method", spec.method))
    }
    changed = [f"{k}={v}" for k, v in spec.options if defaults[k] != v]
    return spec.method + (f"({', '.join(changed)})" if changed else "")


def _measure(
    rows: Sequence[PlannedRow], jobs: Sequence[Sequence[str]], config: DictConfig, launch: Launch
) -> None:
    """Launch the rows that miss a cell; rows that ask for the same cells are launched once.

    Rows that measure the machine follow one at a time, with as many threads as this process has.
    """
    import torch

    from lutlab.experiment.run import progress

    waiting: dict[str, tuple[str, float]] = {}
    together, alone = [], []
    for row, job in zip(rows, jobs, strict=True):
        fresh = {i: c for i, c in row.todo.items() if i not in waiting}
        if fresh:
            chosen = alone if row.alone else together
            chosen.append([f"threads={torch.get_num_threads()}", *job] if row.alone else job)
            waiting |= {i: (_cell_name(row, c), _weight(row, c)) for i, c in fresh.items()}
    if waiting:
        with progress.watch(Store(config.results), waiting):
            for jobs in filter(None, [together, *([job] for job in alone)]):
                launch(jobs)


def _cell_name(row: PlannedRow, cell: PlannedCell) -> str:
    text = f" on {cell.evaluation.text.name}" if cell.evaluation.text else ""
    spec = row.spec
    width = f"q={spec.q} g={spec.g}" if spec.budget is None else f"budget={spec.budget:g}"
    return f"{spec.model.name} {spec.method} {width}: {cell.evaluation.evaluator}{text}"


def _weight(row: PlannedRow, cell: PlannedCell) -> float:
    from lutlab.experiment.plan import cost

    return cost.predict(row.spec, cell).seconds


def _report(request: sweeping.Request, rows: Sequence[PlannedRow], config: DictConfig) -> int:
    """Render the table, print it, track it; returns how many cells failed."""
    from lutlab.experiment.report import print_table, write_report

    artifact = request.artifact
    table = compare.tabulate(artifact, rows, config.scale, environment())
    name = artifact.name if artifact else "sweep"
    folder = Path(config.results) / name / sweeping.variant(request, config)
    console = Console()
    paths = write_report(table, folder)
    print_table(table, console)
    console.print(
        f"written to {folder}: {', '.join(p.name for p in paths)}", highlight=False, soft_wrap=True
    )
    _track_table(table, config)
    return sum(c.verdict in ("failed", "OOM") for row in table.rows for c in row.cells.values())


def _track_table(table: ResultTable, config: DictConfig) -> None:
    from lutlab.experiment.run.tracking import open_tracker

    folder = Path(config.results) / "wandb"
    tracker = open_tracker(config.logger.mode, folder, config.logger.project)
    tracker.log_table(table, group=_group(table.artifact, config))


def _group(artifact: str, config: DictConfig) -> str:
    """The W&B group of a table's runs: artifact, scale and the versions of all components."""
    return f"{artifact}-{content_id([artifact, config.scale, versions(*every_name())])[:8]}"


# ---- in a worker ----


def run_row(config: DictConfig) -> None:
    """Measure the missing cells of one row and store each as soon as it is measured.

    A failure is recorded in every cell it leaves unmeasured; only errors of the store itself are raised.
    """
    import torch

    additions.add(config.plugins, config.experiments)  # this process may be another than the user's
    if config.threads:
        torch.set_num_threads(config.threads)
    artifact = load_artifact(config.artifact) if config.artifact else None
    columns = artifact.columns if artifact else free_columns(list(config.evaluate))
    row = plan.plan_row(config, config.row, {}, columns)
    store = Store(config.results)
    todo = row.todo
    if not todo:
        return
    began = time.monotonic()
    try:
        prepared = prepare(row, config)
    except Exception as error:
        for cell in todo.values():
            store.save(_failure(row, cell, error, time.monotonic() - began))
        return
    for cell in todo.values():
        store.save(_measure_cell(row, cell, prepared))
    _track_row(row, columns, config, store)


def _measure_cell(row: PlannedRow, cell: PlannedCell, prepared: Prepared) -> Record:
    from lutlab.modules import take_kernels

    began = time.monotonic()
    text = cached_text(cell.evaluation.text) if cell.evaluation.text else None
    subject = Subject(
        prepared.model,
        prepared.tokenizer,
        prepared.layers,
        text,
        prepared.seqlen,
        row.spec.q,
        row.spec.g,
        row.spec,
    )
    try:
        if text and prepared.tokenizer is None:
            raise LutlabError(
                f"{row.spec.model.name} came without a tokenizer, so no text can be evaluated on it"
            )
        if prepared.model is not None:
            take_kernels(prepared.model)  # of calibration, or of the evaluator before
        evaluator = registry.lookup("evaluator", cell.evaluation.evaluator)
        measurement = evaluator(**dict(cell.evaluation.options)).measure(subject)
    except Exception as error:
        return _failure(row, cell, error, time.monotonic() - began)
    ran = take_kernels(prepared.model) if prepared.model is not None else []
    facts = prepared.facts | ({"kernel": ran} if ran else {}) | measurement.facts
    if text:
        facts |= {"text_sha256": text.sha256, "text_origin": text.origin}
    return _record(
        row, cell, dataclasses.replace(measurement, facts=facts), "done", time.monotonic() - began
    )


def _failure(row: PlannedRow, cell: PlannedCell, error: Exception, seconds: float) -> Record:
    import torch

    out_of_memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    )
    if not isinstance(error, LutlabError) and not out_of_memory:
        log.error(
            "%s failed", _cell_name(row, cell), exc_info=error
        )  # not the user's mistake: show where
    reason = f"{error}" if isinstance(error, LutlabError) else f"{type(error).__name__}: {error}"
    nothing = Measurement(values={}, n=0)
    return _record(row, cell, nothing, "oom" if out_of_memory else "failed", seconds, reason)


def _record(
    row: PlannedRow,
    cell: PlannedCell,
    measurement: Measurement,
    status: str,
    seconds: float,
    reason: str = "",
) -> Record:
    import torch

    return Record(
        cell_id=cell.cell_id,
        status=status,
        run=dataclasses.asdict(row.spec) | {"options": dict(row.spec.options)},
        evaluation=dataclasses.asdict(cell.evaluation) | {"options": dict(cell.evaluation.options)},
        values=dict(measurement.values),
        n=measurement.n,
        samples=measurement.samples,
        facts=dict(measurement.facts),
        provenance=environment()
        | {
            "threads": torch.get_num_threads(),
            "identity": cell.identity,
            "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        },
        seconds=round(seconds, 3),
        reason=reason,
    )


def _track_row(
    row: PlannedRow, columns: Mapping[str, ColumnSpec], config: DictConfig, store: Store
) -> None:
    from lutlab.experiment.run.tracking import open_tracker

    records = {key: store.load(row.cells[key].cell_id) for key in columns if row.cells[key].cell_id}
    name = config.artifact or "sweep"
    context = {
        "artifact": name,
        "paper": name.partition("/")[0],
        "scale": config.scale,
        "mu": config.mu,
        "git_sha": environment()["git_commit"],
        "group": _group(name, config),
        "protocols": sorted(
            {c.evaluation.text.protocol for c in row.cells.values() if c.evaluation.text}
        ),
    }
    folder = Path(config.results) / "wandb"
    open_tracker(config.logger.mode, folder, config.logger.project).log_row(
        row.spec, records, context
    )
