"""Digits of printed numbers: the paper's with the paper's digits, ours with as many as can be compared with them."""

from __future__ import annotations

import math
from collections.abc import Iterable

COMPACT_FROM = 1e4  # a measured perplexity of 1.3e4 says as much as 13021.42 and fits its column
LARGEST_WHOLE = 1e7  # whole numbers (parameters, bytes) are printed in full up to here
# Largest value of a column -> decimals.
DECIMALS_BELOW = ((0.1, 5), (1, 4), (10, 3), (100, 2), (1000, 1))


def printed_decimals(values: Iterable[float | str | None]) -> int:
    """Decimals of a printed column: the most that any of its numbers needs; a column is printed with one precision.

    >>> printed_decimals([40.5, 23.0, "OOM", None])
    1
    """
    numbers = [v for v in values if isinstance(v, int | float) and math.isfinite(v)]
    return max((_decimals(float(v)) for v in numbers), default=0)


def _decimals(value: float) -> int:
    text = f"{value:.10f}".rstrip("0")
    return len(text.partition(".")[2])


def measured_decimals(
    unit: str, published: int | None, values: Iterable[float], errors: Iterable[float] = ()
) -> int:
    """Decimals for our values: perplexity 2, bits 3, else as many as the paper prints, else by error or magnitude.

    errors: standard errors that say how many decimals mean something: two digits of the largest.

    >>> measured_decimals("ppl", 1, []), measured_decimals("ms", 1, []), measured_decimals("s", None, [41.07])
    (2, 1, 2)
    """
    if unit.lower() in ("ppl", "perplexity"):
        return 2
    if unit.lower().startswith("bit"):
        return 3
    if published is not None:
        return published
    if known := [error for error in errors if math.isfinite(error)]:
        return max(0, 1 - math.floor(math.log10(max(known))))
    largest = max((abs(v) for v in values if math.isfinite(v)), default=0.0)
    return next((d for limit, d in DECIMALS_BELOW if largest < limit), 0)


def number(value: float, decimals: int) -> str:
    """Print `value` with `decimals`; powers of ten where that would hide the value or overflow the column.

    >>> number(9.5, 2), number(13021.4, 2), number(12288, 0), number(2e-5, 3)
    ('9.50', '1.30e4', '12288', '2.00e-5')
    """
    if not math.isfinite(value):
        return str(float(value))
    size = abs(value)
    too_large = size >= (COMPACT_FROM if decimals else LARGEST_WHOLE)
    if too_large or (size and float(f"{size:.{decimals}f}") == 0):
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.{decimals}f}"


def sized(value: float, decimals: int, unit: str) -> str:
    """`number`, of gigabytes that it would write as a power of ten in megabytes.

    >>> sized(0.00629, 1, "GB"), sized(347.9, 1, "GB"), sized(2e-5, 3, "ms")
    ('6.29 MB', '347.9', '2.00e-5')
    """
    text = number(value, decimals)
    return f"{value * 1e3:.3g} MB" if unit == "GB" and "e-" in text else text


def error_text(error: float | None, decimals: int) -> str:
    """Print a standard error with the decimals of its number and no more than two digits that mean something.

    >>> error_text(0.0614, 2), error_text(1.604, 2), error_text(0.0004, 2), error_text(None, 2)
    ('± 0.06', '± 1.6', '± 0.0004', '')
    """
    if error is None or not math.isfinite(error):
        return ""
    if not error:
        return "± 0"
    leading = math.floor(math.log10(error))
    shown = max(0, -leading, min(decimals, 1 - leading))  # at least one digit, at most two
    return f"± {number(error, shown)}"


def change(published: float, measured: float) -> str:
    """Relative difference of a measured value from the published one.

    >>> change(9.56, 9.58)
    '+0.2 %'
    """
    return f"{100 * (measured / published - 1):+.1f} %" if published else "n/a"


def superscript(n: int) -> str:
    """A footnote's number as superscript digits.

    >>> superscript(12)
    '¹²'
    """
    return str(n).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
