"""The compiler is the named one, else the first that is installed; without one, the message says what to do."""

import shutil
import stat

import pytest

from lutlab.kernels.codegen import compiler
from lutlab.kernels.codegen.compiler import Compiler, NoCompiler


@pytest.fixture
def path(monkeypatch, tmp_path):
    """An empty PATH, to put programs on."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("LUTLAB_CC", raising=False)
    return tmp_path


def install(folder, name, says="a compiler 1.0", status=0):
    program = folder / name
    program.write_text(f"#!/bin/sh\necho '{says}'\necho 'second line'\nexit {status}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


def test_none(path):
    with pytest.raises(NoCompiler, match=r"none of cc, gcc, clang.*apt install gcc.*LUTLAB_CC"):
        compiler.find()


def test_order(path, monkeypatch):
    clang = install(path, "clang")
    assert compiler.find() == Compiler((clang,), "a compiler 1.0")
    compiler._installed.cache_clear()  # the PATH is the same, the programs on it are not
    cc = install(path, "cc")
    assert compiler.find().command == (cc,)
    install(path, "mine")
    monkeypatch.setenv("CC", "mine -m64")
    assert compiler.find().command == (str(path / "mine"), "-m64")
    monkeypatch.setenv("LUTLAB_CC", "clang")
    assert compiler.find().command == (clang,)


@pytest.mark.parametrize("variable", ["CC", "LUTLAB_CC"])
@pytest.mark.parametrize("named", ["no-such-compiler", " ", "cc 'half a quote"])
def test_a_named_one_that_is_not_there(path, monkeypatch, variable, named):
    install(path, "cc")
    monkeypatch.setenv(variable, named)
    with pytest.raises(NoCompiler, match=f"{variable}="):
        compiler.find()


def test_one_that_does_not_work(path, monkeypatch):
    monkeypatch.setenv("CC", install(path, "broken", status=1))
    with pytest.raises(NoCompiler, match=r"broken --version fails"):
        compiler.find()


def test_one_that_is_gone(path, tmp_path):
    install(path, "cc")
    found = compiler.find()
    (path / "cc").unlink()
    with pytest.raises(NoCompiler, match="cannot run"):
        found.run(["kernel.c"], tmp_path)


def test_no_flag_changes_what_numbers_mean():
    """gcc's own list: none of what -ffast-math would switch on, but errno."""
    assert not {"-ffast-math", "-Ofast", "-funsafe-math-optimizations"} & set(compiler.FLAGS)
    assert not [f for f in compiler.FLAGS if "finite-math" in f or "march" in f]


def test_ours_is_found():
    assert shutil.which(compiler.find().command[0])
