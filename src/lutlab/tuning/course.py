"""The course of a loop: its pace, the curve that it took, and where it is."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from lutlab.specs import Tuning

WARM_UP = 0.1  # of all steps
POINTS = 100  # of a curve of losses


@dataclass(frozen=True)
class Pace:
    """Length and rates of a loop.

    Attributes:
        steps: number of the optimizer's steps.
        learning_rate: AdamW's, at its peak.
        weight_decay: weight decay of AdamW.
        batch: samples a step.
        seed: seed of the order of samples.
    """

    steps: int
    learning_rate: float
    weight_decay: float
    batch: int
    seed: int

    @classmethod
    def of(cls, tuning: Tuning) -> Pace:
        """The pace of the end-to-end steps."""
        return cls(**{f.name: getattr(tuning, f.name) for f in dataclasses.fields(cls)})

    def rate(self, step: int) -> float:
        """Learning rate of a step from 1: a linear warm-up, then half a cosine."""
        warm = WARM_UP * self.steps
        if step - 1 < warm:
            return self.learning_rate * min(1.0, step / warm)
        share = (1 + math.cos(math.pi * (step - 1 - warm) / (self.steps - warm))) / 2
        return self.learning_rate * share

    def batches(self, samples: int) -> Iterator[torch.Tensor]:
        """Indices [B] int64 of a batch, one a step: all samples in a drawn order, then again in another."""
        draw = torch.Generator().manual_seed(self.seed)
        waiting = torch.arange(0)
        for _ in range(self.steps):
            while len(waiting) < self.batch:
                waiting = torch.cat([waiting, torch.randperm(samples, generator=draw)])
            yield waiting[: self.batch]
            waiting = waiting[self.batch :]


@dataclass(frozen=True)
class Curve:
    """The course of a loop, in JSON's types.

    Attributes:
        losses: [step, mean loss of the steps since the point before].
        held_out: [step, loss], of step 0 too.
        kept_step: step whose parameters stay; 0: those that it began with.
        diverged: whether a loss that is not finite ended it.
    """

    losses: list[list[float]]
    held_out: list[list[float]]
    kept_step: int
    diverged: bool


@dataclass(frozen=True)
class Progress:
    """Progress of a loop; str() is a line for a reader."""

    name: str
    step: int
    steps: int
    loss: float
    seconds_left: float

    def __str__(self) -> str:
        seconds = self.seconds_left
        left = f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
        return f"tuning {self.name} {self.step}/{self.steps}, loss {self.loss:.4g}, {left} left"


def means(losses: Sequence[float]) -> list[list[float]]:
    """Losses of steps 1 … n as at most POINTS pairs: the last step of a span, and its mean."""
    width = max(1, math.ceil(len(losses) / POINTS))
    spans = [losses[at : at + width] for at in range(0, len(losses), width)]
    ends = itertools.accumulate(map(len, spans))
    return [[end, math.fsum(span) / len(span)] for end, span in zip(ends, spans, strict=True)]
