"""Processes of a run: one that is killed, and workers of every launcher."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from tests.command_line import QUICK, printed, records, start
from tests.experiment.run.table4 import CELLS, RENDERED, TABLE, cells_of

SWEEP = [*QUICK, "data.limit=2", "method=rtn", "q=3,4", "g=64"]
LAUNCHERS = {
    "joblib": "hydra.launcher.n_jobs=2",
    "ray": "hydra.launcher.ray.init.num_cpus=2",
    "submitit_local": "hydra.launcher.timeout_min=10",
}


def wait(process, until, errors=None):
    """Wait for what a process that still runs brings about."""
    deadline = time.monotonic() + 120
    while not until() and time.monotonic() < deadline:
        assert process.poll() is None, (errors or process.communicate)()
        time.sleep(0.05)


@pytest.mark.slow
def test_a_killed_run_resumes_and_gives_the_same_table(command, tmp_path):
    folder = tmp_path / "killed" / "results"
    folder.parent.mkdir()
    process = start(*TABLE, results=folder)
    wait(process, lambda: records(folder))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    survivors = records(folder)
    assert 0 < len(survivors) < CELLS

    command(*TABLE)
    own, command.results = command.results, folder
    command(*TABLE)
    assert survivors.items() <= records(folder).items()  # not one was measured again
    assert cells_of(folder / RENDERED) == cells_of(own / RENDERED)


def needs(extra):
    """A mark that skips where a package is missing, before `alone` is measured."""
    module = "ray" if extra == "ray" else f"hydra_plugins.hydra_{extra}_launcher"
    missing = importlib.util.find_spec(module) is None
    return pytest.mark.skipif(missing, reason=f"pip install lutlab[{extra}] to test this launcher")


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Results of the sweep in this process."""
    results = tmp_path_factory.mktemp("alone") / "results"
    printed(*SWEEP, results=results)
    return results


def check_same_records(alone, folder, *launcher):
    results = folder / "results"
    process = start(*SWEEP, *launcher, results=results)
    _, errors = process.communicate(timeout=400)
    assert process.returncode == 0, errors
    ours, theirs = records(alone), records(results)
    assert set(ours) == set(theirs)
    for cell, record in ours.items():
        assert theirs[cell]["values"] == pytest.approx(record["values"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [pytest.param(name, marks=needs(name.removesuffix("_local"))) for name in LAUNCHERS],
)
def test_workers_of_every_launcher_share_one_store(alone, tmp_path, launcher):
    check_same_records(alone, tmp_path, f"hydra/launcher={launcher}", LAUNCHERS[launcher])


# ---- a Ray cluster, of one machine ----

IDLE = """
import sys, time, ray
ray.init(sys.argv[1], logging_level="ERROR")
while ray.available_resources().get("CPU") != ray.cluster_resources()["CPU"]:
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def cluster():
    """Address of a head node on 127.0.0.1, of two CPUs, that is up at the end too."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"]
    command += ["--node-ip-address=127.0.0.1", f"--port={port}"]
    command += ["--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats"]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # it listens at 127.0.0.1 only
        patch.setenv("RAY_AUTH_MODE", "disabled")
        command.append(f"--temp-dir={folder}")  # short: a socket's path has 107 bytes
        log = Path(folder) / "head.log"
        with log.open("w") as file:
            head = subprocess.Popen(command, stdout=file, stderr=file, env=os.environ)
        try:
            wait(head, lambda: "Ray runtime started" in log.read_text(), log.read_text)
            yield f"127.0.0.1:{port}"
            assert head.poll() is None, log.read_text()
        finally:
            head.terminate()
            head.wait(timeout=60)


@needs("ray")
@pytest.mark.slow
def test_rows_on_a_ray_cluster_share_one_store(alone, tmp_path, cluster):
    address = f"+hydra.launcher.ray.init.address={cluster}"
    check_same_records(alone, tmp_path, "hydra/launcher=ray", address)


@needs("ray")
@pytest.mark.slow
def test_an_interrupt_ends_the_rows_on_a_ray_cluster(tmp_path, cluster):
    results = tmp_path / "results"
    launcher = ["hydra/launcher=ray", f"hydra.launcher.ray.init.address={cluster}"]
    process = start(*SWEEP[:-2], "q=2,3,4,5,6,7,8", "g=32,64", *launcher, results=results)
    wait(process, lambda: records(results))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors.splitlines()[-1].startswith("lutlab: interrupted; finished cells are kept")
    assert 0 < len(records(results)) < 28
    subprocess.run([sys.executable, "-c", IDLE, cluster], check=True, timeout=120)


@needs("ray")
@pytest.mark.parametrize(("key", "message"), [
    ("init.adress=auto", "Unknown keyword argument(s): adress"),
    ("init.address=127.0.0.1:1", "no Ray cluster at 127.0.0.1:1: start one by `ray start"),
    ("remote.num_cpu=2", "Invalid option keyword num_cpu"),
])  # fmt: skip
def test_what_ray_refuses_is_said(command, key, message):
    line = [*SWEEP, "hydra/launcher=ray", f"hydra.launcher.ray.{key}"]
    assert message in command(*line, code=2).err
    assert command.records() == {}
