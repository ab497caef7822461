"""Names of devices: the one place that reads them, for the command line and for functions alike.

cpu, cpu:0      cpu         torch has one CPU, and tells the two names apart
cuda, cuda:1    as given    a GPU that is here; `cuda` is torch's current one, the first
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lutlab.base.errors import LutlabError, nearest
from lutlab.base.lazy import torch

KINDS = ("cpu", "cuda")
_NAME = re.compile(rf"({'|'.join(KINDS)})(?::(0|[1-9]\d*))?", re.ASCII)
_OTHER_NAMES = {"gpu": "cuda", "nvidia": "cuda"}


def kind_and_index(
    name: object, key: str = "device", others: Sequence[str] = ()
) -> tuple[str, int]:
    """Kind and number of a device by its name alone, whether it is here or not; imports no torch.

    The message of a mistake names the `key` that it was given for, and the `others` that the caller takes too.

    >>> kind_and_index("cuda:1")
    ('cuda', 1)

    Raises:
        LutlabError: no device has this name.
    """
    match = _NAME.fullmatch(str(name))
    if match is None:
        meant = _OTHER_NAMES.get(str(name).lower().partition(":")[0], str(name))
        raise LutlabError(
            f"unknown {key} '{name}': {nearest(meant, dict.fromkeys((*KINDS, 'cuda:1', *others)))}"
        )
    return match[1], int(match[2] or 0)


def device_named(name: object) -> str:
    """A device of this machine in the one spelling that records, ids and kernels compare.

    >>> device_named("cpu:0")
    'cpu'

    Raises:
        LutlabError: no device has this name, or it is not here; the message says what is.
    """
    kind, index = kind_and_index(name)
    gpus = torch.cuda.device_count()
    if index >= (1 if kind == "cpu" else gpus):
        present = ", ".join(["cpu", *(f"cuda:{i}" for i in range(gpus))])
        absent = "" if gpus else " and no CUDA device"
        raise LutlabError(f"device={name}: it is not here; this machine has {present}{absent}")
    return "cpu" if kind == "cpu" else str(name)


def gpu_name(device: str) -> str | None:
    """The model of a device's GPU, of `spread` that of the first; None of a CPU."""
    if device == "cpu":
        return None
    return torch.cuda.get_device_name(None if device == "spread" else device)


def gpus(device: str) -> int:
    """Number of GPUs that a run on a device may share its model among: all, of a GPU; none, of the CPU."""
    return 0 if device == "cpu" else torch.cuda.device_count()
