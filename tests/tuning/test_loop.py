"""The training loop: a killed run ends byte for byte as another, the best state stays, what diverges is stopped."""

import itertools
from dataclasses import replace

import pytest
import torch
from tests.tuning.tuned import Killed, kill_after
from torch import nn

from lutlab.base.errors import LutlabError
from lutlab.base.progress import heard
from lutlab.base.specs import Tuning
from lutlab.compress.kept_blocks import TuningStore
from lutlab.tuning.loop import BETAS, Progress, fit, rate

PACE = Tuning(steps=12, learning_rate=0.1, weight_decay=0.01, batch=3, seed=5)
ADAPTING = replace(PACE, learning_rate=None, trains="scales")


class Toy:
    """Two parameters that learn targets, with noise that the loss itself draws."""

    def __init__(self, broken_at=-1, pace=PACE, judge=1.0):
        self.parameters = {"a.x": nn.Parameter(torch.zeros(4)), "b": nn.Parameter(torch.ones(2, 4))}
        self.targets = torch.randn(7, 4, generator=torch.Generator().manual_seed(1))
        self.broken_at, self.pace, self.judge, self.seen = broken_at, pace, judge, []

    def loss(self, indices):
        self.seen.append(indices.tolist())
        a, b = self.parameters.values()
        noise = 0.01 * torch.rand(4)
        error = (a * b.sum(0) + noise - self.targets[indices]).square().mean()
        return error * (torch.nan if len(self.seen) == self.broken_at else 1.0)

    def judged(self):
        a, b = self.parameters.values()
        return self.judge * (a * b.sum(0) - self.targets[0]).square().mean().item()

    def fit(self, **options):
        held_out = options.pop("held_out", self.judged)
        return fit("toy", self.parameters, self.loss, 7, self.pace, held_out=held_out, **options)

    def state(self):
        return [values.detach().flatten().tolist() for values in self.parameters.values()]


@pytest.mark.parametrize(("how", "more"), [
    ({}, {}), ({}, {"held_out": None}), ({"pace": ADAPTING}, {}), ({"pace": ADAPTING, "judge": -1.0}, {}),
])  # fmt: skip
def test_a_killed_run_ends_byte_for_byte_as_another(how, more, tmp_path, kept_at_every_step):
    whole = Toy(**how)
    curve = whole.fit(**more)
    for steps in (1, 5):
        store = TuningStore(tmp_path / f"{steps}")
        for _ in range(12 // steps):
            with pytest.raises(Killed), heard(kill_after(steps)):
                Toy(**how).fit(kept=store, **more)
        again = Toy(**how)
        assert (again.fit(kept=store, **more), again.state()) == (curve, whole.state())
        assert len(again.seen) == 12 % steps
    other = Toy(**how)  # it begins elsewhere, so that no step of the one before is its own
    with torch.no_grad():
        other.parameters["b"].add_(1.0)
    other.fit(kept=store, **more)
    assert len(other.seen) == 12


def test_every_sample_is_read_before_one_is_read_again():
    toy = Toy()
    toy.fit()
    order = [*itertools.chain(*toy.seen)]
    assert sorted(order[:7]) == sorted(order[7:14]) == [*range(7)] != order[:7]
    assert order[:7] != order[7:14]


def test_a_rate_counts_in_units():
    def fitted(scale, **options):
        x = nn.Parameter(scale * torch.linspace(1, 2, 4))
        fit("toy", {"x": x}, lambda _: (x / scale).square().sum(), 7, PACE, **options)
        return x.detach() / scale

    plain, small = fitted(1.0), 2.0**-20
    torch.testing.assert_close(fitted(small, units={"x": torch.tensor(small)}), plain)
    assert (fitted(small) < 0).all(), "without it, such a parameter leaps"


def test_a_rate_left_out_is_halved_where_the_held_out_loss_does_not_fall():
    start, losses = torch.linspace(1, 2, 4), iter([5.0, 4.0, 6.0, 4.0, 3.0, 2.0, 1.0])
    x, naive = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    pace = replace(ADAPTING, weight_decay=0.0)
    fit("toy", {"x": x}, lambda _: x.square().sum(), 7, pace, held_out=losses.__next__)
    adam, best, halvings = torch.optim.AdamW([naive], betas=BETAS, weight_decay=0.0), start, 0
    for step in range(1, 13):
        adam.param_groups[0]["lr"] = rate(pace, step) / 2**halvings
        naive.grad = 2 * naive.detach()
        adam.step()
        if step in (4, 6):
            halvings += 1
            naive.data.copy_(best)
        elif step % 2 == 0:
            best = naive.detach().clone()
    assert torch.equal(x, naive)


def test_the_best_stays_and_what_diverges_says_so(caplog):
    toy = Toy(broken_at=9)
    curve = toy.fit()
    assert curve["diverged"]
    assert [step for step, _ in curve["losses"]] == [*range(1, 9)]
    held_out = [loss for _, loss in curve["held_out"]]
    assert toy.judged() == min(held_out) < held_out[0]
    assert "at step 9 of 12: stopped" in caplog.text
    blind = Toy(broken_at=9)
    assert blind.fit(held_out=None)["kept_step"] == 0
    assert blind.state() == Toy().state()
    assert not any(p.requires_grad and p.grad is not None for p in blind.parameters.values())
    worse, values = Toy(), itertools.count()
    assert worse.fit(held_out=lambda: float(next(values)))["kept_step"] == 0
    assert worse.state() == Toy().state()
    assert "no step lowered the held-out loss" in caplog.text
    assert "lower the learning rate of 0.1, or" in caplog.text
    Toy(pace=ADAPTING, judge=-1.0).fit()
    assert "give a learning rate of scales" in caplog.text, "what it counts in is no user's number"


@pytest.mark.parametrize(("broken_at", "held_out", "message"), [
    (-1, lambda: torch.inf, "inf before the first step"), (-1, lambda: torch.nan, "nan before the first step"),
    (1, None, "nan at step 1"),
])  # fmt: skip
def test_what_is_broken_from_the_beginning_is_refused(broken_at, held_out, message):
    with pytest.raises(LutlabError, match=message):
        Toy(broken_at).fit(held_out=held_out)


def test_a_line_of_progress():
    line = f"{Progress('scales', 120, 400, 3.2149, 130.0)}"
    assert line == "tuning scales 120/400, loss 3.215, 2 min left"
