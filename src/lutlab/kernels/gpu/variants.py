"""The variants of an operation on a GPU, as they are registered, each in a file of its own.

A record, a message and the file of a kernel have the name of the idea; the short one is for typing, and in older notes:
kernel=r4 is kernel=bit_planes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lutlab.base import registry
from lutlab.base.errors import LutlabError, nearest

if TYPE_CHECKING:
    from lutlab.kernels.gpu.lut_gemv.variant import Case, Gpu, Variant


def variants(op: str = "lut_gemv") -> dict[str, Variant]:
    """Those of an operation by name: baselines, then in the order of short names."""
    return dict(sorted(registry.classes(op).items(), key=lambda item: item[1].short))


def preferred(op: str = "lut_gemv") -> list[Variant]:
    """Those that may be chosen unasked, the best first of those that take equally many readings."""
    ranked = (variant for variant in variants(op).values() if variant.rank)
    return sorted(ranked, key=lambda variant: variant.rank)


def variant(name: str, op: str = "lut_gemv") -> Variant:
    """A variant by its name or its short name.

    Raises:
        LutlabError: there is none of this name.
    """
    known = variants(op)
    for each in known.values():
        if name in (each.name, each.short):
            return each
    raise LutlabError(f"no kernel variant '{name}': {nearest(name, known)}")


def full_name(kernel: str) -> str:
    """The name of a variant's idea for its short name; any other name is returned as it is."""
    if kernel[:1] != "r" or not kernel[1:].isdigit():  # torch is not imported for others
        return kernel
    return next((name for name, variant in variants().items() if variant.short == kernel), kernel)


def choose(case: Case, gpu: Gpu) -> Variant:
    """The best variant that can run a case on a GPU: that of the fewest readings of the weights, by the model.

    Raises:
        LutlabError: none can; with each one's reason.
    """
    reasons = [(variant, variant.why_not(case, gpu)) for variant in preferred()]
    takes = [variant for variant, why in reasons if why is None]
    if not takes:
        raise LutlabError(
            "no kernel takes this product. "
            + "; ".join(f"{variant.name}: {why}" for variant, why in reasons)
        )
    return min(takes, key=lambda variant: variant.readings(case))
