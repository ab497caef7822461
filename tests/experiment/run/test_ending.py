"""Every command ends in a documented exit code with at most one message."""

import errno
import os
import signal
import subprocess
import sys

import pytest
from rich.console import Console
from tests.command_line import ROOT

from lutlab.base.errors import LutlabError
from lutlab.experiment.run.ending import RowsFailed, ended


def raises(error):
    def command():
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (LutlabError("no such q"), 2, "no such q"),
        (RowsFailed("1 cells failed"), 1, "1 cells failed"),
        (KeyboardInterrupt(), 130, "interrupted; finished cells are kept"),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "x.json"), 2, "x.json: No space left"),
        (MemoryError(), 2, "out of memory"),
        (ImportError("libtorch.so: failed to map segment from shared object"), 2, "out of memory"),
    ],
)
def test_an_end_has_a_code_and_a_message(error, code, said, capfd):
    assert ended(raises(error)) == code
    err = capfd.readouterr().err
    assert err.startswith("lutlab: ")
    assert said in err


def test_errors_of_lutlab_itself_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        ended(lambda: 1 // 0)
    with pytest.raises(RuntimeError):
        ended(raises(RuntimeError("shapes do not fit")))


def test_a_terminated_command_says_so(capfd):
    assert ended(lambda: os.kill(os.getpid(), signal.SIGTERM)) == 143
    assert "terminated; finished cells are kept" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("write", [print, lambda line: Console().print(line)])
def test_a_reader_who_left_is_141(write, tmp_path):
    code = (
        "import sys; from rich.console import Console; from lutlab.experiment.run.ending import ended\n"
        f"write = {'print' if write is print else 'Console().print'}\n"
        "sys.exit(ended(lambda: [write('a line') for _ in range(100000)] and None))"
    )
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=writes,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=False,
    )
    os.close(writes)
    assert (done.returncode, done.stderr) == (141, b"")


def test_an_ascii_terminal_and_a_full_disk_get_no_traceback(tmp_path):
    code = (
        "import sys; from lutlab.experiment.run.ending import ended\n"
        "sys.exit(ended(lambda: print('3 \\u00b1 1')))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "ascii"}
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, cwd=tmp_path, env=env, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"3 ? 1\n", b"")
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as full:
            done = subprocess.run(line, stdout=full, stderr=-1, cwd=tmp_path, env=env, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith(b"lutlab: the system refuses")
        assert b"Traceback" not in done.stderr
