"""The entry that `lutlab`, `python -m lutlab` and `python run.py` share; it imports neither torch nor transformers."""

from __future__ import annotations

import importlib
import sys

import hydra
from omegaconf import DictConfig

from lutlab import sources
from lutlab.experiment.run import cli

_HERE = "lutlab.experiment.run"
# the first word of a line -> the module that reads the others
COMMANDS = {
    "quantize": f"{_HERE}.quantize_command",
    "chat": f"{_HERE}.chat_command",
    "generate": f"{_HERE}.generate_command",
    "export": f"{_HERE}.export_command",
    "results": f"{_HERE}.results_command",
    "fetch": f"{_HERE}.fetch_command",
    "workspaces": f"{_HERE}.workspaces",
}


@hydra.main(version_base="1.3", config_path=str(sources.folder("conf")), config_name="config")
def measure_row(config: DictConfig) -> None:
    """Measure one row; the sweeper calls it once a row, through whichever launcher is chosen."""
    from lutlab.experiment.run import worker

    worker.measure_row(config)


def main() -> int:
    """Run the command line of this process; returns the exit code (cli.py lists them)."""
    if module := COMMANDS.get("".join(sys.argv[1:2])):
        return importlib.import_module(module).main(sys.argv[2:])
    return cli.run(measure_row)
