"""C source of a decoder's step (kernels/cpu/step/step.c) for one CPU; sizes and layers are data that it reads."""

from __future__ import annotations

import functools

from lutlab.kernels.codegen import templates
from lutlab.kernels.codegen.isa import Isa

# Floats of a register; elsewhere four, which every vector unit has.
LANES = {"avx512": 16, "avx2": 8}
PORTABLE_LANES = 4
# Of dense weights and of the cache, by the numbers that the structs name them with.
TYPES = ("float16", "bfloat16", "float32")


@functools.cache
def source(isa: Isa) -> str:
    """C source."""
    return templates.render(
        "step/step.c",
        simd=isa.name if isa.name in LANES else "portable",
        lanes=LANES.get(isa.name, PORTABLE_LANES),
        types=TYPES,
    )
