"""Widths of every layer under a hard budget: how much each layer's error matters, then an integer program.

A layer whose outputs move by e = D x (D: the error of its weight, x: its input) moves the loss, to second order, by

    dL ~ 1/2 E[e^T G e] ~ 1/2 mean_n(G_nn) tr(D H D^T),     G = E[g g^T], g = dL/dy,  H = E[x x^T]

with the Fisher information G in the place of the loss's second derivative. The errors of different outputs are
rounded apart, so G's diagonal is what counts; one number a layer is kept of it. tr(D H D^T) is what the driver states
of a layer (specs.LayerStats, output_error) when the model is quantized at one width, once for every candidate, with the
weights as targets: under another (target.py) D has what a layer does on purpose.

Of all widths those are taken that fit into the budget of bits together,

    minimise sum_l cost[l, o_l]   over one option o_l a layer   subject to   sum_l bits[l, o_l] <= budget

a multiple-choice knapsack, solved by HiGHS (scipy.optimize.milp): a variable in {0, 1} for each layer and option. Bits
are whole numbers and the budget is checked on them after solving, so it is never exceeded, not by one bit.

The estimate adds layers up as if errors did not meet. So the answer of the integer program is quantized
and its loss measured beside that of grid points (one width, or one for attention and one for feed-forward) that fit
into the same budget, and the lowest loss wins.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
import logging
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import LinearConstraint, milp
from scipy.sparse import csr_array, vstack
from transformers import PreTrainedModel

from lutlab.base.errors import LutlabError
from lutlab.base.groups import Width
from lutlab.base.specs import LayerStats
from lutlab.compress.calibrate import Windows
from lutlab.compress.driver import quantize_model
from lutlab.compress.gradients import batches, output_gradients
from lutlab.compress.kept_blocks import StatsStore
from lutlab.compress.sizes import budget_bits, refuse_below
from lutlab.compress.widths import widths
from lutlab.models.families import kinds, linear_layers, task_of, weight_of
from lutlab.quantizers.contract import Calibrated, Method

log = logging.getLogger(__name__)
# Grid points whose loss is measured beside the integer program's answer, those of the lowest estimate.
GRID_POINTS = 3
GRADIENT_WINDOWS = 16  # that gradients are taken on


# HiGHS stops within 1e-6 of the optimum, in units of the objective: costs are scaled to this largest difference.
_LARGEST_COST = 1e6
# Where the proof of optimality is given up, for hundreds of layers of equal shapes: the best answer by then stands.
# A count of nodes, unlike a time, gives the same answer on every machine.
_NODES = 5000


@dataclass(frozen=True)
class Option:
    """One way to store a layer. width: (q, g), None for full precision; bits: of every buffer; cost: to be low."""

    width: Width | None
    bits: int
    cost: float


def search_widths(
    model: PreTrainedModel,
    quantizer: Method,
    candidates: Sequence[Width],
    budget: float,
    calibration: Windows | None,
    *,
    skip: Sequence[str] = (),
    seen: StatsStore | None = None,
) -> tuple[dict[str, Width | None], dict[str, Any]]:
    """The widths of least calibration loss that store at most `budget` bits a weight; the model stays as it is.

    The model is copied and quantized once for every candidate and contender, so it has to be in memory, twice.

    Args:
        model: model in evaluation mode and full precision.
        quantizer: the method, with its options.
        candidates: (q, g) that a layer may have.
        budget: stored bits a weight over all linear layers of the blocks: every buffer with its padding, scales and
            offsets included. Layers of `skip` count with the 16 bits they are stored in.
        calibration: token ids [samples, S] int64.
        skip: patterns (fnmatch) of layer names that stay in full precision.
        seen: store of the statistics of full-precision inputs; None: they last as long as the call.

    Returns:
        The widths of all layers, by name; and how they came about, in JSON's types.

    Raises:
        LutlabError: the method does not quantize, there are no candidates, the budget is not positive or below the
            smallest size possible, the model is streamed or predicts no next token, calibration is no token ids, or as
            quantize_model.
    """
    if not quantizer.quantizes:
        raise LutlabError("budget needs a method that quantizes: give method=rtn, bcq, gptq, …")
    if not candidates:
        raise LutlabError("budget needs candidates: give candidates.q=[2,3,4] candidates.g=[128]")
    if any(parameter.is_meta for parameter in model.parameters()):
        raise LutlabError(
            "budget copies the model to try widths out, and this one is streamed: drop stream=true"
        )
    if (task := task_of(model)) != "causal_lm":
        raise LutlabError(
            f"budget compares losses of the next token, and this model is for {task}: give every layer q and g"
        )
    if not isinstance(calibration, torch.Tensor):
        raise LutlabError(
            "budget compares losses on windows without padding: give calibration=<token ids [samples, seqlen]>"
        )
    weights = sum(weight_of(module).numel() for _, module in linear_layers(model))
    bits = budget_bits(budget, weights)
    with tempfile.TemporaryDirectory() as folder:
        trial = _Trial(model, quantizer, calibration, seen or StatsStore(Path(folder) / "inputs"))
        options = trial.options([widths(kinds(model.config), *c, skip=skip) for c in candidates])
        refuse_below(_smallest(options), bits, weights)
        solved = {name: option.width for name, option in allocate(options, bits).items()}
        contenders = [("integer program", solved, _total(options, solved).cost)]
        contenders += _grid(options, kinds(model.config), candidates, bits)[:GRID_POINTS]
        tried = [(*trial.measure(chosen), name, chosen, cost) for name, chosen, cost in contenders]
    fitting = [contender for contender in tried if contender[1] <= bits]
    if not fitting:
        raise LutlabError(
            f"no widths of {budget} bits a weight were found: the method stores more at mixed widths than at one; "
            "lower the budget"
        )
    # of equal ones the first: the integer program
    lowest, size, winner, chosen, _ = min(fitting, key=lambda contender: contender[0])
    log.info("budget %s: %s wins with loss %.4f", budget, winner, lowest)
    facts = {
        "budget": budget,
        "bits_per_weight": size / weights,
        "winner": winner,
        "loss_full_precision": trial.loss(model),
        "contenders": [
            {
                "name": name,
                "loss": loss,
                "estimated_increase": estimate,
                "bits_per_weight": size / weights,
            }
            for loss, size, name, _, estimate in tried
        ],
        "widths": {name: list(width or (16, -1)) for name, width in chosen.items()},
    }
    return chosen, facts


class _Trial:
    """A model that is quantized again and again, in copies."""

    def __init__(
        self, model: PreTrainedModel, quantizer: Method, calibration: torch.Tensor, seen: StatsStore
    ) -> None:
        self.model, self.quantizer = model, quantizer
        self.calibration, self.seen = calibration, seen

    def options(self, uniform: Sequence[Mapping[str, Width | None]]) -> dict[str, list[Option]]:
        """Layer name -> size and estimated increase of the loss at every width tried."""
        matters = loss_curvature(self.model, self.calibration[:GRADIENT_WINDOWS])
        options: dict[str, list[Option]] = {name: [] for name in matters}
        plain = self.quantizer
        if isinstance(plain, Calibrated) and plain.target != "weights":
            plain = dataclasses.replace(plain, target="weights")
        for chosen in uniform:
            for layer in self.quantized(chosen, plain)[1]:
                assert layer.output_error is not None  # since there is calibration
                cost = matters[layer.name] * layer.output_error
                options[layer.name].append(Option(chosen[layer.name], layer.bits_stored, cost))
        return options

    def quantized(
        self, chosen: Mapping[str, Width | None], quantizer: Method
    ) -> tuple[PreTrainedModel, tuple[LayerStats, ...]]:
        """A copy of the model at the chosen widths."""
        model = copy.deepcopy(self.model)
        layers = quantize_model(model, quantizer, chosen, self.calibration, seen=self.seen)
        return model, layers

    def measure(self, chosen: Mapping[str, Width | None]) -> tuple[float, int]:
        """Loss in nats a token, and stored bits."""
        model, layers = self.quantized(chosen, self.quantizer)
        return self.loss(model), sum(layer.bits_stored for layer in layers)

    def loss(self, model: PreTrainedModel) -> float:
        """Mean over the calibration windows, in nats a token."""
        total = 0.0
        with torch.no_grad():
            for batch in batches(model, self.calibration):
                mean = model(input_ids=batch, labels=batch, use_cache=False).loss.item()
                total += mean * len(batch)
        return total / len(self.calibration)


def loss_curvature(model: PreTrainedModel, windows: torch.Tensor) -> dict[str, float]:
    """Layer name -> 1/2 mean_n(G_nn) of the module's equation, on windows [samples, S] int64."""
    squares = dict.fromkeys((name for name, _ in linear_layers(model)), 0.0)

    def see(name: str, gradient: torch.Tensor) -> None:
        squares[name] += gradient.float().square().mean(-1).sum().item()

    output_gradients(model, windows, see)
    for name, square in squares.items():
        if not math.isfinite(square):
            raise LutlabError(
                f"calibration: the gradients of {name} are inf or nan: load the model with dtype=float32"
            )
    return {name: square / 2 / windows.numel() for name, square in squares.items()}


