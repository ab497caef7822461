"""Weights as they are stored, a file a format (contract.py): uniform, bcq, both of second order, mixed, dense, ggml.

What a kernel makes of one stands beside the kernel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.lazy import torch

if TYPE_CHECKING:
    from lutlab.formats.contract import Format


def pack(tensor: Any) -> Format:
    """Pack what a quantizer returned, in the format of its class.

    Raises:
        LutlabError: no format, or more than one, packs this class; or the format cannot represent the tensor.
    """
    known = registry.classes("format")
    names = [name for name, cls in known.items() if cls.tensor is type(tensor)]
    if len(names) != 1:
        taken = ", ".join(f"{cls.tensor.__name__} ({name})" for name, cls in known.items())
        raise LutlabError(
            f"{len(names) or 'no'} formats pack a {type(tensor).__name__}{names or ''}, expected one of: {taken}; "
            "register the format of a tensor of your own by @register('format', <name>) (formats/contract.py)"
        )
    return known[names[0]].pack(tensor)


def dequantize(tensor: Any) -> torch.Tensor:
    """The weights a kernel would multiply with: [N, K] float32."""
    return pack(tensor).dequantize()


def name_of(packed: Format) -> str:
    """The name under which the format of a packed weight is registered.

    Raises:
        LutlabError: it is not registered.
    """
    for name, cls in registry.classes("format").items():
        if cls is type(packed):
            return name
    raise LutlabError(
        f"{type(packed).__name__} is no registered format: put @register('format', <name>) on it"
    )
