"""Contract of an evaluator: a Subject in, a Measurement out; its columns and its cost are declared beside it.

An evaluator is a class under `@register("evaluator", <name>)`; one with options is a frozen dataclass, whose fields are
`evaluator.<name>.<field>=`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from lutlab.base import registry
from lutlab.base.fields import check
from lutlab.base.specs import Measurement, ModelRun, RunSpec, Subject


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
class Work:
    """The cost of a measurement in units of no machine: experiment/plan/cost.py turns it into seconds and bytes here.

    Attributes:
        passes: number of passes over all tokens of the text, a window or an example at once.
        checked_tokens: tokens read at once beside the text, as to check what was decoded.
        decoded_tokens: tokens decoded one after another, each of which reads the linear weights and the head.
        read_share: part of the rate at which memory is read here that the products of a decoded token reach.
        bits: stored bits of a linear weight while decoding; None: those of the run.
        packed_copies: copies of the packed model that are held beside it.
        dense_copies: copies of the model in full precision that are held beside it.
        packed_files: number of copies of the packed model on disk, each written and read once.
        float32_files: number of copies of the model in float32 on disk, each written and read once.
        state_files: number of copies on disk of the last hidden state of every token, which other rows read too.
        processes: number of fresh processes, which import torch and transformers.
        streamed_bytes: bytes read from memory by products without a model.
        drawn_weights: number of weights drawn and packed for products without a model.
        held_bytes: bytes held beside the model, or in its place.
    """

    passes: int = 0
    checked_tokens: int = 0
    decoded_tokens: int = 0
    read_share: float = 0.5
    bits: float | None = None
    packed_copies: int = 0
    dense_copies: int = 0
    packed_files: int = 0
    float32_files: int = 0
    state_files: int = 0
    processes: int = 0
    streamed_bytes: int = 0
    drawn_weights: int = 0
    held_bytes: int = 0


@dataclass(frozen=True)
class Evaluator(ABC):
    """A measurement of a quantized model or of a product.

    Attributes:
        version: raised by whoever changes what the evaluator returns; part of the ids of its cells.
        metrics: metrics that `measure` returns; a free sweep shows the first, or those of `shown`.
        measures: ModelRun or ProductRun, the kind of row that has such a number.
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
    measures: ClassVar[type] = ModelRun
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
    def obstacle(cls, run: RunSpec) -> str:
        """The reason why a row of the kind that it measures cannot be measured here; empty where it can.

        Raises:
            LutlabError: the row asks for something that does not exist.
        """
        return ""

    @classmethod
    def shown(cls, text: str) -> Metric:
        """The metric that a free sweep shows of a text, empty where none is named: the first.

        Raises:
            LutlabError: it measures no such text.
        """
        return cls.metrics[0]

    def work(self, run: RunSpec) -> Work:
        """The cost of measuring a row, loading and quantizing not included: one pass over a text that it reads."""
        return Work(passes=1 if self.reads else 0)

    @abstractmethod
    def measure(self, subject: Subject) -> Measurement:
        """The values by metric name.

        Raises:
            LutlabError: the subject lacks what is measured; the message says what to do.
        """


def metric_of(evaluator: type[Evaluator], name: str) -> Metric | None:
    """The declared metric of that name; None where there is none."""
    return next((metric for metric in evaluator.metrics if metric.name == name), None)
