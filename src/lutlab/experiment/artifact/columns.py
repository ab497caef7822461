"""Columns of a table: each is one metric that an evaluator declares, under one protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from lutlab import predict
from lutlab.base import registry
from lutlab.base.errors import LutlabError, nearest
from lutlab.data.tasks import protocol_of
from lutlab.evaluators.contract import Metric, metric_of


@contextmanager
def as_value_error() -> Iterator[None]:
    """An error that pydantic gathers, with the field's name."""
    try:
        yield
    except LutlabError as error:
        raise ValueError(str(error)) from error


class Strict(BaseModel):
    """A part of an artifact's file: frozen, and a key that it does not have is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PredictSpec(Strict):
    """Part of a prediction's settings; another part has those that it leaves out."""

    gpu: str | None = None
    engine: str | None = None
    gpus: int | None = None
    model: str | None = None  # of conf/shapes, where the row's own stands for it
    context: int | None = None  # tokens in the cache; by default those of the engine's constants

    @model_validator(mode="after")
    def _is_known(self) -> PredictSpec:
        with as_value_error():
            if self.gpu is not None:
                predict.device(self.gpu)
            if self.engine is not None:
                predict.engine(self.engine)
            if self.model is not None:
                predict.decoder(self.model)
        return self

    def settings(self) -> dict[str, Any]:
        """Settings that it has, by name."""
        return self.model_dump(exclude_none=True)


class ColumnSpec(Strict):
    """One column: an evaluator's metric under one protocol. `text` is the paper's protocol name.

    The metric is one that the evaluator declares, which also says whether lower is better, unless nobody measures it.
    """

    title: str
    unit: str
    evaluator: str
    metric: str
    text: str | None = None
    factor: float = 1  # value in `unit` = metric * factor, e.g. 100 for % of an accuracy
    note: str = ""  # e.g. why a protocol is inferred
    published: bool = True
    cited: str = ""  # the reference the paper took its numbers from, if it did not measure them
    lower_is_better: bool = True
    match: float = 0.005  # |measured - published| / published up to which a cell is a match
    tolerance: float = 0.02  # and within tolerance
    not_run: str = ""  # why nobody measures it here
    absolute: bool = False  # a time or an energy: of other machines they are shown, not compared
    mean_of: list[str] = Field(default_factory=list)  # columns of this metric; nothing is run
    predict: PredictSpec | None = None  # of cells that are not measured (predicted.py)

    @model_validator(mode="before")
    @classmethod
    def _metric_is_declared(cls, data: Any) -> Any:
        if not isinstance(data, Mapping) or not {"evaluator", "metric"} <= data.keys():
            return data  # which the fields refuse
        with as_value_error():
            evaluator = registry.lookup("evaluator", data["evaluator"])
        if evaluator.reads_tasks and data.get("text"):  # the protocol whose rows the task reads
            data = {**data, "text": protocol_of(data["text"])}
        if data.get("not_run"):
            return data
        if (metric := metric_of(evaluator, data["metric"])) is None:
            known = nearest(data["metric"], [metric.name for metric in evaluator.metrics])
            raise ValueError(f"{data['evaluator']} has no metric '{data['metric']}': {known}")
        return {"lower_is_better": metric.lower_is_better, **data}

    @property
    def reason(self) -> str:
        """The reason why nobody measures it here; empty where it is measured."""
        if self.mean_of:
            return f"the mean of {', '.join(self.mean_of)}, of which not all are measured"
        return self.not_run

    def of_row(self, not_run: str, metric: str | None) -> ColumnSpec:
        """The column of a row that is not run for a reason, or has another metric of the same evaluator."""
        if metric and metric_of(registry.lookup("evaluator", self.evaluator), metric) is None:
            raise ValueError(f"{self.evaluator} has no metric '{metric}'")
        return self.model_copy(
            update={"not_run": not_run or self.not_run, "metric": metric or self.metric}
        )


SIZE = "model_size"  # the column of stored bits a weight in a sweep of one's own


def asks_for_quality(evaluate: Sequence[str]) -> bool:
    """Whether an evaluation reads a text, so that full precision and size belong beside it."""
    return any(":" in item for item in evaluate)


def free_columns(evaluate: Sequence[str]) -> dict[str, ColumnSpec]:
    """Columns of a sweep without an artifact, from `evaluate=[ppl:topics, ppl.bits_per_byte:topics, weight_error]`.

    A column has the evaluator's first metric, or the one named after a dot.

    Raises:
        LutlabError: no such evaluator, metric or task of lm-eval.
    """
    columns = {}
    for item in evaluate:
        measure, _, text = item.partition(":")
        evaluator, _, named = measure.partition(".")
        shown = _metric(evaluator, named, text)
        columns[item.replace(":", "_").replace(".", "_")] = ColumnSpec(
            title=f"{text} {shown.title}".strip(),
            unit=shown.unit,
            evaluator=evaluator,
            metric=shown.name,
            text=text or None,
            published=False,
        )
    return columns


def _metric(evaluator: str, named: str, text: str) -> Metric:
    """The evaluator's metric of that name; the one it shows of a text where none is named."""
    cls = registry.lookup("evaluator", evaluator)
    if not named:
        return cls.shown(text)
    metric = metric_of(cls, named)
    if metric is None:
        names = [metric.name for metric in cls.metrics]
        raise LutlabError(f"{evaluator} has no metric '{named}': {nearest(named, names)}")
    return metric
