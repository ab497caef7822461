"""The one training loop: AdamW on named parameters towards a loss of samples, of which the best state is kept.

    step 1 … n:  indices of a batch ─▶ loss ─▶ gradients ─▶ every parameter moves as soon as its gradient is there

The rate rises linearly for a tenth of the steps, then falls as half a cosine. A held-out loss is taken before the first
step and ten times on the way; the parameters of least held-out loss are those that stay. A loss that is not finite ends
the run, which then has the best of what it saw. Samples come in a drawn order, and in another each time all were read;
what a loss itself draws (dropout) follows from seed and step.

A run with a store is written there every few seconds: parameters, Adam's moments, the best parameters, the curve. It
goes on from there after a kill and ends byte for byte as it would have; a state of other beginnings is not taken.

Memory: 8 bytes a number of Adam's moments, and a copy of the best parameters in main memory. A gradient is dropped as
soon as it has moved its parameter.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from lutlab.compress.kept_blocks import content_sha256
from lutlab.errors import LutlabError
from lutlab.tuning.course import Curve, Pace, Progress, means
from lutlab.tuning.states import TuningStore

log = logging.getLogger(__name__)
EVALUATIONS = 10  # times that the held-out loss is taken on the way
BETAS = (0.9, 0.95)
# A state is written so often, and where writing takes long, in a twentieth of the time at most.
_KEEP_SECONDS, _KEEP_SHARE = 5.0, 0.05


def fit(
    name: str,
    parameters: Mapping[str, nn.Parameter],
    loss: Callable[[torch.Tensor], torch.Tensor],
    samples: int,
    pace: Pace,
    *,
    held_out: Callable[[], float] | None = None,
    first: float | None = None,
    kept: TuningStore | None = None,
    report: Callable[[Progress], None] | None = None,
) -> Curve:
    """Train parameters in place, and leave them in their best state.

    Args:
        name: name of the loop, unique within a run; its state's file is named by it.
        parameters: name -> parameter, floating point; they ask for gradients while this runs, and not afterwards.
        loss: function from indices of samples [B] int64 to their mean loss, a scalar.
        samples: number of samples.
        pace: number of steps and learning rate.
        held_out: the loss of the parameters as they are on samples that are never trained on. None: the parameters of
            the last step stay, or of a run that diverges those it began with.
        first: the held-out loss before the first step, where it is known; None: `held_out` computes it.
        kept: store to which the state is written, and from which it is taken up again.
        report: function that is called after every step.

    Returns:
        The curve.

    Raises:
        LutlabError: the loss is not finite before anything was trained; or the store cannot be written.
    """
    run = _Loop(name, parameters, pace, held_out, kept)
    run.begin(samples, first)
    seconds = _Seconds(run.state.step, pace.steps)
    devices = {p.device for p in parameters.values() if p.device.type == "cuda"}
    with torch.enable_grad(), torch.random.fork_rng([*devices]), run.moving():
        for step, batch in enumerate(pace.batches(samples), start=1):
            if step <= run.state.step:
                continue
            if run.state.diverged:
                break
            torch.manual_seed((pace.seed * 1_000_003 + step) % 2**63)
            found = run.take(step, loss, batch)
            run.keep(last=step == pace.steps or run.state.diverged)
            if report:
                report(Progress(name, step, pace.steps, found, seconds.left(step)))
    return run.end()


@dataclass
class _State:
    """State of a loop in JSON's types; its tensors are beside it."""

    step: int = 0
    losses: list[float] = field(default_factory=list)
    held_out: list[list[float]] = field(default_factory=list)
    kept_step: int = 0
    diverged: bool = False


