"""Contract of an evaluator: a model, or products, in, a Measurement out; its columns are declared beside it.

An evaluator is a class under `@register("evaluator", <name>)`; one with options is a frozen dataclass, whose fields are
`evaluator.<name>.<field>=`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from lutlab.base import registry
from lutlab.base.fields import check
from lutlab.base.specs import Measurement, ModelRun, ProductRun, Subject


@dataclass(frozen=True)
class Metric:
    """One number of an evaluator, a column of a table.

    Attributes:
        name: key of Measurement.values; the unit is part of it.
        unit: unit, in the spelling of a table.
        title: heading of the column in a free sweep, after the text's name.
        quantized_only: weights in full precision have no such number.
        format: name of the format whose weights alone have this metric; None: those of any.
        gpus: number of GPUs that share the model; where fewer are here, its cells are not run, and others of the
            evaluator are.
    """

    name: str
    unit: str
    title: str
    lower_is_better: bool = True
    quantized_only: bool = False
    format: str | None = None
    gpus: int = 1


@dataclass(frozen=True)
class Declared(ABC):
    """What every evaluator declares: its metrics, what it reads, and what its ids hold.

    Attributes:
        version: raised by whoever changes what the evaluator returns; part of the ids of its cells.
        metrics: metrics that `measure` returns; a free sweep shows the first, or those of `shown`.
        measures: kind of row that has such a number, by which of the two classes below it extends.
        task: task of the models that have such a number, a key of TASKS (models/contract.py); empty: any.
        libraries: distributions beside torch whose version decides the number, and is in ids; transformers where its
            own code is timed.
        reads: kinds of text (data/protocols.py, KINDS), one of which its column names; empty: it reads none.
        golden: one of the texts that it reads, a few rows of which its golden cell and its contract test are given.
        reads_tasks: True where a text may also be a task of lm-eval (data/tasks.py), whose rows that fetches.
        relative: True where its numbers compare with the full-precision model already.
        of_this_machine: True for speed and memory: ids hold processor, instruction set and threads, rows run alone.
    """

    version: ClassVar[int]
    metrics: ClassVar[tuple[Metric, ...]]
    measures: ClassVar[type[ModelRun] | type[ProductRun]]
    task: ClassVar[str] = ""
    libraries: ClassVar[tuple[str, ...]] = ()
    reads: ClassVar[tuple[str, ...]] = ()
    golden: ClassVar[str] = ""
    reads_tasks: ClassVar[bool] = False
    relative: ClassVar[bool] = False
    of_this_machine: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse options of another type or out of their limits; an evaluator adds what it refuses of several."""
        names = {cls: name for name, cls in registry.classes("evaluator").items()}
        check(self, f"evaluator.{names.get(type(self), type(self).__name__)}.")

    @classmethod
    def shown(cls, text: str) -> Metric:
        """The metric that a free sweep shows of a text, empty where none is named: the first.

        Raises:
            LutlabError: it measures no such text.
        """
        return cls.metrics[0]


@dataclass(frozen=True)
class Evaluator(Declared):
    """A measurement of a quantized model."""

    measures = ModelRun

    @classmethod
    def obstacle(cls, run: ModelRun) -> str:
        """The reason why a row cannot be measured here; empty where it can.

        Raises:
            LutlabError: the row asks for something that does not exist.
        """
        return ""

    @abstractmethod
    def measure(self, subject: Subject) -> Measurement:
        """The values by metric name.

        Raises:
            LutlabError: the subject lacks what is measured; the message says what to do.
        """


@dataclass(frozen=True)
class ProductEvaluator(Declared):
    """A measurement of products of matrices without a model: as Evaluator, of a ProductRun alone."""

    measures = ProductRun

    @classmethod
    def obstacle(cls, run: ProductRun) -> str:
        """The reason why a row cannot be measured here; empty where it can."""
        return ""

    @abstractmethod
    def measure(self, run: ProductRun) -> Measurement:
        """The values by metric name."""


def metric_of(evaluator: type[Declared], name: str) -> Metric | None:
    """The declared metric of that name; None where there is none."""
    return next((metric for metric in evaluator.metrics if metric.name == name), None)
