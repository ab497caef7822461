"""AVX-512 without an AVX-512 CPU, for tests: LUTLAB_ISA=avx512 on a machine that has AVX2 and SIMDe's headers.

    LUTLAB_ISA=avx512 python -m pytest tests/kernels/cpu tests/generate

The same sources are compiled with avx512_by_simde/ in front, whose immintrin.h computes AVX-512's intrinsics by AVX2's
(SIMDe, Debian's libsimde-dev), and kernels, layouts and lanes are those that an AVX-512 CPU gets. A test of the compile
alone, with isa.ISAS[0], is still one of AVX-512 itself.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lutlab.kernels.codegen import isa

FOLDER = Path(__file__).with_name("avx512_by_simde")
HEADER = Path("/usr/include/simde/x86/avx512.h")


def emulate() -> None:
    """Let this process take its CPU for one with AVX-512, where LUTLAB_ISA asks for that and the CPU has none."""
    names = [each.name for each in isa.runnable()]
    if os.environ.get("LUTLAB_ISA") != "avx512" or "avx512" in names:
        return
    if "avx2" not in names or not HEADER.exists():
        pytest.exit(
            f"these tests are left out: this CPU has no AVX-512, and in its place they take AVX2 and {HEADER} "
            "(Debian: apt install libsimde-dev)",
            returncode=0,
        )
    # Features that every CPU with AVX2 has, and the flags of such a build in the place of AVX-512's.
    flags = {"sse": f"-isystem{FOLDER}", "sse2": "-O1", "sse4_1": "-Wno-psabi"}
    isa._AVX512 = isa._AVX2 | flags
    isa._AVX512_EXTRA = {}
