"""A row as the command line makes them, without running it."""

from hydra import compose, initialize_config_dir
from tests.compositions import files_read_once

from lutlab.base import sources
from lutlab.experiment.row.row import Row, register_choices


def settings(*overrides: str) -> Row:
    """Of `python run.py <overrides>`."""
    register_choices()
    folder = str(sources.folder("conf"))
    with initialize_config_dir(folder, version_base="1.3"), files_read_once():
        return Row.of(compose("config", ["device=cpu", *overrides]))
