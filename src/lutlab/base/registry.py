"""Name -> class. A class registers itself under a group; its name is the Hydra choice (`method=rtn`).

    @register("method", "rtn")
    @dataclass(frozen=True)
    class RTN: ...

Families of models and variants of GPU kernels are data: their groups hold instances, by `config.model_type`
(models/contract.py) and by name (kernels/gpu/variants.py).

A group's modules are imported on first use, so that a new file in its package is found by being there. They take
torch from lutlab.base.lazy: `python run.py --help` lists them without paying for it.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import Any, TypeVar

from lutlab.base.errors import LutlabError, nearest

PACKAGES = {
    "method": "lutlab.quantizers",
    "format": "lutlab.formats",
    "kernel": "lutlab.kernels",
    "lut_gemv": "lutlab.kernels.gpu.lut_gemv",
    "mixed_gemv_gpu": "lutlab.kernels.gpu.mixed_gemv",
    "evaluator": "lutlab.evaluators",
    "family": "lutlab.models",
    "engine": "lutlab.generate",
    "peer": "lutlab.peers",
}
_CLASSES: dict[str, dict[str, Any]] = {group: {} for group in PACKAGES}
_Registered = TypeVar("_Registered")


def register(group: str, name: str) -> Callable[[_Registered], _Registered]:
    """Class decorator. A second class of the same name in a group is a programming error and raises ValueError."""

    def add(cls: _Registered) -> _Registered:
        if name in _CLASSES[group]:
            raise ValueError(
                f"{group} '{name}' is registered twice: {_CLASSES[group][name]} and {cls}"
            )
        _CLASSES[group][name] = cls
        return cls

    return add


@functools.cache
def _discover(group: str) -> None:
    package = importlib.import_module(PACKAGES[group])
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")


def classes(group: str) -> dict[str, Any]:
    """Classes of a group by name, sorted."""
    _discover(group)
    return dict(sorted(_CLASSES[group].items()))


def lookup(group: str, name: str) -> Any:
    """The class registered as `name`.

    Raises:
        LutlabError: unknown name; the message suggests the nearest one.
    """
    known = classes(group)
    if not isinstance(name, str) or name not in known:
        raise LutlabError(f"unknown {group} '{name}': {nearest(name, known)}")
    return known[name]
