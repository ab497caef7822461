"""The machine as part of a cell's name: what a speed or a memory peak depends on beside the code.

An evaluator whose numbers are of the machine says so by `of_this_machine = True`. The ids of its cells then hold
processor, cores, instruction set and threads: a tokens/s of another machine, or of other threads, is another cell.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from lutlab.devices import gpu_name
from lutlab.errors import LutlabError
from lutlab.experiment.store.provenance import environment
from lutlab.kernels.codegen.isa import detect
from lutlab.lazy import torch


def machine(device: str, threads: int | None = None) -> dict[str, Any]:
    """Facts of the machine that ids of speeds hash.

    Args:
        device: torch's name of the device, or `spread`.
        threads: number of the CPU's threads; None: torch's own.

    Raises:
        LutlabError: threads is less than 1, or LUTLAB_ISA names what this CPU cannot run.
    """
    if threads is not None and threads < 1:
        raise LutlabError(f"threads={threads}: give at least 1, or null for torch's own choice")
    about = environment()
    known = {
        "cpu": about["cpu"],
        "cores": about["cores"],
        "isa": detect().name,
        "threads": threads or torch.get_num_threads(),
    }
    if device == "cpu":
        return known
    gpus = torch.cuda.device_count() if device == "spread" else 1
    return known | {"gpu": gpu_name(device), "gpus": gpus}


def machine_name(about: Mapping[str, Any]) -> str:
    """`amd-epyc-2cores`: the folder of a machine, from its processor and its GPU, if it has one."""
    name = f"{about['cpu']} {about['cores']}cores {about['gpu'] or ''}"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