def _smallest(options: Mapping[str, Sequence[Option]]) -> int:
    return sum(min(option.bits for option in some) for some in options.values())


def _total(options: Mapping[str, Sequence[Option]], chosen: Mapping[str, Width | None]) -> Option:
    """Bits and cost of all layers at these widths."""
    taken = [next(o for o in some if o.width == chosen[name]) for name, some in options.items()]
    return Option(None, sum(o.bits for o in taken), math.fsum(o.cost for o in taken))


def _grid(
    options: Mapping[str, Sequence[Option]],
    kind_of: Mapping[str, str],
    candidates: Sequence[Width],
    bits: int,
) -> list[tuple[str, dict[str, Width | None], float]]:
    """Name, widths and estimated increase of the loss of grid points within the budget, by rising estimate.

    A grid point has one width for each kind of sub-layer.
    """
    known = sorted(set(kind_of.values()))
    skipped = {name for name, some in options.items() if some[0].width is None}
    points = []
    for combination in itertools.product(candidates, repeat=len(known)):
        by_kind = dict(zip(known, combination, strict=True))
        chosen = {name: None if name in skipped else by_kind[kind_of[name]] for name in options}
        total = _total(options, chosen)
        if total.bits <= bits:
            name = ", ".join(f"{kind} q={q} g={g}" for kind, (q, g) in by_kind.items())
            points.append((name, chosen, total.cost))
    return sorted(points, key=lambda point: point[2])


