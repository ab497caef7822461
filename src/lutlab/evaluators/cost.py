"""Speed, power and cost of greedy decoding on a GPU, beside the model in full precision in the same process.

As Li et al. 2024 count it (ICCAD, section 6.1, Eq. 11; Table 3):

    runtime cost of a token = electricity * watts / (tokens a second)
    runtime reduction r     = runtime cost of the baseline / own
    total reduction         = (P0 + E0) / (P1 + E0 / r)        P: price of the GPUs; E0: electricity of the baseline

E0 is of five years at full power. Eq. 11 itself (dollars an hour: price / 5 years + electricity * watts) leaves open
over what speed is counted. Read so, the tokens that the baseline decodes in five years decide, and it is what
reproduces the printed column (docs/errata.md); buying and running both divided by the speed does not.

Watts are the GPU's own counter's over windows of at least a second in which tokens are decoded, idle included, as the
paper's are. The baseline is the model as it is loaded, in the run's dtype, on the same GPU, so that prices matter only
for how much of a cost is electricity.
"""

from __future__ import annotations

import gc
import re
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedModel, torch
from lutlab.base.limits import Count
from lutlab.base.registry import register
from lutlab.base.specs import Measurement, ModelRun, Subject
from lutlab.evaluators import evaluation_mode
from lutlab.evaluators.contract import Evaluator, Metric
from lutlab.evaluators.generation import check_decoding, decode, kernels
from lutlab.measure.energy import Energy, Nvml, energy_of, idle_watts, missing_library
from lutlab.models.load import load_model

# Dollars of a GPU, as section 6.1 of the paper states them.
PRICES_USD = {"A100": 12_500.0, "RTX 3090": 1_499.0, "RTX 2080": 699.0}
ELECTRICITY_USD_KWH = 0.09
YEARS = 5
HOURS_A_YEAR = 365 * 24
Price = Annotated[float, Field(ge=0)]


@register("evaluator", "cost")
@dataclass(frozen=True)
class Cost(Evaluator):
    """Metrics of decoding at batch 1, each token's energy and both reductions against full precision.

    tokens_per_s, power_w, joules_per_token, speedup, runtime_reduction, total_reduction.

    Attributes:
        tokens: number of tokens that are decoded at a time.
        price_usd: price of the GPU in US dollars; 0: the paper's price.
        usd_kwh: price of a kilowatt hour in US dollars.
        years: years that the GPU is in service.
    """

    version: ClassVar[int] = 1
    of_this_machine: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("transformers",)
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("total_reduction", "x", "total cost reduction", lower_is_better=False),
        Metric("runtime_reduction", "x", "runtime cost reduction", lower_is_better=False),
        Metric("speedup", "x", "speed-up", lower_is_better=False),
        Metric("tokens_per_s", "tokens/s", "decoding", lower_is_better=False),
        Metric("power_w", "W", "power"),
        Metric("joules_per_token", "J", "energy of a token"),
    )
    tokens: Count = 128
    price_usd: Price = 0.0
    usd_kwh: Price = ELECTRICITY_USD_KWH
    years: Annotated[float, Field(gt=0)] = YEARS

    @classmethod
    def obstacle(cls, run: ModelRun) -> str:
        """There is no GPU, several of them, or no library that reads its counter."""
        if run.device == "cpu":
            return "no CUDA device: power is the GPU's own counter's"
        if run.device == "spread":
            return "the cost is that of one GPU: set device=cuda"
        return missing_library()

    def measure(self, subject: Subject) -> Measurement:
        """Needs no text and no tokenizer."""
        run = subject.run
        price = self.price_usd or price_usd(torch.cuda.get_device_name(run.device))
        counter = Nvml(torch.device(run.device).index or 0)
        idle = idle_watts(counter)
        energy, names = decoding_energy(subject.model, self.tokens, counter, idle)
        baseline = energy
        if run.method != "none":
            dense = load_model(run.model, getattr(torch, run.dtype), run.device, run.seed).model
            baseline, _ = decoding_energy(dense, self.tokens, counter, idle)
            del dense
            gc.collect()
        facts: dict[str, Any] = {
            "kernel": names,
            "price_usd": price,
            "usd_kwh": self.usd_kwh,
            "years": self.years,
            "idle_w": idle,
            "baseline_tokens_per_s": baseline.calls / baseline.seconds,
            "baseline_power_w": baseline.watts,
        }
        values = self.values(baseline, energy, price)
        return Measurement(values, energy.calls, facts=facts | counter.facts())

    def values(self, baseline: Energy, energy: Energy, price: float) -> dict[str, float]:
        """The metrics of two energies, whose calls are tokens, on GPUs of one price."""
        speeds = [each.calls / each.seconds for each in (baseline, energy)]
        runtime = runtime_reduction(baseline.watts, speeds[0], energy.watts, speeds[1])
        return {
            "tokens_per_s": speeds[1],
            "power_w": energy.watts,
            "joules_per_token": energy.joules,
            "speedup": speeds[1] / speeds[0],
            "runtime_reduction": runtime,
            "total_reduction": total_reduction(
                price, baseline.watts, price, runtime, self.years, self.usd_kwh
            ),
        }


def decoding_energy(
    model: PreTrainedModel, tokens: int, counter: Nvml, idle: float
) -> tuple[Energy, list[str]]:
    """Energy of a decoded token, and the kernels that multiplied; the decoding is checked before."""
    with evaluation_mode(model):
        check_decoding(model, tokens)
        kernels()  # of the check, which sees all tokens at once
        # decode reads the tokens back, so it has waited for the GPU
        energy = energy_of(lambda: decode(model, tokens), tokens, counter, idle)
    return energy, kernels()


def runtime_reduction(watts0: float, tokens0: float, watts1: float, tokens1: float) -> float:
    """Joules of a token of the baseline over own joules, from watts of all GPUs and tokens a second of each."""
    return watts0 / tokens0 / (watts1 / tokens1)


def total_reduction(
    price0: float,
    watts0: float,
    price1: float,
    runtime: float,
    years: float = YEARS,
    usd_kwh: float = ELECTRICITY_USD_KWH,
) -> float:
    """Buying and running the baseline over buying and running one's own, for as many tokens.

    Prices are dollars, and watts those, of all GPUs; `runtime` is the ratio that runtime_reduction returns.
    """
    electricity = watts0 / 1e3 * years * HOURS_A_YEAR * usd_kwh
    return (price0 + electricity) / (price1 + electricity / runtime)


def price_usd(gpu: str) -> float:
    """Dollars of a GPU by its name, as torch has it.

    Raises:
        LutlabError: the paper states no price for it.
    """
    for name, price in PRICES_USD.items():
        if re.search(rf"\b{name}\b(?! Ti)", gpu):
            return price
    raise LutlabError(
        f"no price of '{gpu}' is known, only of {', '.join(PRICES_USD)} (Li et al. 2024): give "
        "evaluator.cost.price_usd=<dollars>"
    )
