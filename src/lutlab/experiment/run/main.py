"""The entry that `lutlab`, `python -m lutlab` and `python run.py` share; it imports neither torch nor transformers."""

from __future__ import annotations

import importlib
import sys

import hydra
from omegaconf import DictConfig

from lutlab.base import sources
from lutlab.experiment.run import cli


@hydra.main(version_base="1.3", config_path=str(sources.folder("conf")), config_name="config")
def measure_row(config: DictConfig) -> None:
    """Measure one row; the sweeper calls it once a row, through whichever launcher is chosen."""
    from lutlab.experiment.run import worker

    worker.measure_row(config)


def main() -> int:
    """Run the command line of this process; returns the exit code (cli.py lists them)."""
    word = "".join(sys.argv[1:2])
    if word in cli.COMMANDS:
        return importlib.import_module(f"{__package__}.{word}_command").main(sys.argv[2:])
    return cli.run(measure_row)
