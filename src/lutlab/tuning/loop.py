"""The one training loop: AdamW on named parameters towards a loss of samples, of which the best state is kept.

    step 1 … n:  indices of a batch ─▶ loss ─▶ gradients ─▶ every parameter moves as soon as its gradient is there

The rate rises linearly for a tenth of the steps, then falls as half a cosine. A held-out loss is taken before the first
step and ten times on the way; the parameters of least held-out loss are those that stay. Where the rate of scales is
left out, a held-out loss that is no less than before takes the parameters back to the best ones, and halves the rate:
how fast scales may move goes by the noise of a batch, which nobody knows beforehand. A loss that is not finite ends the
run, which then has the best of what it saw. Samples come in a drawn order, and in another each time all were read; what
a loss itself draws (dropout) follows from seed and step.

A run with a store is written there every few seconds: parameters, Adam's moments, the best parameters, the curve. It
goes on from there after a kill and ends byte for byte as it would have; a state of other beginnings is not taken.

Memory: 8 bytes a number of Adam's moments, and a copy of the best parameters in main memory. A gradient is dropped as
soon as it has moved its parameter.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import logging
import math
import operator
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lutlab.base.errors import LutlabError
from lutlab.base.progress import duration, tell
from lutlab.base.specs import Tuning
from lutlab.compress.kept_blocks import TuningStore, content_sha256

log = logging.getLogger(__name__)
WARM_UP = 0.1  # of all steps
POINTS = 100  # of a curve of losses
EVALUATIONS = 10  # times that the held-out loss is taken on the way
BETAS = (0.9, 0.95)
# A state is written so often, and where writing takes long, in a twentieth of the time at most.
_KEEP_SECONDS, _KEEP_SHARE = 5.0, 0.05


@dataclass(frozen=True)
class Progress:
    """Progress of a loop; str() is a line for a reader."""

    name: str
    step: int
    steps: int
    loss: float
    seconds_left: float

    def __str__(self) -> str:
        left = duration(self.seconds_left)
        return f"tuning {self.name} {self.step}/{self.steps}, loss {self.loss:.4g}, {left} left"


def fit(
    name: str,
    parameters: Mapping[str, nn.Parameter],
    loss: Callable[[torch.Tensor], torch.Tensor],
    samples: int,
    tuning: Tuning,
    *,
    units: Mapping[str, torch.Tensor] | None = None,
    held_out: Callable[[], float] | None = None,
    first: float | None = None,
    kept: TuningStore | None = None,
) -> dict[str, Any]:
    """Train parameters in place, and leave them in their best state.

    Args:
        name: name of the loop, unique within a run; its state's file is named by it.
        parameters: name -> parameter, floating point; they ask for gradients while this runs, and not afterwards.
        loss: function from indices of samples [B] int64 to their mean loss, a scalar.
        samples: number of samples.
        tuning: options, of which steps, rate, weight_decay, batch and seed are read.
        units: name -> unit of the learning rate, at least 0, of a shape that broadcasts to the parameter's; 1 where
            there is none.
        held_out: the loss of the parameters as they are on samples that are never trained on. None: the parameters of
            the last step stay, or of a run that diverges those it began with.
        first: the held-out loss before the first step, where it is known; None: `held_out` computes it.
        kept: store to which the state is written, and from which it is taken up again.

    Returns:
        The curve, in JSON's types: `losses`, pairs [step, mean loss of the steps since the pair before]; `held_out`,
        pairs [step, loss], of step 0 too; `kept_step`, the step whose parameters stay, 0 where those that it began with
        do; `diverged`, whether a loss that is not finite ended it.

    Raises:
        LutlabError: the loss is not finite before anything was trained; or the store cannot be written.
    """
    run = _Loop(name, parameters, tuning, units or {}, held_out, kept)
    run.begin(samples, first)
    began, done, steps = time.monotonic(), run.step, tuning.steps
    devices = {p.device for p in parameters.values() if p.device.type == "cuda"}
    with torch.enable_grad(), torch.random.fork_rng([*devices]), run.moving():
        for step, batch in enumerate(batches(tuning, samples), start=1):
            if step <= run.step:
                continue
            if run.curve["diverged"]:
                break
            torch.manual_seed((tuning.seed * 1_000_003 + step) % 2**63)
            value = run.take(step, loss, batch)
            run.keep(last=step == steps or run.curve["diverged"])
            # by the pace of this process's own steps
            left = (steps - step) * (time.monotonic() - began) / max(1, step - done)
            tell(Progress(name, step, steps, value, left))
    return run.end()


def rate(tuning: Tuning, step: int) -> float:
    """Learning rate of a step from 1: a linear warm-up, then half a cosine."""
    warm = WARM_UP * tuning.steps
    if step - 1 < warm:
        return tuning.rate * min(1.0, step / warm)
    share = (1 + math.cos(math.pi * (step - 1 - warm) / (tuning.steps - warm))) / 2
    return tuning.rate * share


def batches(tuning: Tuning, samples: int) -> Iterator[torch.Tensor]:
    """Indices [B] int64 of a batch, one a step: all samples in a drawn order, then again in another."""
    draw = torch.Generator().manual_seed(tuning.seed)
    waiting = torch.arange(0)
    for _ in range(tuning.steps):
        while len(waiting) < tuning.batch:
            waiting = torch.cat([waiting, torch.randperm(samples, generator=draw)])
        yield waiting[: tuning.batch]
        waiting = waiting[tuning.batch :]


def means(losses: Sequence[float]) -> list[list[float]]:
    """Losses of steps 1 … n as at most POINTS pairs: the last step of a span, and its mean."""
    width = max(1, math.ceil(len(losses) / POINTS))
    spans = [losses[at : at + width] for at in range(0, len(losses), width)]
    ends = itertools.accumulate(map(len, spans))
    return [[end, math.fsum(span) / len(span)] for end, span in zip(ends, spans, strict=True)]


class _Loop:
    """Parameters that are being trained, the best that they were, and the curve so far, with a loss for each step."""

    def __init__(
        self,
        name: str,
        parameters: Mapping[str, nn.Parameter],
        tuning: Tuning,
        units: Mapping[str, torch.Tensor],
        held_out: Callable[[], float] | None,
        kept: TuningStore | None,
    ) -> None:
        self.name, self.parameters, self.tuning = name, parameters, tuning
        self.units, self.held_out, self.kept = units, held_out, kept
        self.optimizers = {
            key: torch.optim.AdamW(
                [parameter], tuning.rate, BETAS, weight_decay=tuning.weight_decay
            )
            for key, parameter in parameters.items()
        }
        self.curve: dict[str, Any] = {
            "losses": [], "held_out": [], "kept_step": 0, "diverged": False
        }  # fmt: skip
        self.best = self._copies()
        self._digest, self._next_keep = "", 0.0

    @property
    def step(self) -> int:
        """Steps that were taken."""
        return len(self.curve["losses"])

    def begin(self, samples: int, first: float | None) -> None:
        """Restore the written state, or judge the parameters where there is none."""
        if self.kept:
            header = json.dumps([self.name, dataclasses.asdict(self.tuning), samples])
            self._digest = content_sha256(header, self.best)
            if self._restore(self.kept):
                return
            self._next_keep = time.monotonic() + _KEEP_SECONDS
        if self.held_out:
            value = _judged(self.held_out) if first is None else first
            if not math.isfinite(value):
                raise LutlabError(
                    f"tuning {self.name}: the loss is {value} before the first step, so there is nothing to tune "
                    "from: look at the model without tuning first"
                )
            self.curve["held_out"].append([0, value])

    @contextmanager
    def moving(self) -> Iterator[None]:
        """While entered, every parameter moves by its gradient as soon as that is there, and drops it."""
        handles = []
        for key, parameter in self.parameters.items():
            parameter.requires_grad_()
            move = functools.partial(_move, self.optimizers[key], self.units.get(key))
            handles.append(parameter.register_post_accumulate_grad_hook(move))
        try:
            yield
        finally:
            for handle, parameter in zip(handles, self.parameters.values(), strict=True):
                handle.remove()
                parameter.requires_grad_(False)
                parameter.grad = None

    def take(
        self, step: int, loss: Callable[[torch.Tensor], torch.Tensor], batch: torch.Tensor
    ) -> float:
        """Take one step; returns its loss."""
        learning_rate = rate(self.tuning, step) / 2**self._halvings
        for optimizer in self.optimizers.values():
            optimizer.param_groups[0]["lr"] = learning_rate
        mean = loss(batch)
        value = mean.item()
        if not math.isfinite(value):
            self._diverge(step, value)
            return value
        mean.backward()
        self.curve["losses"].append(value)
        between = math.ceil(self.tuning.steps / EVALUATIONS)
        if self.held_out and (step % between == 0 or step == self.tuning.steps):
            self._consider(step, _judged(self.held_out))
        return value

    def _consider(self, step: int, value: float) -> None:
        """Keep the parameters as they are now, if their held-out loss is less than before."""
        log.info("tuning %s: loss %.4f on held-out samples after step %d", self.name, value, step)
        if not math.isfinite(value):
            self._diverge(step, value)
            return
        least = min(before for _, before in self.curve["held_out"])
        self.curve["held_out"].append([step, value])
        if value < least:
            self.curve["kept_step"], self.best = step, self._copies()
        elif self.tuning.adapts:
            self._take_best()

    @property
    def _halvings(self) -> int:
        """How often the held-out loss was no less than before, where that halves the rate."""
        losses = [loss for _, loss in self.curve["held_out"]]
        least = itertools.accumulate(losses, min)
        return sum(map(operator.ge, losses[1:], least)) if self.tuning.adapts else 0

    @property
    def _slower(self) -> str:
        """Advice to whom the rate is too high; one that was left out is in units of its own."""
        if self.tuning.adapts:
            return "give a learning rate of scales, as 1e-5"
        return f"lower the learning rate of {self.tuning.rate:g}"

    def _take_best(self) -> None:
        with torch.no_grad():
            for key, parameter in self.parameters.items():
                parameter.copy_(self.best[key])

    def _diverge(self, step: int, value: float) -> None:
        """Stop for good, since the loss diverges.

        Raises:
            LutlabError: nothing was trained yet and nothing judged, so that there is no best.
        """
        if not self.curve["held_out"] and not self.curve["losses"]:
            raise LutlabError(
                f"tuning {self.name}: the loss is {value} at step {step}: look at the model without tuning first"
            )
        self.curve["diverged"] = True
        log.warning(
            "tuning %s: the loss is %s at step %d of %d: stopped, and the parameters of step %d are kept; %s",
            *(self.name, value, step, self.tuning.steps, self.curve["kept_step"]),
            self._slower,
        )

    def end(self) -> dict[str, Any]:
        """The curve, and the best parameters in their places."""
        curve, diverged = self.curve, self.curve["diverged"]
        if not self.held_out and not diverged:
            curve["kept_step"] = self.step
        else:
            self._take_best()
        if self.held_out and curve["kept_step"] == 0 and not diverged:
            log.warning(
                "tuning %s: no step lowered the held-out loss, so the parameters stay as they were: %s, or give more "
                "samples",
                self.name,
                self._slower,
            )
        return curve | {"losses": means(curve["losses"])}

    def _copies(self) -> dict[str, torch.Tensor]:
        return {key: p.detach().to("cpu", copy=True) for key, p in self.parameters.items()}

    # ---- the store ----

    def keep(self, *, last: bool) -> None:
        """Write the state, if it is time to."""
        if not self.kept or (time.monotonic() < self._next_keep and not last):
            return
        began = time.monotonic()
        tensors = {f"best/{key}": value for key, value in self.best.items()}
        for key, parameter in self.parameters.items():
            tensors[f"now/{key}"] = parameter
            moments = self.optimizers[key].state.get(parameter, {})
            tensors |= {f"adam/{moment}/{key}": value for moment, value in moments.items()}
        self.kept.write(self.name, tensors, {"of": self._digest, "curve": self.curve})
        took = time.monotonic() - began
        self._next_keep = began + max(_KEEP_SECONDS, took / _KEEP_SHARE)

    def _restore(self, store: TuningStore) -> bool:
        """Restore a written state of this very loop; returns whether there was one."""
        content = store.intact(self.name)
        if content is None:
            return False
        tensors, facts = content
        if facts["of"] != self._digest:
            log.warning("tuning %s: what is kept began otherwise, and is made again", self.name)
            return False
        self.curve = facts["curve"]
        with torch.no_grad():
            for key, parameter in self.parameters.items():
                parameter.copy_(tensors[f"now/{key}"])
                self.best[key] = tensors[f"best/{key}"]
                moments = {
                    name.split("/", 2)[1]: value.to(
                        value.device if value.dim() == 0 else parameter.device
                    )
                    for name, value in tensors.items()
                    if name.startswith("adam/") and name.split("/", 2)[2] == key
                }
                if moments:
                    self.optimizers[key].state[parameter] = moments
        log.info("tuning %s: goes on after step %d of %d", self.name, self.step, self.tuning.steps)
        return True


def _judged(held_out: Callable[[], float]) -> float:
    with torch.no_grad():
        return held_out()


@torch.no_grad()
def _move(
    optimizer: torch.optim.Optimizer, unit: torch.Tensor | None, parameter: torch.Tensor
) -> None:
    """A parameter decays and moves by its gradient, so many units, which is dropped."""
    if unit is None:
        optimizer.step()
    else:
        (group,) = optimizer.param_groups
        decayed = parameter * (1 - group["lr"] * group["weight_decay"])  # from where AdamW steps
        optimizer.step()
        parameter.sub_(decayed).mul_(unit).add_(decayed)
    optimizer.zero_grad()
