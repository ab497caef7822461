"""A Python process that has imported torch, transformers and lutlab, and forks a child for each command.

    done = warm.run("import lutlab; print(lutlab.__name__)", "an argument", cwd=folder)
    process = warm.start(ROOT / "run.py", "q=3", cwd=folder)

A child begins where a new interpreter has imported libraries: nothing has computed, read or been registered yet. It has
the environment, folder, arguments and streams that it is given, and costs some 50 ms where those imports cost seconds.
What is about starting itself (which modules an import brings, `python -m`, the installed command) starts a real one.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest

from lutlab.base import children

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = (
    "torch", "transformers.models.opt.modeling_opt", "transformers.models.llama.modeling_llama", "accelerate", "pandas",
    "lutlab.api", "lutlab.compress.driver", "lutlab.checkpoint.loading", "lutlab.evaluators.perplexity",
    "lutlab.experiment.run.main", "lutlab.experiment.run.pipeline", "lutlab.experiment.run.worker",
    "hydra._internal.hydra", "hydra.core.plugins", "matplotlib.backends.backend_agg", "matplotlib.figure",
)  # fmt: skip


class Child:
    """What `subprocess.Popen` says of a process, as far as tests ask; its output is whole when it has ended."""

    returncode: int | None = None

    def __init__(self, news: socket.socket, out: IO[str], err: IO[str]) -> None:
        self._news, self._out, self._err = news, out, err
        self.pid = self._read(None)

    def _read(self, timeout: float | None) -> int:
        self._news.settimeout(timeout)
        return int.from_bytes(self._news.recv(8), "little", signed=True)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            try:
                self.returncode = self._read(timeout)
            except TimeoutError as error:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0) from error
            self._news.close()
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(1e-3)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        self.wait(timeout)
        with self._out, self._err:
            self._out.seek(0)
            self._err.seek(0)
            return self._out.read(), self._err.read()


def start(
    code: str | Path,
    *arguments: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Child:
    """Start a text of Python, as `python -c` does, or a file, as `python <file>` does.

    Args:
        code: text, or path of a file.
        arguments: sys.argv[1:] of the child.
        cwd: its folder; this process' otherwise.
        env: its environment; this process' otherwise.
    """
    ours, theirs = socket.socketpair()
    out, err, asked = (tempfile.TemporaryFile("w+") for _ in range(3))  # noqa: SIM115, the child's
    path = str(code) if isinstance(code, Path) else None
    json.dump(
        {
            "path": path,
            "code": code.read_text() if isinstance(code, Path) else code,
            "arguments": [str(argument) for argument in arguments],
            "cwd": str(cwd or Path.cwd()),
            "env": dict(os.environ if env is None else env),
        },
        asked,
    )
    asked.seek(0)
    with theirs, asked:
        handed = [one.fileno() for one in (theirs, out, err, asked)]
        socket.send_fds(_server(), [b"."], handed)
    return Child(ours, out, err)


def run(code: str | Path, *arguments: object, **how: Any) -> subprocess.CompletedProcess[str]:
    """The same to its end; `how` is that of `start`."""
    process = start(code, *arguments, **how)
    out, err = process.communicate(timeout=900)
    return subprocess.CompletedProcess(list(arguments), process.wait(), out, err)


def run_children(patch: pytest.MonkeyPatch) -> None:
    """Have `subprocess.run` fork the processes that `lutlab.base.children.python` describes."""
    real = subprocess.run

    def forked(command: Sequence[str], **how: Any) -> subprocess.CompletedProcess[Any]:
        if list(command[:3]) != [sys.executable, "-c", children._START]:
            return real(command, **how)
        return run(command[4], *command[5:], env=how.get("env"))

    patch.setattr(subprocess, "run", forked)


@functools.cache
def _server() -> socket.socket:
    """The process that forks, one for each worker of pytest; it ends with it."""
    ours, theirs = socket.socketpair()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = [sys.executable, "-m", "tests.warm", str(theirs.fileno())]
    with theirs:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
        )
    atexit.register(lambda: (ours.close(), process.wait()))
    return ours


def _serve(requests: socket.socket) -> None:
    for name in LIBRARIES:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # those that wait for a child end by themselves
    while True:
        _, handed, _, _ = socket.recv_fds(requests, 1, 4)
        if not handed:
            return
        if not os.fork():
            requests.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _wait_for_child(socket.socket(fileno=handed[0]), handed[1:])
        for descriptor in handed:
            os.close(descriptor)


def _wait_for_child(news: socket.socket, handed: list[int]) -> None:
    child = os.fork()
    if not child:
        news.close()
        _become(*handed)
    for descriptor in handed:
        os.close(descriptor)
    news.send(child.to_bytes(8, "little", signed=True))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    news.send(status.to_bytes(8, "little", signed=True))
    os._exit(0)


def _become(out: int, err: int, asked: int) -> None:
    """Never returns."""
    code = 1
    try:
        with os.fdopen(asked) as file:
            request = json.load(file)
        for stream, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), out, err)):
            os.dup2(descriptor, stream)
            os.close(descriptor)
        sys.stdout = os.fdopen(1, "w", closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        os.environ.clear()
        os.environ.update(request["env"])
        if hasattr(time, "tzset"):
            time.tzset()
        os.chdir(request["cwd"])
        code = _execute(request)
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
    finally:
        os._exit(code)


def _execute(request: Mapping[str, Any]) -> int:
    path = request["path"]
    sys.argv = [path or "-c", *request["arguments"]]
    paths = request["env"].get("PYTHONPATH", "").split(os.pathsep)
    own = [os.path.dirname(path) if path else "", *filter(None, paths)]
    sys.path[:] = [*own, *(entry for entry in sys.path if entry not in (str(ROOT), ""))]
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if path:
        main.__file__ = path
    warnings.resetwarnings()
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    try:
        exec(compile(request["code"], path or "<string>", "exec"), main.__dict__)
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
