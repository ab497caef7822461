"""Whether a model fits its device, said before a weight is loaded: its parts in bytes against what is free there.

    check("opt-175b", {"weights": 130e9, "head": 1.2e9, "cache": cache_bytes(config, 1, 2048, 2)}, "cuda")

A part is what it is called: weights (linear layers as stored), embeddings (with norms and biases), head (none where it
is tied to the embeddings), cache, scratch.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedConfig, PreTrainedModel, torch
from lutlab.models.streamed import outside

_MEMORY = Path("/proc/meminfo")
_CURE = (
    "store it in fewer bits or larger groups, shorten the cache, cut a synthetic model (model.layers), or take a "
    "larger device"
)


class TooLargeError(LutlabError, MemoryError):
    """A model that its device does not hold: a MemoryError too, which a table prints as OOM."""


def check(
    what: str,
    parts: Mapping[str, int],
    device: str,
    cure: str = _CURE,
) -> None:
    """Refuse what does not fit.

    Args:
        what: the model and how it is stored, as the message calls it.
        parts: name -> bytes that are still to be allocated.
        device: torch's name of the device.
        cure: end of the message: how to need less.

    Raises:
        TooLargeError: the parts together are more than is free; the message has the numbers.
    """
    free, needed = available(device), sum(parts.values())
    if needed <= free:
        return
    named = ", ".join(f"{name} {size / 1e9:.1f}" for name, size in parts.items() if size)
    raise TooLargeError(
        f"{what} needs {needed / 1e9:.1f} GB ({named}), and {device} has {free / 1e9:.1f} GB free: {cure}"
    )


def available(device: str) -> int:
    """Bytes that a process can still allocate: on a GPU what is free and what torch keeps unused, on a CPU what Linux
    calls MemAvailable, elsewhere all of the memory. A limit of a container is not looked at.
    """
    if torch.device(device).type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    counted = _MEMORY.read_text() if _MEMORY.is_file() else ""
    if match := re.search(r"^MemAvailable:\s+(\d+) kB$", counted, re.MULTILINE):
        return 1024 * int(match[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cache_bytes(config: PreTrainedConfig, batch: int, length: int, itemsize: int) -> int:
    """Bytes of a key-value cache: 2 * layers * kv_heads * head_dim * length * batch * itemsize.

    Without num_key_value_heads every head has keys and values of its own, without head_dim heads share hidden_size.
    """
    fields = config.to_dict()
    heads = fields.get("num_key_value_heads") or config.num_attention_heads
    head = fields.get("head_dim") or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * heads * head * length * batch * itemsize


def outside_parts(model: PreTrainedModel) -> dict[str, int]:
    """Bytes of a model's embeddings and head, which may be on the meta device."""
    tied, names = model.all_tied_weights_keys, {m: name for name, m in model.named_modules()}
    head = model.get_output_embeddings()
    sizes = {"embeddings": 0, "head": 0}
    for module in outside(model):
        for name, parameter in module.named_parameters(recurse=False):
            if f"{names[module]}.{name}" not in tied:
                sizes["head" if module is head else "embeddings"] += parameter.nbytes
    return sizes
