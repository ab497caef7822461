"""Settings as the command line makes them, without running it."""

from __future__ import annotations

from hydra import compose, initialize_config_dir

from lutlab import sources
from lutlab.experiment.plan.schema import register_configs
from lutlab.experiment.plan.settings import Settings, settings_of


def settings(*overrides: str) -> Settings:
    """Of `python run.py <overrides>`."""
    register_configs()
    with initialize_config_dir(str(sources.folder("conf")), version_base="1.3"):
        return settings_of(compose("config", ["device=cpu", *overrides]))
