"""Public code that benchmarks compare with, a file each, found by being here; llama.cpp's is in lutlab itself.

A peer's environment need not have lutlab: see lutlab/peers/contract.py for what may stand at the top of a file.
"""

from __future__ import annotations

import importlib
import pkgutil

from lutlab.base import registry
from lutlab.peers.contract import Peer

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")


def able(kind: type[Peer]) -> dict[str, type[Peer]]:
    """Name -> peer, of those that extend a class of the contract, as QuantizesModels."""
    return {n: cls for n, cls in registry.classes("peer").items() if issubclass(cls, kind)}


def peer(name: str) -> type[Peer]:
    """The peer of a name.

    Raises:
        LutlabError: there is none; the message suggests the nearest.
    """
    return registry.lookup("peer", name)
