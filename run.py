"""Reproduce a paper's table, or sweep: `python run.py +exp=table4`, `python run.py --help`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "src"))

import hydra  # noqa: E402
from omegaconf import DictConfig  # noqa: E402

from lutlab.experiment.run import cli  # noqa: E402


@hydra.main(version_base="1.3", config_path=str(ROOT / "conf"), config_name="config")
def main(config: DictConfig) -> None:
    """Measure one row; the sweeper calls it once a row, through whichever launcher is chosen."""
    from lutlab.experiment.run import pipeline

    pipeline.run_row(config)


if __name__ == "__main__":
    sys.exit(cli.run(main))
