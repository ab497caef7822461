"""Files and machine that a row rests on: found, downloaded, hashed, so that all after this only computes.

resolve: Row, columns -> Resolved      the row's run, its evaluations by column, hashes, and what is missing
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from lutlab.base import registry
from lutlab.base.devices import gpus
from lutlab.base.errors import LutlabError, MissingTextError
from lutlab.base.specs import EvalSpec, ModelRun, ModelSpec, ProductRun, RunSpec, Text, TextSpec
from lutlab.data import load_text
from lutlab.data.protocols import PROTOCOLS, protocol
from lutlab.evaluators.contract import metric_of
from lutlab.experiment.artifact.columns import ColumnSpec
from lutlab.experiment.plan.ids import Resolved, of_this_machine
from lutlab.experiment.row.row import Mode, Row
from lutlab.experiment.row.run import run_of, text_of
from lutlab.experiment.store.components import kernels_fingerprint
from lutlab.experiment.store.provenance import machine
from lutlab.models.load import fingerprint, task_here
from lutlab.models.shape import linear_shapes
from lutlab.quantizers.contract import make_method
from lutlab.quantizers.stored import STORED

NO_TEXT = "no text"
LABELLED = "calibration-pairs"  # a kind of text
# kind of row that an evaluator measures -> why it cannot measure the other kind
_OTHER_KIND = {
    ModelRun: "it is measured on a model, and a product is none: kernel_latency is for those",
    ProductRun: "it is the speed of one matrix product (model=product model.id=<N>x<K>), not of a model",
}


class Files:
    """Texts and models that are here: each is read and hashed once."""

    def __init__(self) -> None:
        self._texts: dict[TextSpec, Text] = {}
        self._models: dict[ModelSpec, str] = {}

    def text(self, spec: TextSpec) -> Text:
        """A text, loaded or downloaded.

        Raises:
            LutlabError: unknown protocol or source, a source without this text, a missing or damaged file, or no
                network.
        """
        if spec not in self._texts:
            self._texts[spec] = load_text(spec)
        return self._texts[spec]

    def model_sha256(self, spec: ModelSpec) -> str:
        """Hash of a model's files."""
        if spec not in self._models:
            self._models[spec] = fingerprint(spec)
        return self._models[spec]

    def planned_text(self, spec: TextSpec, sha256: str | None) -> Text:
        """The text that a job was planned with, of that hash.

        Raises:
            LutlabError: another text is found here under its name.
        """
        text = self.text(spec)
        if text.sha256 != sha256:
            raise LutlabError(
                f"{spec.protocol} from data.source={spec.source} is another text here than where the run was planned "
                f"({text.origin}): let both read the same files, as with data.root=<folder that both see>"
            )
        return text


def resolve(row: Row, columns: Mapping[str, ColumnSpec], files: Files) -> Resolved:
    """Look at every file that decides a row's cells; in mode=plan nothing is downloaded.

    Raises:
        LutlabError: the row asks for what does not exist, or for a budget that no width meets; all texts or the
            model are missing.
    """
    run = run_of(row)
    _check_budget(run, row)
    evaluations = {name: evaluation_of(column, row) for name, column in columns.items()}
    missing = _obstacles(run, evaluations, columns)
    runnable = {e for name, e in evaluations.items() if name not in missing}
    absent = frozenset(e for e in runnable if row.mode is Mode.plan and _on_hub(run, e.text))
    read = runnable - absent
    read_texts = dict.fromkeys(e.text for e in evaluations.values() if e.text and e in read)
    texts: dict[TextSpec, str] = {}
    lacking: dict[TextSpec, MissingTextError] = {}
    for text in read_texts:
        try:
            texts[text] = files.text(text).sha256
        except MissingTextError as error:
            lacking[text] = error
    for name, evaluation in evaluations.items():
        if (spec := evaluation.text) and spec in lacking:
            missing.setdefault(name, f"{NO_TEXT} '{spec.protocol}' under data.root={spec.root}")
    if read_texts and all(name in missing for name, e in evaluations.items() if e.text):
        raise lacking[next(iter(read_texts))]  # the folder has none of the texts
    return look(Resolved(run, evaluations, missing, absent, texts), row.threads, files)


def obstacles(row: Row, columns: Mapping[str, ColumnSpec]) -> dict[str, str]:
    """Columns that cannot be measured here, with the reason, of a row whose files nobody looks at.

    Raises:
        LutlabError: the row asks for what does not exist.
    """
    evaluations = {name: evaluation_of(column, row) for name, column in columns.items()}
    return _obstacles(run_of(row), evaluations, columns)


def _obstacles(
    run: RunSpec, evaluations: Mapping[str, EvalSpec], columns: Mapping[str, ColumnSpec]
) -> dict[str, str]:
    reasons = {name: _missing(run, each, columns[name]) for name, each in evaluations.items()}
    return {name: reason for name, reason in reasons.items() if reason}


