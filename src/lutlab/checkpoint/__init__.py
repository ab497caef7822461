"""Models on disk: lutlab's own folders, which transformers opens as well, and other projects' layouts.

Importing lutlab makes transformers know lutlab's format once both are imported, in either order, without importing it.

transformers skips a quantization_config that nobody registered: it warns, and loads random weights. So registering is
not left to the user; nor does `run.py --help` pay for it. As of transformers 5.23 a quantizer can only be registered by
a call in the module that holds the registries, which imports torch: there is no entry point and no lazy registration.
So where transformers is not imported yet, a finder waits for it, lets it load as always, registers, and is gone.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

VERSION = 1  # of what is read from folders that are quantized already; in the ids of method=stored
REGISTRIES = "transformers.quantizers.auto"
OURS = "lutlab.checkpoint.transformers"


class _AfterTransformers(MetaPathFinder):
    """Imports OURS right after REGISTRIES."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != REGISTRIES:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None:
            loader: Any = spec.loader  # of which one method is put in anew
            execute = loader.exec_module

            def execute_and_register(module: ModuleType) -> None:
                execute(module)
                importlib.import_module(OURS)

            loader.exec_module = execute_and_register
        return spec


def register_with_transformers() -> None:
    """Now if transformers' registries are imported, else as soon as they are."""
    if REGISTRIES in sys.modules:
        importlib.import_module(OURS)
    else:
        sys.meta_path.insert(0, _AfterTransformers())
