"""Processes of a run: one that is killed, and workers of every launcher."""

from __future__ import annotations

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
    "ray": ["hydra/launcher=ray", "hydra.launcher.ray.init.num_cpus=2"],
    "submitit_local": ["hydra/launcher=submitit_local", "hydra.launcher.timeout_min=10"],
}


def _installed(launcher: str) -> Any:
    """The launcher's name, skipped before `alone` is measured where its package is missing."""
    extra = launcher.removesuffix("_local")
    module = "ray" if extra == "ray" else f"hydra_plugins.hydra_{extra}_launcher"
    missing = importlib.util.find_spec(module) is None
    reason = f"pip install lutlab[{extra}] to test this launcher"
    return pytest.param(launcher, marks=pytest.mark.skipif(missing, reason=reason))


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of the sweep in this process."""
    results = tmp_path_factory.mktemp("alone") / "results"
    printed(*SWEEP, results=results)
    return results


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [_installed(name) for name in LAUNCHERS])
def test_workers_of_every_launcher_share_one_store(
    alone: Path, tmp_path: Path, launcher: str
) -> None:
    _same_records(alone, tmp_path, LAUNCHERS[launcher])


def _same_records(alone: Path, folder: Path, launcher: list[str]) -> None:
    results = folder / "results"
    process = start(*SWEEP, *launcher, results=results)
    _, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors
    ours, theirs = records(alone), records(results)
    assert set(ours) == set(theirs)
    for cell, record in ours.items():
        assert theirs[cell]["values"] == pytest.approx(record["values"], rel=1e-5)


# ---- a Ray cluster, of one machine ----

IDLE = """
import sys, time, ray
ray.init(sys.argv[1], logging_level="ERROR")
while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """Address of a head node on 127.0.0.1, of two CPUs, that is up at the end too."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("pip install lutlab[ray] to test this launcher")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += ["--node-ip-address=127.0.0.1", f"--port={address.partition(':')[2]}"]
    command += ["--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats"]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # it listens at 127.0.0.1 only
        patch.setenv("RAY_AUTH_MODE", "disabled")
        command.append(f"--temp-dir={folder}")  # short: a socket's path has 107 bytes
        log = Path(folder) / "head.log"
        with log.open("w") as file:
            head = subprocess.Popen(command, stdout=file, stderr=file, env=os.environ)
        try:
            deadline = time.monotonic() + 120
            while "Ray runtime started" not in log.read_text() and time.monotonic() < deadline:
                assert head.poll() is None, log.read_text()
                time.sleep(0.1)
            yield address
            assert head.poll() is None, log.read_text()
        finally:
            head.terminate()
            head.wait(timeout=60)


@pytest.mark.slow
def test_rows_on_a_ray_cluster_share_one_store(alone: Path, tmp_path: Path, cluster: str) -> None:
    _same_records(
        alone, tmp_path, ["hydra/launcher=ray", f"+hydra.launcher.ray.init.address={cluster}"]
    )


@pytest.mark.slow
def test_an_interrupt_ends_the_rows_on_a_ray_cluster(tmp_path: Path, cluster: str) -> None:
    results = tmp_path / "results"
    sweep = [*SWEEP[:-2], "q=2,3,4,5,6,7,8", "g=32,64"]
    process = start(
        *sweep, "hydra/launcher=ray", f"hydra.launcher.ray.init.address={cluster}", results=results
    )
    deadline = time.monotonic() + 120
    while not records(results) and time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1].startswith("lutlab: interrupted; finished cells are kept")
    assert 0 < len(records(results)) < 28
    subprocess.run([sys.executable, "-c", IDLE, cluster], check=True, timeout=120)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("init.adress=auto", "Unknown keyword argument(s): adress"),
        ("init.address=127.0.0.1:1", "no Ray cluster at 127.0.0.1:1: start one by `ray start"),
        ("remote.num_cpu=2", "Invalid option keyword num_cpu"),
    ],
)
def test_what_ray_refuses_is_said(command: CommandLine, key: str, message: str) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("pip install lutlab[ray] to test this launcher")
    outcome = command(*SWEEP, "hydra/launcher=ray", f"hydra.launcher.ray.{key}")
    assert outcome.code == 2
    assert message in outcome.err
    assert "Traceback" not in outcome.err
    assert command.records() == {}
