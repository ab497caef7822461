"""The JSON of a benchmark: its numbers, and under "origin" their code, machine, libraries and date."""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lutlab.experiment.store import provenance


def origin() -> dict[str, Any]:
    """Commit and whether a file of lutlab or of a benchmark differs from it, processor, threads, versions, date (UTC).

    load_average: of the minute before, in which the benchmark ran.
    """
    folders = (*provenance.DECIDING, "benchmarks")
    return {
        **provenance.environment(),
        **provenance.git_state(provenance.repository(), folders),
        "threads": torch.get_num_threads(),
        "load_average": os.getloadavg()[0],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def write(path: Path, numbers: Mapping[str, Any]) -> None:
    """Numbers of a benchmark under their origin, as JSON; the folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"origin": origin(), **numbers}, indent=1) + "\n")
