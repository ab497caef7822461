"""Cost of decoding on a GPU as Li et al. 2024 count it (ICCAD, section 6.1, Eq. 11; Table 3).

    runtime cost of a token = electricity * watts / (tokens a second)
    runtime reduction r     = runtime cost of the baseline / own
    total reduction         = (P0 + E0) / (P1 + E0 / r)        P: price of the GPUs; E0: electricity of the baseline

E0 is of five years at full power. Eq. 11 itself (dollars an hour: price / 5 years + electricity * watts) leaves open
over what speed is counted. Read so, the tokens that the baseline decodes in five years decide, and it is what
reproduces the printed column (docs/errata.md); buying and running both divided by the speed does not.
"""

from __future__ import annotations

import re

from lutlab.errors import LutlabError

# Dollars of a GPU, as section 6.1 of the paper states them.
PRICES_USD = {"A100": 12_500.0, "RTX 3090": 1_499.0, "RTX 2080": 699.0}
ELECTRICITY_USD_KWH = 0.09
YEARS = 5
HOURS_A_YEAR = 365 * 24


def runtime_reduction(watts0: float, tokens0: float, watts1: float, tokens1: float) -> float:
    """Joules of a token of the baseline over own joules.

    Args:
        watts0: watts of all GPUs of the baseline.
        tokens0: a second.
        watts1: watts of all GPUs of one's own.
        tokens1: a second.
    """
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

    Args:
        price0: dollars of all GPUs of the baseline.
        watts0: watts of all GPUs of the baseline.
        price1: dollars of all GPUs of one's own.
        runtime: the ratio that runtime_reduction returns.
        years: years of service.
        usd_kwh: dollars of a kilowatt hour.
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
