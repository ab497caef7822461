"""Hydra's door to the pipeline: turns command-line arguments into rows and hands them to the chosen launcher.

    +exp=table4                  the artifact's rows (a product of its axes, or a selection rows=[…])
    +exp=table4,nuqmm/table3     several artifacts, one after another; +exp=all, +exp=<paper>/all
    method=rtn,bcq q=2,3         without +exp: the product of the swept values

Works with the basic, joblib, ray and submitit launchers: they get ordinary override lists, one a row, the last of which
is the row as a job (lutlab/experiment/plan/plan.py).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class LutlabSweeper(Sweeper):
    """Hydra's sweeper; its work is in lutlab.experiment.run.pipeline, imported when a run begins."""

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Hydra's hook: keep what composes rows, and make the launcher."""
        self._config, self._loader = config, hydra_context.config_loader
        self._launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> None:
        """Hydra's entry: run everything the command line asks for."""
        from lutlab.experiment.row.row import Row
        from lutlab.experiment.run import pipeline

        @functools.cache  # a line of one row is that row, too
        def composed(overrides: tuple[str, ...]) -> Row:
            return Row.of(self._loader.load_sweep_config(self._config, list(overrides)))

        def compose(overrides: Sequence[str]) -> Row:
            return composed(tuple(overrides))

        pipeline.sweep(arguments, compose=compose, launch=self._launch)

    def _launch(self, jobs: Sequence[Sequence[str]]) -> list[Any]:
        """Run one job a row; raises the first error that a job did not record itself."""
        returns = self._launcher.launch([list(job) for job in jobs], initial_job_idx=0)
        return [job.return_value for job in returns]


ConfigStore.instance().store(
    group="hydra/sweeper",
    name="lutlab",
    node={"_target_": "hydra_plugins.lutlab_sweeper.lutlab_sweeper.LutlabSweeper"},
    provider="lutlab",
)
