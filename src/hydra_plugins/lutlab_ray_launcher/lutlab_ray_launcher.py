"""Hydra launcher on Ray: a row is a task, whose process goes on to the rows that follow.

    hydra/launcher=ray hydra.launcher.ray.init.num_cpus=8       a Ray of its own on this machine, which ends with it
    hydra/launcher=ray hydra.launcher.ray.init.address=auto     a running cluster, which stays up

`init` are arguments of ray.init, `remote` the options of a task, as num_cpus, num_gpus, max_retries.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import secrets
import signal
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import Future, as_completed
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from lutlab.base.errors import LutlabError

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.remote_function import RemoteFunction

_OWN = "local"  # Ray's word for one of its own, though a cluster may run here too
# by default 20, of some 40 s each where nobody answers
_TRIES = {"RAY_NUM_REDIS_GET_RETRIES": "1"}


class RayLauncher(Launcher):
    """Hydra's launcher: each row is a task of Ray."""

    def __init__(self, ray: DictConfig) -> None:
        self.ray: Any = OmegaConf.to_container(ray, resolve=True)
        self.row: RemoteFunction | None = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Hydra's hook: keep what all rows share.

        Raises:
            LutlabError: Ray is not installed.
        """
        if importlib.util.find_spec("ray") is None:
            raise LutlabError("hydra/launcher=ray is not installed: pip install 'lutlab[ray]'")
        self.config, self.context, self.task = config, hydra_context, task_function

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Run the jobs; raises the first error that a job did not record itself, and ends the others."""
        self.row = self.row or _connect(**self.ray)
        import ray

        shared = self.context, self.task, Singleton.get_state()
        rows: list[ObjectRef] = []
        try:
            for index, overrides in enumerate(job_overrides, initial_job_idx):
                config = self.context.config_loader.load_sweep_config(self.config, list(overrides))
                with open_dict(config):
                    config.hydra.job.id = config.hydra.job.num = index
                job = ray.cloudpickle.dumps(functools.partial(_run, config, *shared))
                rows.append(self.row.remote(sys.path, os.getcwd(), job))
            # futures, not ray.wait: in Ray's own code the exception of a SIGTERM is lost
            jobs = [row.future() for row in rows]
            for job in as_completed(jobs):
                _check(job)
            return [job.result() for job in jobs]
        except BaseException:
            for row in rows:
                ray.cancel(row, force=True)
            ray.shutdown()
            raise


def _connect(init: dict[str, Any], remote: dict[str, Any]) -> RemoteFunction:
    """Start Ray or connect to it, and say so; returns the task that runs a row.

    Raises:
        LutlabError: there is no cluster, or Ray refuses what it is given.
    """
    address = init["address"] = str(init["address"] or _OWN)
    is_local = address == _OWN
    environment = _closed() if is_local else _TRIES
    for name, value in {"RAY_USAGE_STATS_ENABLED": "0", **environment}.items():
        os.environ.setdefault(name, value)
    _say("starting on this machine" if is_local else f"connecting to {address}")
    import ray

    def row(path: Sequence[str], folder: str, job: bytes) -> JobReturn:
        import os
        import pickle
        import sys

        # before lutlab is imported: another one than this checkout may be installed
        sys.path[:] = dict.fromkeys([*path, *sys.path])
        os.chdir(folder)
        return pickle.loads(job)()

    terminated = signal.getsignal(signal.SIGTERM)
    try:
        task = ray.remote(**remote)(row)
        _knock(address)
        ray.init(**init)
        cpus = ray.cluster_resources().get("CPU", 0)
        _say(f"{ray.get_runtime_context().gcs_address}, {cpus:g} CPUs")
        needs = {"CPU": remote.get("num_cpus", 1), "GPU": remote.get("num_gpus", 0)}
        machines = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        if not any(all(has.get(k, 0) >= n for k, n in needs.items()) for has in machines):
            _say(f"no machine of it has what a row asks for, {needs}: rows wait for one")
    except SystemExit:  # Ray's answer to SIGTERM, in the place of ours
        signal.signal(signal.SIGTERM, terminated)
        signal.raise_signal(signal.SIGTERM)
        raise
    except OSError as error:
        if is_local:
            raise
        raise LutlabError(
            f"no Ray cluster at {address}: start one by `ray start --head`, or leave the address out "
            "(of one with a token, set RAY_AUTH_MODE=token)"
        ) from error
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise LutlabError(f"hydra.launcher.ray: {error}") from error
    finally:
        signal.signal(signal.SIGTERM, terminated)
    return task


def _closed() -> dict[str, str]:
    """An environment in which Ray listens at 127.0.0.1, to those who have a token of this run's."""
    return {
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(),
    }


def _say(words: str) -> None:
    print(f"Ray: {words}", file=sys.stderr, flush=True)


def _knock(address: str) -> None:
    """Knock at a host and port; Ray would try for minutes where nothing listens."""
    host, _, port = address.rpartition("/")[2].rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), timeout=5).close()


def _run(
    config: DictConfig, context: HydraContext, task: TaskFunction, state: dict[Any, Any]
) -> JobReturn:
    setup_globals()
    Singleton.set_state(state)
    return run_job(task, config, "hydra.sweep.dir", "hydra.sweep.subdir", context)


def _check(job: Future[JobReturn]) -> None:
    """Raise what kept a job from its end: the exception that it did not record, or that its process was lost."""
    from ray.exceptions import RayError

    try:
        done = job.result()
    except RayError as error:
        reason = getattr(error, "cause", error)
        raise LutlabError(f"a row's process on Ray failed: {reason}") from error
    _ = done.return_value  # raises


ConfigStore.instance().store(
    group="hydra/launcher",
    name="ray",
    node={
        "_target_": "hydra_plugins.lutlab_ray_launcher.lutlab_ray_launcher.RayLauncher",
        "ray": {
            "init": {
                "address": _OWN,
                "include_dashboard": False,
                "log_to_driver": False,
                "logging_level": "ERROR",
            },
            "remote": {"max_retries": 0},
        },
    },
    provider="lutlab",
)
