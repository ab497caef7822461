"""Heavy libraries, imported by the first use of one of their names: `from lutlab.base.lazy import torch`.

`run.py --help` and the registries read most of lutlab without paying for torch. A type checker sees the libraries
themselves. The stand-ins are not in sys.modules, which says what is really imported.

A module that needs the library as it is read, as for a base class or a decorator, imports it as usual.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, ForwardRef

if TYPE_CHECKING:
    import numpy as np
    import pandas
    import torch
    import transformers
    from torch import distributed, nn
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

__all__ = [
    "PreTrainedConfig",
    "PreTrainedModel",
    "PreTrainedTokenizerBase",
    "distributed",
    "nn",
    "np",
    "pandas",
    "torch",
    "transformers",
]


class _Lazy(ModuleType):
    """A module by its name. Its first use in a module puts the library itself into that module's names."""

    def __getattr__(self, name: str) -> Any:
        library, user = importlib.import_module(self.__name__), sys._getframe(1).f_globals
        user.update({key: library for key, value in list(user.items()) if value is self})
        return getattr(library, name)

    def __reduce__(self) -> tuple[Callable[[str], ModuleType], tuple[str]]:
        # A notebook's function goes to a worker with its globals.
        return importlib.import_module, (self.__name__,)


if not TYPE_CHECKING:
    np, pandas, torch, transformers = map(_Lazy, ("numpy", "pandas", "torch", "transformers"))
    distributed, nn = map(_Lazy, ("torch.distributed", "torch.nn"))
    # What stands in signatures only is a name: `isinstance` takes transformers.PreTrainedModel.
    PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase = (
        ForwardRef(name, module="transformers")
        for name in ("PreTrainedConfig", "PreTrainedModel", "PreTrainedTokenizerBase")
    )
