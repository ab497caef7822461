"""A row as the command line makes them, without running it."""

from __future__ import annotations

from hydra import compose, initialize_config_dir

from lutlab import sources
from lutlab.experiment.row.choices import register_choices
from lutlab.experiment.row.row import Row


def settings(*overrides: str) -> Row:
    """Of `python run.py <overrides>`."""
    register_choices()
    with initialize_config_dir(str(sources.folder("conf")), version_base="1.3"):
        return Row.of(compose("config", ["device=cpu", *overrides]))
