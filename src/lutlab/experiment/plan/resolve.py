"""Texts and models that a plan rests on and settings only name: found, downloaded, hashed, once a process.

resolve: Settings, columns -> Resolved      the row's run, its evaluations by column, hashes, and what is missing
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass

from lutlab import registry
from lutlab.data import load_text
from lutlab.devices import gpus
from lutlab.errors import LutlabError, MissingTextError
from lutlab.evaluators.contract import metric_of
from lutlab.experiment.artifact.columns import ColumnSpec
from lutlab.experiment.plan.runs import run_of, text_of
from lutlab.experiment.plan.schema import Mode
from lutlab.experiment.plan.settings import Settings
from lutlab.models.load import fingerprint, task_here
from lutlab.specs import EvalSpec, ModelRun, ModelSpec, ProductRun, RunSpec, Text, TextSpec

# kind of row that an evaluator measures -> why it cannot measure the other kind
_OTHER_KIND = {
    ModelRun: "it is measured on a model, and a product is none: kernel_latency is for those",
    ProductRun: "it is the speed of one matrix product (model=product model.id=<N>x<K>), not of a model",
}


@dataclass(frozen=True)
class Resolved:
    """All that a plan needs to know of files.

    Attributes:
        run: the row's.
        evaluations: by column.
        missing: column -> why it cannot be measured.
        absent: evaluations whose files must be downloaded first, which mode=plan does not.
        texts: hash of every text that is here.
    """

    run: RunSpec
    evaluations: Mapping[str, EvalSpec]
    missing: Mapping[str, str]
    absent: frozenset[EvalSpec]
    texts: Mapping[TextSpec, str]


def resolve(settings: Settings, columns: Mapping[str, ColumnSpec]) -> Resolved:
    """Look at every file that decides a row's cells; in mode=plan nothing is downloaded.

    Raises:
        LutlabError: the settings ask for what does not exist, or for a budget that no width meets; all texts or the
            model are missing.
    """
    run = run_of(settings)
    _check_budget(run, settings)
    evaluations = {name: evaluation_of(column, settings) for name, column in columns.items()}
    reasons = {evaluation: _missing(run, evaluation) for evaluation in evaluations.values()}
    missing = {
        name: reason
        for name, evaluation in evaluations.items()
        if (reason := columns[name].reason or _few_gpus(run, columns[name]) or reasons[evaluation])
    }
    runnable = {e for name, e in evaluations.items() if name not in missing}
    absent = {e for e in runnable if settings.mode is Mode.plan and _on_hub(run, e.text)}
    here = {e.text for e in runnable - absent if e.text}
    in_order = dict.fromkeys(e.text for e in evaluations.values() if e.text in here)
    texts = {text: cached_text(text).sha256 for text in in_order if readable(text)}
    for name, evaluation in evaluations.items():
        if evaluation.text in here - texts.keys():
            text = evaluation.text
            missing.setdefault(name, f"no text '{text.protocol}' under data.root={text.root}")
    wanted = [name for name, evaluation in evaluations.items() if evaluation.text]
    if here and all(name in missing for name in wanted):  # the folder has none of the texts
        cached_text(next(e.text for e in evaluations.values() if e.text in here))
    calibration = run.calibration if isinstance(run, ModelRun) else None
    if calibration and runnable - absent:
        texts[calibration.text] = cached_text(calibration.text).sha256
    return Resolved(run, evaluations, missing, frozenset(absent), texts)


def evaluation_of(column: ColumnSpec, settings: Settings) -> EvalSpec:
    """The evaluation of a column: its text from where the settings have texts, its evaluator's own fields."""
    text = None
    if column.text:
        tasks = registry.lookup("evaluator", column.evaluator).reads_tasks
        text = text_of(column.text, settings.data, tasks=tasks)
        text = dataclasses.replace(text, limit=settings.data.limit)
    return EvalSpec(column.evaluator, text, settings.evaluators.get(column.evaluator, ()))


def _missing(run: RunSpec, evaluation: EvalSpec) -> str:
    """The reason why an evaluator cannot measure a row here, as a peer that is not installed; empty where it can."""
    evaluator = registry.lookup("evaluator", evaluation.evaluator)
    evaluator(**dict(evaluation.options))  # refuses values out of range
    if not isinstance(run, evaluator.measures):
        return _OTHER_KIND[evaluator.measures]
    if isinstance(run, ModelRun) and (reason := _other_task(run, evaluator.task)):
        return reason
    return evaluator.obstacle(run)


def _few_gpus(run: RunSpec, column: ColumnSpec) -> str:
    """The reason why a metric of several GPUs cannot be measured here; empty where it can."""
    wanted = metric_of(registry.lookup("evaluator", column.evaluator), column.metric).gpus
    if wanted == 1:
        return ""
    here = gpus(run.device)
    return "" if here >= wanted else f"needs {wanted} GPUs that share the model, here {here}"


def _other_task(run: ModelRun, task: str) -> str:
    """The reason why a model's head has no such number; empty where it has, or where that is not known yet."""
    found = task_here(run.model) if task else task
    return (
        f"it is of models for {task}, and {run.name} is for {found}"
        if found != task and found
        else ""
    )


def _on_hub(run: RunSpec, text: TextSpec | None) -> bool:
    sources = [text.source] if text else []
    if isinstance(run, ModelRun):
        sources.append(run.model.source)
        sources += [run.calibration.text.source] if run.calibration else []
    return "hub" in sources


def _check_budget(run: RunSpec, settings: Settings) -> None:
    """Refuse a budget that the narrowest widths exceed, where the model's config is here or may be fetched."""
    if not isinstance(run, ModelRun) or run.budget is None:
        return
    if settings.mode is Mode.plan and run.model.source == "hub":
        return
    from lutlab.compress.sizes import check_budget
    from lutlab.models.shape import linear_shapes
    from lutlab.quantizers.contract import make_method

    method = make_method(run.method, **dict(run.options))
    check_budget(run.budget, linear_shapes(run.model), method, run.candidates, run.skip)


# ---- once a process ----


@functools.cache
def cached_text(spec: TextSpec) -> Text:
    """A text, loaded once a process."""
    return load_text(spec)


def planned_text(spec: TextSpec, sha256: str | None) -> Text:
    """The text that a job was planned with, of that hash.

    Raises:
        LutlabError: another text is found here under its name.
    """
    text = cached_text(spec)
    if text.sha256 != sha256:
        raise LutlabError(
            f"{spec.protocol} from data.source={spec.source} is another text here than where the run was planned "
            f"({text.origin}): let both read the same files, as with data.root=<folder that both see>"
        )
    return text


def readable(spec: TextSpec) -> bool:
    """False where a folder lacks this one text; other errors are raised."""
    try:
        cached_text(spec)
    except MissingTextError:
        return False
    return True


@functools.cache
def model_sha256(spec: ModelSpec) -> str:
    """Hash of a model's files."""
    return fingerprint(spec)
