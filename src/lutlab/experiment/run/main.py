"""The entry that `lutlab`, `python -m lutlab` and `python run.py` share; it imports neither torch nor transformers."""

from __future__ import annotations

import sys

import hydra
from omegaconf import DictConfig

from lutlab import sources
from lutlab.experiment.run import cli


@hydra.main(version_base="1.3", config_path=str(sources.folder("conf")), config_name="config")
def measure_row(config: DictConfig) -> None:
    """Measure one row; the sweeper calls it once a row, through whichever launcher is chosen."""
    from lutlab.experiment.run import worker

    worker.measure_row(config)


def main() -> int:
    """Run the command line of this process; returns the exit code (cli.py lists them)."""
    if sys.argv[1:2] == ["results"]:
        from lutlab.experiment.run import results_command

        return results_command.main(sys.argv[2:])
    if sys.argv[1:2] == ["generate"]:
        from lutlab.experiment.run import generate_command

        return generate_command.main(sys.argv[2:])
    if sys.argv[1:2] == ["fetch"]:
        from lutlab.experiment.run import fetch_command

        return fetch_command.main(sys.argv[2:])
    if sys.argv[1:2] == ["workspaces"]:
        from lutlab.experiment.run import workspaces

        return workspaces.main(sys.argv[2:])
    return cli.run(measure_row)