class _Loop:
    """Parameters that are being trained, and the best that they were."""

    def __init__(
        self,
        name: str,
        parameters: Mapping[str, nn.Parameter],
        pace: Pace,
        held_out: Callable[[], float] | None,
        kept: TuningStore | None,
    ) -> None:
        self.name, self.parameters, self.pace = name, parameters, pace
        self.held_out, self.kept = held_out, kept
        self.optimizers = {
            key: torch.optim.AdamW([one], pace.learning_rate, BETAS, weight_decay=pace.weight_decay)
            for key, one in parameters.items()
        }
        self.state, self.best = _State(), self._copies()
        self._of, self._next_keep = "", 0.0

    def begin(self, samples: int, first: float | None) -> None:
        """Restore the written state, or judge the parameters where there is none."""
        if self.kept:
            said = json.dumps([self.name, dataclasses.asdict(self.pace), samples])
            self._of = content_sha256(said, self.best)
            if self._restore():
                return
            self._next_keep = time.monotonic() + _KEEP_SECONDS
        if self.held_out:
            found = self._judged() if first is None else first
            if not math.isfinite(found):
                raise LutlabError(
                    f"tuning {self.name}: the loss is {found} before the first step, so there is nothing to tune "
                    "from: look at the model without tuning first"
                )
            self.state.held_out.append([0, found])

    def moving(self) -> _Moving:
        """While entered, every parameter moves by its gradient as soon as that is there."""
        return _Moving(self.parameters, self.optimizers)

    def take(
        self, step: int, loss: Callable[[torch.Tensor], torch.Tensor], batch: torch.Tensor
    ) -> float:
        """Take one step; returns its loss."""
        for optimizer in self.optimizers.values():
            optimizer.param_groups[0]["lr"] = self.pace.rate(step)
        found = loss(batch)
        value = found.item()
        if not math.isfinite(value):
            self._diverge(step, value)
            return value
        found.backward()
        self.state.step = step
        self.state.losses.append(value)
        between = math.ceil(self.pace.steps / EVALUATIONS)
        if self.held_out and (step % between == 0 or step == self.pace.steps):
            self._consider(step)
        return value

    def _consider(self, step: int) -> None:
        """Keep the parameters as they are now, if their held-out loss is less than before."""
        found = self._judged()
        log.info("tuning %s: loss %.4f on held-out samples after step %d", self.name, found, step)
        if not math.isfinite(found):
            self._diverge(step, found)
            return
        least = min(value for _, value in self.state.held_out)
        self.state.held_out.append([step, found])
        if found < least:
            self.state.kept_step, self.best = step, self._copies()

    def _judged(self) -> float:
        with torch.no_grad():
            return self.held_out()

    def _diverge(self, step: int, value: float) -> None:
        """Stop for good, since the loss diverges.

        Raises:
            LutlabError: nothing was trained yet and nothing judged, so that there is no best.
        """
        if not self.state.held_out and not self.state.losses:
            raise LutlabError(
                f"tuning {self.name}: the loss is {value} at step {step}: look at the model without tuning first"
            )
        self.state.diverged = True
        log.warning(
            "tuning %s: the loss is %s at step %d of %d: stopped, and the parameters of step %d are kept; lower the "
            "learning rate of %g",
            *(self.name, value, step, self.pace.steps, self.state.kept_step),
            self.pace.learning_rate,
        )

    def end(self) -> Curve:
        """The curve, and the best parameters in their places."""
        state = self.state
        if not self.held_out and not state.diverged:
            state.kept_step = state.step
        else:
            with torch.no_grad():
                for key, one in self.parameters.items():
                    one.copy_(self.best[key])
        if self.held_out and state.kept_step == 0 and not state.diverged:
            log.warning(
                "tuning %s: no step lowered the held-out loss, so the parameters stay as they were: lower the learning "
                "rate of %g, or give more samples",
                self.name,
                self.pace.learning_rate,
            )
        return Curve(means(state.losses), state.held_out, state.kept_step, state.diverged)

    def _copies(self) -> dict[str, torch.Tensor]:
        return {key: one.detach().to("cpu", copy=True) for key, one in self.parameters.items()}

    # ---- the store ----

    def keep(self, *, last: bool) -> None:
        """Write the state, if it is time to."""
        if not self.kept or (time.monotonic() < self._next_keep and not last):
            return
        began = time.monotonic()
        tensors = {f"best/{key}": one for key, one in self.best.items()}
        for key, one in self.parameters.items():
            tensors[f"now/{key}"] = one
            moments = self.optimizers[key].state.get(one, {})
            tensors |= {f"adam/{moment}/{key}": value for moment, value in moments.items()}
        self.kept.save(
            self.name, tensors, {"of": self._of, "state": dataclasses.asdict(self.state)}
        )
        took = time.monotonic() - began
        self._next_keep = began + max(_KEEP_SECONDS, took / _KEEP_SHARE)

    def _restore(self) -> bool:
        """Restore a written state of this very loop; returns whether there was one."""
        found = self.kept.load(self.name)
        if found is None:
            return False
        tensors, facts = found
        if facts["of"] != self._of:
            log.warning("tuning %s: what is kept began otherwise, and is made again", self.name)
            return False
        self.state = _State(**facts["state"])
        with torch.no_grad():
            for key, one in self.parameters.items():
                one.copy_(tensors[f"now/{key}"])
                self.best[key] = tensors[f"best/{key}"]
                moments = {
                    name.split("/", 2)[1]: value.to(
                        value.device if value.dim() == 0 else one.device
                    )
                    for name, value in tensors.items()
                    if name.startswith("adam/") and name.split("/", 2)[2] == key
                }
                if moments:
                    self.optimizers[key].state[one] = moments
        log.info(
            "tuning %s: goes on after step %d of %d", self.name, self.state.step, self.pace.steps
        )
        return True


class _Moving:
    """A context in which parameters ask for gradients, move by them and drop them."""

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        optimizers: Mapping[str, torch.optim.Optimizer],
    ) -> None:
        self.parameters, self.optimizers = parameters, optimizers

    def __enter__(self) -> None:
        self.handles = []
        for key, one in self.parameters.items():
            one.requires_grad_()
            move = functools.partial(_move, self.optimizers[key])
            self.handles.append(one.register_post_accumulate_grad_hook(move))

    def __exit__(self, *_: object) -> None:
        for handle, one in zip(self.handles, self.parameters.values(), strict=True):
            handle.remove()
            one.requires_grad_(False)
            one.grad = None


def _move(optimizer: torch.optim.Optimizer, _: torch.Tensor) -> None:
    """A parameter moves by its gradient, which is dropped."""
    optimizer.step()
    optimizer.zero_grad()


class _Seconds:
    """Time that remains, by the pace of this process's own steps."""

    def __init__(self, done: int, steps: int) -> None:
        self.began, self.done, self.steps = time.monotonic(), done, steps

    def left(self, step: int) -> float:
        """Seconds that remain after a step."""
        each = (time.monotonic() - self.began) / max(1, step - self.done)
        return (self.steps - step) * each
