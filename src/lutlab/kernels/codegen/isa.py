"""Instruction sets that a generated kernel may use: AVX-512, AVX2, NEON, or plain C that runs anywhere.

    avx512     F, BW, DQ, VL, CD; VNNI, BF16, VBMI where the CPU has them (C sees __AVX512VNNI__ and so on)
    avx2       AVX2, FMA, F16C
    neon       what every 64-bit ARM has
    portable   no vector instruction named

The compiler gets one flag a CPU feature, never -march=native: the flags say what a library needs of a CPU. Features
are those the operating system reports, which leaves out what a virtual machine or the kernel has switched off.
LUTLAB_ISA=<name> asks for another one; what the CPU cannot run is refused, so no illegal instruction is reached.
"""

from __future__ import annotations

import functools
import itertools
import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

from lutlab.base.errors import LutlabError, nearest
from lutlab.base.kept.findings import known

# Fields of /proc/cpuinfo that vary from one boot, or moment, to the next.
_VARYING = ("cpu MHz", "bogomips", "BogoMIPS")
_X86 = ("x86_64", "AMD64", "amd64")
_ARM = ("aarch64", "arm64")
# CPU feature, by its name in Linux's /proc/cpuinfo -> the flag of gcc and clang
_AVX2 = {"avx2": "-mavx2", "fma": "-mfma", "f16c": "-mf16c"}
_AVX512 = _AVX2 | {f"avx512{part}": f"-mavx512{part}" for part in ("f", "bw", "dq", "vl", "cd")}
_AVX512_EXTRA = {
    "avx512_vnni": "-mavx512vnni",
    "avx512_bf16": "-mavx512bf16",
    "avx512vbmi": "-mavx512vbmi",
}


@dataclass(frozen=True)
class Isa:
    """Instruction set: its name, avx512 | avx2 | neon | portable, and the compiler's flags for the CPU."""

    name: str
    flags: tuple[str, ...]


# All known, the best first; avx512 with every extra, as a compile test wants it.
ISAS = (
    Isa("avx512", (*_AVX512.values(), *_AVX512_EXTRA.values())),
    Isa("avx2", tuple(_AVX2.values())),
    Isa("neon", ()),
    Isa("portable", ()),
)


@functools.cache
def features() -> frozenset[str]:
    """Features that this CPU and its operating system offer, by the names of Linux's /proc/cpuinfo."""
    import archspec

    about = described(Path("/proc/cpuinfo"))
    if not about:
        return frozenset(_detected())
    decides = [archspec.__version__, platform.machine(), about]
    return frozenset(known("features", decides, _detected))


def _detected() -> list[str]:
    from archspec.cpu import detect

    return sorted(detect.detected_info().features)


def described(cpuinfo: Path) -> str:
    """Linux's description of the first CPU, which archspec reads, without lines that vary; "": no such file."""
    if not cpuinfo.exists():
        return ""
    with cpuinfo.open() as lines:
        first = itertools.takewhile(str.strip, lines)
        return "".join(line for line in first if not line.startswith(_VARYING))


def buildable() -> tuple[Isa, ...]:
    """Instruction sets that a compiler for this kind of machine knows, the best first; some may not run here."""
    machine = platform.machine()
    kinds = {"avx512": _X86, "avx2": _X86, "neon": _ARM, "portable": (machine,)}
    return tuple(isa for isa in ISAS if machine in kinds[isa.name])


def runnable() -> tuple[Isa, ...]:
    """Instruction sets that this CPU can run, the best first; the last one is always portable."""
    have = features()
    needs = {"avx512": _AVX512, "avx2": _AVX2, "neon": {}, "portable": {}}
    extra = tuple(flag for feature, flag in _AVX512_EXTRA.items() if feature in have)
    able = [isa for isa in buildable() if have >= needs[isa.name].keys()]
    return tuple(
        Isa(isa.name, (*_AVX512.values(), *extra)) if isa.name == "avx512" else isa for isa in able
    )


@functools.cache
def halved() -> bool:
    """Whether operations of 512 bits take two turns of 256: on AMD's family 25, the Zen 4 of those with AVX-512."""
    about = described(Path("/proc/cpuinfo"))
    return "AuthenticAMD" in about and bool(re.search(r"^cpu family\s*: 25$", about, re.MULTILINE))


def detect(*, without: str = "", slow: str = "") -> Isa:
    """The best that this CPU runs, or the one that LUTLAB_ISA names.

    Args:
        without: name of an instruction set that a kernel is not written in; the next best one takes its place.
        slow: name of one whose kernel is slower than that of the next best, which is taken unless LUTLAB_ISA is set.

    Raises:
        LutlabError: LUTLAB_ISA names none, or one that this CPU cannot run.
    """
    able = runnable()
    can = [isa.name for isa in able]
    asked = os.environ.get("LUTLAB_ISA")
    name = asked or can[0]
    known = [isa.name for isa in ISAS]
    if name not in known:
        raise LutlabError(f"LUTLAB_ISA={name}: no such instruction set; {nearest(name, known)}")
    if name not in can:
        raise LutlabError(
            f"LUTLAB_ISA={name}: this CPU cannot run it; it runs {', '.join(can)}. "
            "Name one of these, or unset LUTLAB_ISA to have the best"
        )
    passed = {without, "" if asked else slow}
    return next(isa for isa in able[can.index(name) :] if isa.name not in passed)
