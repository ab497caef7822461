"""Weights & Biases: one run per row of a table, one aggregate run per table. Offline unless online is asked for.

Offline needs neither an account nor a network: runs lie in the folder and `wandb sync` uploads them later. Tracking is
a copy: what was measured is in the records of `results/`, so a failure in here is a logged warning and costs nothing.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from lutlab.errors import LutlabError, nearest
from lutlab.experiment.artifact.outcome import ResultTable
from lutlab.experiment.plan.schema import LOGGERS
from lutlab.experiment.store.record import Record
from lutlab.specs import ModelRun, RunSpec

if TYPE_CHECKING:
    from wandb.sdk.wandb_run import Run

log = logging.getLogger(__name__)


class Tracker(Protocol):
    """Receiver of copies of rows and tables. No method raises."""

    def log_row(
        self, spec: RunSpec, records: Mapping[str, Record | None], context: Mapping[str, Any]
    ) -> None:
        """Copy one row.

        Args:
            spec: What was run.
            records: The row's records by column; None where a cell was not measured.
            context: artifact, paper, scale, git_sha, group, protocols (names), and mu where the run has one.
        """

    def log_table(self, table: ResultTable, group: str | None = None) -> None:
        """Copy a whole table, into the group of its rows (by default a group named like the artifact)."""


def open_tracker(logger: str, folder: Path, project: str) -> Tracker:
    """The tracker that `logger` names: none, offline or online. Nothing is imported or started before the first copy.

    Raises:
        LutlabError: unknown name; the message suggests the nearest one.
    """
    if logger not in LOGGERS:
        raise LutlabError(f"unknown logger '{logger}': {nearest(logger, LOGGERS)}")
    return NullTracker() if logger == "none" else WandbTracker(logger, Path(folder), project)


class NullTracker:
    """Copies nothing."""

    def log_row(
        self, spec: RunSpec, records: Mapping[str, Record | None], context: Mapping[str, Any]
    ) -> None:
        """Nothing to do."""

    def log_table(self, table: ResultTable, group: str | None = None) -> None:
        """Nothing to do."""


class WandbTracker:
    """Copies to Weights & Biases under `folder`."""

    def __init__(self, mode: str, folder: Path, project: str) -> None:
        self.mode = mode
        self.folder = folder
        self.project = project

    def log_row(
        self, spec: RunSpec, records: Mapping[str, Record | None], context: Mapping[str, Any]
    ) -> None:
        """Copy one row as one run of type `eval`."""
        artifact = context.get("artifact", "sweep")
        tags = [context.get("paper"), artifact, context.get("scale"), *context.get("protocols", ())]
        self._copy(
            lambda run: run.summary.update(_define(run, summary(records))),
            name=run_name(spec),
            group=context.get("group", artifact),
            job_type="eval",
            tags=tags,
            config=config(spec, context),
        )

    def log_table(self, table: ResultTable, group: str | None = None) -> None:
        """Copy a table as one run of type `aggregate` whose summary holds it as `table`."""
        self._copy(
            lambda run: run.summary.update({"table": _table(table), **claims(table)}),
            name=f"{table.artifact}/{table.scale}",
            group=group or table.artifact,
            job_type="aggregate",
            tags=[table.artifact.partition("/")[0], table.artifact, table.scale],
            config={
                "artifact": table.artifact,
                "scale": table.scale,
                "command": table.command,
                "source": table.source,
            },
        )

    def _copy(self, fill: Callable[[Run], None], name: str, tags: list[Any], **init: Any) -> None:
        """Open a run, fill it, close it; say it if that fails."""
        try:
            run = self._open(name=name, tags=_tags(tags), **init)
            try:
                fill(run)
            except BaseException:
                run.finish(exit_code=1)
                raise
            run.finish()
        except Exception as error:
            log.warning(
                "Weights & Biases did not take '%s' (%s: %s); the measurements themselves are kept in the records. "
                "logger=none switches tracking off",
                name,
                type(error).__name__,
                error,
            )

    def _open(self, **init: Any) -> Run:
        if self.mode == "offline":  # offline promises that nothing is sent: no crash reports either
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        # wandb appends a folder `wandb` of its own
        root = self.folder.parent if self.folder.name == "wandb" else self.folder
        root.mkdir(parents=True, exist_ok=True)
        return wandb.init(
            project=self.project,
            dir=str(root),
            mode=self.mode,
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_git=True,  # the commit is in the config, from the records' provenance
                disable_code=True,
                save_code=False,
                x_disable_stats=True,
                x_disable_meta=True,
                x_disable_machine_info=True,
                x_save_requirements=False,
            ),
            **init,
        )


# ---- what is copied ----


def run_name(spec: RunSpec) -> str:
    """`opt-embedded-s/rtn/q4g32`, without g where a row is one group; a budget stands for both; `/tuned100` steps."""
    group = f"g{spec.g}" if spec.g > 0 else ""
    width, tuned = f"q{spec.q}{group}", ""
    if isinstance(spec, ModelRun):
        width = width if spec.budget is None else f"budget{spec.budget:g}"
        tuned = f"/tuned{spec.tuning.steps}" if spec.tuning else ""
    return f"{spec.name}/{spec.method}/{width}{tuned}"


def config(spec: RunSpec, context: Mapping[str, Any]) -> dict[str, Any]:
    """Flat keys, to group and filter by: the papers' symbols, the method's own parameters as `method.<name>`."""
    facts = {key: context.get(key) for key in ("mu", "scale", "artifact", "git_sha")}
    return {
        "q": spec.q,
        "g": spec.g,
        "method": spec.method,
        "model": spec.name,
        "device": spec.device,
        "dtype": spec.dtype,
        "seed": spec.seed,
        **{key: value for key, value in facts.items() if value is not None},
        **{f"method.{name}": value for name, value in spec.options},
    }


def summary(records: Mapping[str, Record | None]) -> dict[str, Any]:
    """`<column>.<metric>` of every measured cell, and why a cell failed."""
    values: dict[str, Any] = {}
    for column, record in records.items():
        if record is None:
            continue
        values |= {f"{column}.{metric}": value for metric, value in record.values.items()}
        values |= {f"{column}.status": record.status, f"{column}.cell_id": record.cell_id}
        if record.reason:
            values[f"{column}.reason"] = record.reason
    return values


def claims(table: ResultTable) -> dict[str, int]:
    """Number of instances of the paper's claims that hold in our numbers, and of all that are decidable."""
    return {
        "claims.hold": sum(claim.measured[0] for claim in table.claims),
        "claims.decidable": sum(claim.measured[1] for claim in table.claims),
    }


def _define(run: Run, values: dict[str, Any]) -> dict[str, Any]:
    for name, value in values.items():
        if isinstance(value, int | float):
            run.define_metric(name.replace(".", "\\."), summary="last")  # a plain dot would nest
    return values


def _tags(tags: list[Any]) -> tuple[str, ...]:
    """Distinct, in order; wandb takes tags of 1 to 64 characters."""
    return tuple(dict.fromkeys(str(tag)[:64] for tag in tags if tag))


def _table(table: ResultTable) -> Any:
    import wandb

    cells = table.long_form()
    for cell in cells:  # `published` may be a word, and a column of a wandb table has one type
        cell["published"] = None if cell["published"] is None else str(cell["published"])
    return wandb.Table(
        columns=list(cells[0]) if cells else [], data=[list(c.values()) for c in cells]
    )