def look(resolved: Resolved, threads: int | None, files: Files) -> Resolved:
    """The resolved row with the hashes of its model and calibration text, its formats, and the machine's part of
    speeds.

    Args:
        resolved: a row whose run, evaluations and texts are known.
        threads: number of the CPU's threads; None: torch's own. Only speeds depend on them.
        files: texts and models that are here.

    Raises:
        LutlabError: no such model or text.
    """
    run, texts = resolved.run, dict(resolved.texts)
    measured = resolved.runnable
    if not measured and resolved.evaluations:
        return resolved
    speeds = {e: _speed(run, e, threads) for e in measured if of_this_machine(e)}
    if isinstance(run, ProductRun):
        return dataclasses.replace(resolved, speeds=speeds)
    labelled = False
    if run.calibration:
        text = run.calibration.text
        labelled = protocol(text.protocol).kind == LABELLED
        texts[text] = files.text(text).sha256
    model = files.model_sha256(run.model)
    method = registry.lookup("method", run.method)(**dict(run.options))
    formats: tuple[str, ...] = (method.format,)
    if run.method == STORED:
        from lutlab.checkpoint.stored import formats_of

        formats = formats_of(run.model)
    return dataclasses.replace(
        resolved, texts=texts, model=model, formats=formats, speeds=speeds, labelled=labelled
    )


def _speed(run: RunSpec, evaluation: EvalSpec, threads: int | None) -> dict[str, Any]:
    known = machine(run.device, threads)
    return {
        "machine": known,
        "kernels": kernels_fingerprint(run.device.partition(":")[0]),
        "chosen": _chosen(run, evaluation, known),
    }


def _chosen(run: RunSpec, evaluation: EvalSpec, known: dict[str, Any]) -> Any:
    """Decisions of tuning and races on this machine on the kernels that a row may call."""
    bits, shapes, kernel = {run.q}, None, ""
    if isinstance(run, ProductRun):
        shapes, kernel = {(rows, columns) for rows, columns, _ in run.shapes}, run.kernel
    else:
        bits |= {width.q for width in run.sublayers} | {width.q for width in run.layers}
        bits |= {q for q, _ in run.candidates}
    if not run.device.startswith("cpu"):
        from lutlab.kernels.gpu import choice

        return choice.decisions(known["gpu"], run.dtype, bits)
    from lutlab.kernels.cpu.qigen import qigen_gemv
    from lutlab.kernels.cpu.rows import rows_tuning

    chosen: dict[str, Any] = {"rows": rows_tuning.decisions(bits, known["threads"], shapes)}
    if rows_tuning.asked():  # the answer comes with the measurement: it is no untuned one
        chosen["tunes"] = True
    if evaluation.evaluator == "qigen" or kernel == "optq":  # on a CPU they are one kernel
        chosen["qigen"] = qigen_gemv.decisions(bits)
    return chosen


def evaluation_of(column: ColumnSpec, row: Row) -> EvalSpec:
    """The evaluation of a column: its text from where the row has texts, its evaluator's own fields."""
    text = None
    if column.text:
        tasks = registry.lookup("evaluator", column.evaluator).reads_tasks
        text = text_of(column.text, row.data, tasks=tasks)
        rule = PROTOCOLS.get(text.protocol)  # none of lm-eval's own tasks
        windows = rule is not None and rule.kind == "stream"
        limit = row.data.limit if windows else row.data.examples or row.data.limit
        window = row.data.window if windows else None
        text = dataclasses.replace(text, limit=limit, window=window)
    return EvalSpec(column.evaluator, text, row.evaluator.get(column.evaluator, ()))


def _missing(run: RunSpec, evaluation: EvalSpec, column: ColumnSpec) -> str:
    """The reason why a column's metric cannot be measured here, as a peer that is not installed; empty where it can."""
    evaluator = registry.lookup("evaluator", column.evaluator)
    evaluator(**dict(evaluation.options))  # refuses values out of range
    if column.reason:
        return column.reason
    metric = metric_of(evaluator, column.metric)
    if metric and metric.gpus > 1 and (here := gpus(run.device)) < metric.gpus:
        return f"needs {metric.gpus} GPUs that share the model, here {here}"
    if not isinstance(run, evaluator.measures):
        return _OTHER_KIND[evaluator.measures]
    task = evaluator.task
    if isinstance(run, ModelRun) and task and (its_task := task_here(run.model)) not in ("", task):
        return f"it is of models for {task}, and {run.name} is for {its_task}"
    return registry.lookup("method", run.method).obstacle() or evaluator.obstacle(run)


def _on_hub(run: RunSpec, text: TextSpec | None) -> bool:
    sources = [text.source] if text else []
    if isinstance(run, ModelRun):
        sources.append(run.model.source)
        sources += [run.calibration.text.source] if run.calibration else []
    return "hub" in sources


def _check_budget(run: RunSpec, row: Row) -> None:
    """Refuse a budget that the narrowest widths exceed, where the model's config is here or may be fetched."""
    if not isinstance(run, ModelRun) or run.budget is None:
        return
    if row.mode is Mode.plan and run.model.source == "hub":
        return
    from lutlab.compress.sizes import check_budget

    method = make_method(run.method, **dict(run.options))
    check_budget(run.budget, linear_shapes(run.model), method, run.candidates, run.skip)
