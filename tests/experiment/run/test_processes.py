"""Processes of a run: one that is killed, and workers of every launcher."""

from __future__ import annotations

import importlib.util
import signal
import time
from pathlib import Path

import pytest
from tests.command_line import QUICK, CommandLine, printed, records, start
from tests.experiment.run.table4 import CELLS, TABLE, table_csv


@pytest.mark.slow
def test_a_killed_run_resumes_and_gives_the_same_table(
    command: CommandLine, tmp_path: Path
) -> None:
    folder = tmp_path / "killed" / "results"
    folder.parent.mkdir()
    process = start(*TABLE, results=folder)
    deadline = time.monotonic() + 120
    while not (survivors := records(folder)) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    survivors = records(folder)
    assert 0 < len(survivors) < CELLS

    assert command(*TABLE).code == 0
    own, command.results = command.results, folder
    again = command(*TABLE)
    assert again.code == 0, again.err
    assert survivors.items() <= records(folder).items()  # not one was measured again
    kept = [(r["row"], r["column"], r["measured"], r["verdict"]) for r in table_csv(folder)]
    whole = [(r["row"], r["column"], r["measured"], r["verdict"]) for r in table_csv(own)]
    assert kept == whole


SWEEP = [*QUICK, "data.limit=2", "method=rtn", "q=3,4", "g=64"]
LAUNCHERS = {
    "joblib": ["hydra/launcher=joblib", "hydra.launcher.n_jobs=2"],
    "ray": ["hydra/launcher=ray", "+hydra.launcher.ray.init.num_cpus=2"],
    "submitit_local": ["hydra/launcher=submitit_local", "hydra.launcher.timeout_min=10"],
}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the sweep in this process."""
    results = tmp_path_factory.mktemp("alone") / "results"
    printed(*SWEEP, results=results)
    return results


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_workers_of_every_launcher_share_one_store(
    alone: Path, tmp_path: Path, launcher: str
) -> None:
    plugin = launcher.removesuffix("_local")
    if importlib.util.find_spec(f"hydra_plugins.hydra_{plugin}_launcher") is None:
        pytest.skip(f"pip install lutlab[{plugin}] to test this launcher")
    folder = tmp_path / launcher / "results"
    folder.parent.mkdir()
    process = start(*SWEEP, *LAUNCHERS[launcher], results=folder)
    _, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors
    ours, theirs = records(alone), records(folder)
    assert set(ours) == set(theirs)
    for cell, record in ours.items():
        assert theirs[cell]["values"] == pytest.approx(record["values"], rel=1e-5)
