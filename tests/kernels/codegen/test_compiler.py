"""The compiler is the named one, else the first that is installed; without one, the message says what to do."""

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


def install(folder, name, status=0):
    program = folder / name
    program.write_text(f"#!/bin/sh\necho 'a compiler 1.0'\necho 'second line'\nexit {status}\n")
    program.chmod(0o755)
    return str(program)


def no_compiler(message, call=compiler.find, *arguments):
    with pytest.raises(NoCompiler, match=message):
        call(*arguments)


def test_order(path, monkeypatch):
    no_compiler("none of cc, gcc, clang.*apt install gcc.*LUTLAB_CC")
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
def test_a_named_compiler_that_is_not_there(path, monkeypatch, variable, named):
    install(path, "cc")
    monkeypatch.setenv(variable, named)
    no_compiler(f"{variable}=")


def test_a_compiler_that_does_not_work_or_is_gone(path, monkeypatch, tmp_path):
    install(path, "cc")
    before = compiler.find()
    (path / "cc").unlink()
    no_compiler("cannot run", before.run, ["kernel.c"], tmp_path)
    monkeypatch.setenv("CC", install(path, "broken", status=1))
    no_compiler("broken --version fails")


def test_no_flag_changes_what_numbers_mean():
    """gcc's own list: none of what -ffast-math would switch on, but errno."""
    assert not {"-ffast-math", "-Ofast", "-funsafe-math-optimizations"} & set(compiler.FLAGS)
    assert not [f for f in compiler.FLAGS if "finite-math" in f or "march" in f]
