"""Components: the parts of lutlab that decide numbers, each with a version that a person raises.

    method/rtn  format/uniform  evaluator/ppl  protocol/wikitext2  driver  search  tuning  models  kernel/bcq_gemv  …

A version is declared where the component is implemented and is part of the ids of its cells; sources are not. That
nobody forgets to raise one is what the lock (tools/lock.py) is for. Speeds are the exception: any change of a kernel
may change them, so that their ids hold the fingerprint of their device's kernels.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from lutlab import checkpoint, compress, measure, models, tuning
from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.data.protocols import PROTOCOLS, protocol
from lutlab.experiment.store.fingerprint import PACKAGE, fingerprint, with_imports
from lutlab.kernels import cpu, gpu
from lutlab.kernels.codegen import cuda, templates

# Folders and modules whose sources count where a registered class imports them. data/ is the protocols' and formats/
# the formats', whose versions are in the same ids.
_ROOMS = {
    "method": ("quantizers", "base.groups", "base.tensors"),
    "format": ("formats", "base.groups", "base.tensors"),
    "evaluator": ("evaluators", "base.groups"),
}
_OF_NO_NUMBER = ("description", "attested", "version", "tokens")  # of a protocol
_PROTOCOL_FILES = tuple(f"data/{name}.py" for name in ("tokens", "choices", "pairs", "masking"))


@dataclass(frozen=True)
class _Part:
    """A component that is no class. roots: patterns below the package; rooms: as _ROOMS; sources: of C or CUDA."""

    version: int
    roots: tuple[str, ...]
    rooms: tuple[str, ...] = ()
    sources: tuple[Path, ...] = ()

    def files(self) -> set[Path]:
        """Sources of the component."""
        roots = {path for pattern in self.roots for path in PACKAGE.glob(pattern)}
        below = {path for at in self.sources for path in (at.rglob("*.[ch]*") if at.is_dir() else [at])}  # fmt: skip
        return with_imports(roots, self.rooms) | below


_OF_KERNELS = ("kernels", "formats", "base.groups")
_C, _CUDA = templates.ROOT, cuda.ROOT
# Of every operation: their imports are of both devices, and are not followed.
_DISPATCH = PACKAGE / "kernels" / "dispatch.py"
_DEQUANTIZE_MIXED = ("mixed.cu", "mixed_chunks.cu", "sixteen.cuh")
_LOOP = ("tuning/loop.py", "tuning/losses.py", "tuning/scales.py")
_END_TO_END = ("tuning/stages.py", *_LOOP)
_PARTS = {
    "driver": _Part(
        compress.DRIVER_VERSION,
        ("compress/driver.py", "compress/widths.py"),
        ("compress", "modules", "base.groups", "base.tensors"),
    ),
    "search": _Part(compress.SEARCH_VERSION, ("compress/search.py", "compress/sizes.py")),
    "tuning": _Part(tuning.WEIGHTS_VERSION, ("tuning/weights.py", *_END_TO_END)),
    "tuning/scales": _Part(tuning.SCALES_VERSION, _END_TO_END),
    "tuning/blocks": _Part(tuning.BLOCKS_VERSION, ("tuning/blocks.py", *_LOOP)),
    "tuning/whole": _Part(tuning.WHOLE_VERSION, _END_TO_END),
    "tuning/labels": _Part(tuning.LABELS_VERSION, ("tuning/losses.py",)),
    "synthetic": _Part(
        compress.SYNTHETIC_VERSION,
        ("compress/synthetic.py", "compress/drawn.py", "compress/sizes.py"),
    ),
    "checkpoint": _Part(
        checkpoint.VERSION,
        ("checkpoint/foreign/reading.py", "checkpoint/loading.py", "checkpoint/stored.py"),
        ("checkpoint", "modules", "base.groups", "base.tensors"),
    ),
    "models": _Part(models.VERSION, ("models/*.py", "gguf/*.py")),
    "measure": _Part(
        measure.VERSION, ("measure/*.py", "parallel/products.py", "parallel/ranks.py")
    ),
    "kernel/bcq_gemv": _Part(
        cpu.VERSIONS["bcq_gemv"],
        ("kernels/cpu/bcq_gemv.py",),
        _OF_KERNELS,
        (_DISPATCH, *(_C / folder for folder in ("bcq", "rows", "simd"))),
    ),
    "kernel/uniform_gemv": _Part(
        cpu.VERSIONS["uniform_gemv"],
        ("kernels/cpu/uniform_gemv.py",),
        _OF_KERNELS,
        (_DISPATCH, *(_C / folder for folder in ("rows", "simd", "uniform"))),
    ),
    "kernel/mixed_gemv": _Part(
        cpu.VERSIONS["mixed_gemv"],
        ("kernels/cpu/mixed_gemv.py",),
        _OF_KERNELS,
        (_DISPATCH, *(_C / folder for folder in ("mixed", "rows", "simd"))),
    ),
    "kernel/qigen_gemv": _Part(
        cpu.VERSIONS["qigen_gemv"],
        ("kernels/cpu/qigen/qigen_gemv.py",),
        _OF_KERNELS,
        (_C / "qigen",),
    ),
    "kernel/paper_gemv": _Part(
        cpu.VERSIONS["paper_gemv"],
        ("kernels/cpu/paper_gemv.py",),
        _OF_KERNELS,
        (_C / "paper",),
    ),
    "kernel/step": _Part(
        cpu.VERSIONS["step"],
        ("kernels/cpu/step.py", "generate/cpu*.py", "generate/architecture.py"),
        _OF_KERNELS,
        (_C / "step", _C / "rows" / "parts.h"),
    ),
    "kernel/lut_gemv": _Part(
        gpu.VERSIONS["lut_gemv"],
        ("kernels/gpu/linear.py", "kernels/gpu/lut_gemv/*.py"),
        _OF_KERNELS,
        (_DISPATCH, _CUDA / "common.cuh", _CUDA / "lut_gemv", _CUDA / "dequantize" / "bcq.cu"),
    ),
    "kernel/mixed_gemv_gpu": _Part(
        gpu.VERSIONS["mixed_gemv_gpu"],
        ("kernels/gpu/mixed_linear.py", "kernels/gpu/mixed_gemv/*.py"),
        _OF_KERNELS,
        (
            _DISPATCH,
            *(_CUDA / name for name in ("common.cuh", "mixed_gemv", "lut_gemv/half_mma.cuh")),
            *(_CUDA / "dequantize" / name for name in _DEQUANTIZE_MIXED),
        ),
    ),
    "kernel/graph": _Part(
        gpu.VERSIONS["graph"],
        ("generate/graph.py", "kernels/joined.py"),
    ),
}


def every_name() -> list[str]:
    """The names of all components of lutlab, sorted; classes registered from elsewhere are not its own."""
    classes = [
        f"{group}/{name}"
        for group in _ROOMS
        for name, cls in registry.classes(group).items()
        if _is_ours(cls)
    ]
    return sorted([*classes, *_PARTS, *(f"protocol/{name}" for name in PROTOCOLS)])


def version(name: str) -> int:
    """Version that a component declares."""
    group, _, key = name.partition("/")
    if group in _ROOMS:
        cls = registry.lookup(group, key)
        try:
            return cls.version
        except AttributeError as error:
            raise LutlabError(
                f"{name} declares no version, so that results could not say which form of it made them: "
                f"put `version: ClassVar[int] = 1` into {cls.__qualname__} and raise it when its numbers change"
            ) from error
    return protocol(key).version if group == "protocol" else _PARTS[name].version


def versions(*names: str) -> dict[str, int | str]:
    """Versions of some components, as ids hold them.

    No lock watches a class from outside of lutlab, so that its source's fingerprint follows: "1+0123456789abcdef".

    Raises:
        LutlabError: no such component; a class that declares no version, or one from outside that was not read from a
            file.
    """
    return {name: _version_and_more(name) for name in sorted(names)}


def _version_and_more(name: str) -> int | str:
    group, _, key = name.partition("/")
    if group in _ROOMS and not _is_ours(registry.lookup(group, key)):
        return f"{version(name)}+{fingerprint_of(name)}"
    return version(name)


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == PACKAGE.name


@functools.cache
def fingerprint_of(name: str) -> str:
    """The fingerprint of a component's sources.

    Raises:
        LutlabError: no such component, or it was not read from a file.
    """
    group, _, key = name.partition("/")
    if group in _ROOMS:
        source = _source(registry.lookup(group, key))
        return fingerprint(with_imports([source], _ROOMS[group]))
    if group == "protocol":
        rule = dataclasses.asdict(protocol(key))
        deciding = {k: v for k, v in rule.items() if k not in _OF_NO_NUMBER}
        return fingerprint([PACKAGE / file for file in _PROTOCOL_FILES], json.dumps(deciding))
    return fingerprint(_PARTS[name].files())


def _source(cls: type) -> Path:
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None:  # typed into a notebook
        raise LutlabError(
            f"{cls.__module__}.{cls.__qualname__} has no source file, so results could not say which code made them: "
            "put your method or evaluator into a file and import it"
        )
    return Path(file)


def kernel_files(device: str) -> set[Path]:
    """The sources of a device's kernels, and of what builds and chooses them. device: cpu, or any other for a GPU."""
    names = (cpu if device == "cpu" else gpu).VERSIONS
    return set().union(*(_PARTS[f"kernel/{name}"].files() for name in names))


@functools.cache
def kernels_fingerprint(device: str) -> str:
    """The fingerprint of a device's kernels, part of the ids of speeds and memory peaks. device: as kernel_files."""
    return fingerprint(kernel_files(device))
