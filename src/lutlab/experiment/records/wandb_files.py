"""Offline Weights & Biases runs read back from their folders, by wandb's own command: no account, no network.

    wandb leet inspect --summary --json <run folder>        what a run says of itself, as one JSON object

wandb has no Python reader of `.wandb` files, and their format is its own affair. The command takes a second or two a
run, most of it its start, so several run at once.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lutlab.base.errors import LutlabError


def read(folder: str | Path) -> list[dict[str, Any]]:
    """All offline runs below a folder, in the order of their names.

    Args:
        folder: folder of a run (`offline-run-…`), or one that holds some, as `results/wandb` or `results`.

    Returns:
        A mapping a run: `id`, `name`, `state` (`finished`, …), and `config` and `summary`, both flat, as they were
        logged (experiment/run/tracked.py); tables and pictures are left out.

    Raises:
        LutlabError: no run there, wandb cannot read one, or a file holds another run than its name says.
    """
    files = sorted(Path(folder).rglob("*.wandb"))
    if not files:
        raise LutlabError(
            f"no offline run below {folder}: give the folder wandb of a results= folder, or fill one from records by "
            "'python run.py mode=track'"
        )
    with ThreadPoolExecutor(os.cpu_count()) as several:
        return list(several.map(_inspect, files))


def _inspect(path: Path) -> dict[str, Any]:
    command = [_wandb(), "leet", "inspect", "--summary", "--json", str(path)]
    quiet = os.environ | {"WANDB_ERROR_REPORTING": "false"}
    done = subprocess.run(command, capture_output=True, text=True, env=quiet, check=False)
    try:
        run = json.loads(done.stdout)
    except ValueError as error:
        raise LutlabError(
            f"'{' '.join(command)}' does not print a run (exit code {done.returncode}): {done.stderr.strip()}; "
            "wandb 0.31 can: pip install -U wandb, or remove that folder where the run was killed"
        ) from error
    # a run that was killed, or whose file is damaged, has the state that it got to, and perhaps no id yet
    folder, run_id = path.parent.name, run["run_id"]
    strange = "run-" in folder and f"-{run_id}" not in folder  # wandb may end it with a number
    if run_id and (path.stem != f"run-{run_id}" or strange):
        raise LutlabError(
            f"{path} holds run {run_id}: a file or folder was copied over another's name; fill the folder again by "
            "'python run.py mode=track', or remove it"
        )
    about = {"id": run_id, "name": run["name"], "state": run["state"]}
    return about | {key: _flat(run[key]) for key in ("config", "summary")}


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Without wandb's own keys, and without the files that it notes under a key."""
    return {
        key: value
        for key, value in values.items()
        if not key.startswith("_") and not isinstance(value, dict)
    }


def _wandb() -> str:
    """The command beside this Python, or that of the PATH."""
    beside = Path(sys.executable).with_name("wandb")
    command = str(beside) if beside.exists() else shutil.which("wandb")
    if command is None:
        raise LutlabError(
            "the command 'wandb' is not installed beside this Python: pip install wandb"
        )
    return command