def allocate(options: Mapping[str, Sequence[Option]], budget: int) -> dict[str, Option]:
    """The options of least total cost that fit into the budget.

    Args:
        options: layer name -> at least one option each, of finite cost.
        budget: bits of all layers together.

    Returns:
        Layer name -> one of its options. Of options of equal cost the smaller one, of equal ones the first.

    Raises:
        LutlabError: the smallest options together exceed the budget, or the solver gives up.
    """
    smallest = _smallest(options)
    if smallest > budget:
        raise LutlabError(
            f"a budget of {budget} bits is below the smallest possible, {smallest} bits: "
            "raise it, or allow fewer bits or larger groups"
        )
    useful = {name: _undominated(some) for name, some in options.items()}
    layer = np.concatenate([[i] * len(some) for i, some in enumerate(useful.values())])
    every = [option for some in useful.values() for option in some]
    bits = np.array([option.bits for option in every])
    cost = np.concatenate([[o.cost - some[-1].cost for o in some] for some in useful.values()])
    cost *= _LARGEST_COST / (cost.max() or 1.0)
    # What options take beyond the smallest of their layer, without a common factor: small coefficients, small rounding
    # errors in the solver, which gives up on coefficients of 10^10.
    extra = np.concatenate([[o.bits - some[0].bits for o in some] for some in useful.values()])
    unit = math.gcd(*extra.tolist()) or 1
    columns = np.arange(len(every))
    one_each = csr_array((np.ones(len(every)), (layer, columns)))
    rows = [one_each, csr_array((extra // unit)[None].astype(float))]
    lower = np.append(np.ones(len(useful)), 0.0)
    upper = np.append(np.ones(len(useful)), float((budget - smallest) // unit))
    while True:
        solution = milp(
            cost,
            integrality=np.ones(len(every)),
            bounds=(0, 1),
            constraints=LinearConstraint(vstack(rows), lower, upper),
            options={"mip_rel_gap": 0, "node_limit": _NODES},
        )
        if solution.x is None:
            raise LutlabError(f"the solver found no allocation of widths: {solution.message}")
        chosen = np.flatnonzero(solution.x > 0.5)
        if bits[chosen].sum() <= budget:
            return dict(zip(useful, (every[i] for i in chosen), strict=True))
        # the solver's tolerance let too much through: forbid exactly this choice
        rows.append(csr_array(np.isin(columns, chosen)[None].astype(float)))
        lower, upper = np.append(lower, 0.0), np.append(upper, len(useful) - 1.0)


def _undominated(options: Sequence[Option]) -> list[Option]:
    """Options by rising bits and falling cost, without those that are neither smaller nor better than another."""
    best: list[Option] = []
    for option in sorted(options, key=lambda option: (option.bits, option.cost)):
        if not best or option.cost < best[-1].cost:
            best.append(option)
    return best
