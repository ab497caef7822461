"""A source is built once, by whoever comes first; what is damaged, refused or in the way is told."""

import ctypes
import json
import logging
import math
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from tests import warm

from lutlab.base.errors import LutlabError
from lutlab.base.kept import built, findings
from lutlab.kernels.codegen import compiler, isa, library

SCALE = """
void scale(const float *x, float *y, long n, float c, int threads) {
#pragma omp parallel for num_threads(threads)
    for (long i = 0; i < n; i++) y[i] = x[i] * c;
}
"""
THREADS = """
#ifdef _OPENMP
#include <omp.h>
#endif
int team(int threads) {
    int count = 0;
#pragma omp parallel for num_threads(threads) reduction(+ : count)
    for (int i = 0; i < threads; i++) count += 1;
    return count;
}
"""
PORTABLE = isa.ISAS[-1]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder."""
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "codegen"


@pytest.fixture
def compiled(monkeypatch):
    """The arguments of every run of the compiler."""
    runs = []
    real = compiler.Compiler.run

    def run(self, arguments, folder):
        runs.append(list(arguments))
        return real(self, arguments, folder)

    monkeypatch.setattr(compiler.Compiler, "run", run)
    return runs


def scaled(handle, x, c=2.0, threads=1):
    y = torch.empty_like(x)
    handle.scale(
        ctypes.c_void_p(x.data_ptr()),
        ctypes.c_void_p(y.data_ptr()),
        ctypes.c_long(x.numel()),
        ctypes.c_float(c),
        threads,
    )
    return y


def forget():
    """As a new process: nothing is loaded yet."""
    library._load.cache_clear()
    findings.writable.cache_clear()


@pytest.mark.parametrize("each", isa.runnable(), ids=lambda each: each.name)
@pytest.mark.parametrize("threads", [1, 2])
def test_the_function_runs(cache, each, threads):
    x = torch.randn(1001)
    assert torch.equal(scaled(library.load(SCALE, "scale", each), x, threads=threads), x * 2)


@pytest.mark.parametrize("each", isa.buildable(), ids=lambda each: each.name)
def test_what_this_cpu_cannot_run_is_built_but_not_loaded(cache, each):
    assert (library.build(SCALE, "scale", each) / "kernel.so").is_file()
    if each not in isa.runnable():
        with pytest.raises(LutlabError, match=rf"scale for {each.name} .* cannot run it; it runs "):
            library.load(SCALE, "scale", each)


def test_built_once_and_readable(cache, compiled):
    handle = library.load(SCALE, "scale", PORTABLE)
    assert library.load(SCALE, "scale", PORTABLE) is handle
    forget()
    library.load(SCALE, "scale", PORTABLE)
    assert len(compiled) == 1
    (folder,) = cache.iterdir()
    assert folder.name.startswith("scale-portable-")
    assert (folder / "kernel.c").read_text() == SCALE
    about = json.loads((folder / "kernel.sealed").read_text().splitlines()[1])
    assert about["openmp"] == handle.openmp
    assert about["compiler"] == compiler.find().version


def test_whatever_decides_the_library_decides_its_place(cache, monkeypatch):
    places = [library.build(SCALE, "scale", PORTABLE)]
    places.append(library.build(SCALE + "\n", "scale", PORTABLE))
    places.append(library.build(SCALE, "scale", PORTABLE, sanitize=("undefined",)))
    places.append(library.build(SCALE, "scale", isa.Isa("portable", ("-O1",))))
    monkeypatch.setattr(library, "features", lambda: frozenset({"another CPU"}))
    places.append(library.build(SCALE, "scale", PORTABLE))
    monkeypatch.setenv("LUTLAB_CC", f"{compiler.find().command[0]} -g")
    places.append(library.build(SCALE, "scale", PORTABLE))
    assert len(set(places)) == len(places)


def in_place_of(path):
    """A folder in a file's place."""
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("kernel.so", lambda path: path.write_bytes(b"not a library")),
        ("kernel.so", lambda path: path.unlink()),
        ("kernel.so", lambda path: path.chmod(0o666)),
        ("kernel.c", lambda path: path.write_text(THREADS)),
        ("kernel.sealed", lambda path: path.unlink()),
        ("kernel.sealed", lambda path: path.write_text("[]")),
        ("kernel.sealed", lambda path: path.write_bytes(b"\xff\xfe{}")),
        ("kernel.sealed", lambda path: os.truncate(path, 100)),
        ("kernel.sealed", in_place_of),
        ("", lambda path: (shutil.rmtree(path), path.write_text(""))),
    ],
)
def test_a_damaged_library_is_set_aside_and_built_again(cache, caplog, file, damage):
    folder = library.build(SCALE, "scale", PORTABLE)
    damage(folder / file)
    x = torch.randn(9)
    with caplog.at_level(logging.WARNING, logger="lutlab"):
        assert torch.equal(scaled(library.load(SCALE, "scale", PORTABLE), x), x * 2)
    (warning,) = caplog.records
    assert f"{folder} is damaged (" in warning.getMessage()
    assert sorted(path.name for path in cache.iterdir()) == [folder.name, f"{folder.name}.damaged"]


def test_another_intact_library_in_a_librarys_place_is_noticed(cache, caplog):
    """Loaded in its place it would be called with arguments that it does not have: a crash."""
    ours, other = (library.build(text, "scale", PORTABLE) for text in (SCALE, THREADS))
    shutil.rmtree(ours)
    shutil.copytree(other, ours)
    x = torch.randn(9)
    assert torch.equal(scaled(library.load(SCALE, "scale", PORTABLE), x), x * 2)
    assert f"{ours} is damaged (" in caplog.text


def test_a_damaged_library_in_a_cache_that_can_only_be_read(cache, caplog, monkeypatch):
    folder = library.build(SCALE, "scale", PORTABLE)
    (folder / "kernel.so").write_bytes(b"")
    monkeypatch.setattr(findings, "writable", lambda _: cache.parent / "elsewhere")
    (cache.parent / "elsewhere").mkdir()

    def read_only(path):
        raise LutlabError("cannot be moved")

    monkeypatch.setattr(findings, "set_aside", read_only)
    x = torch.randn(9)
    assert torch.equal(scaled(library.load(SCALE, "scale", PORTABLE), x), x * 2)
    assert [path.name for path in cache.iterdir()] == [folder.name]


def test_two_processes_at_once(cache):
    """Each of four processes builds, or takes what another one built; no half of a folder is seen or left."""
    code = (
        "import sys; from lutlab.kernels.codegen import isa, library; sys.stdin.read(1);"
        f"library.load({SCALE!r}, 'scale', isa.ISAS[-1]); print('ok')"
    )
    start = [sys.executable, "-c", code]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    running = [subprocess.Popen(start, text=True, **pipes) for _ in range(4)]
    for each in running:
        each.stdin.write("g")
        each.stdin.flush()
    for each in running:
        assert each.communicate() == ("ok\n", "")
    (folder,) = cache.iterdir()
    assert built.kept(folder)


@pytest.mark.parametrize("first", ["intact", "damaged"])
def test_another_process_was_first(cache, monkeypatch, caplog, first):
    """Between our look into the cache and our rename, the folder appears. A rename keeps the file, a copy would not."""
    real = library._compile
    inodes = {}
    other = cache.parent / "other"

    def compile_slowly(source, cc, flags, ours):
        about = real(source, cc, flags, ours)
        (folder,) = other.iterdir()
        shutil.copytree(folder, cache / folder.name)
        if first == "damaged":
            (cache / folder.name / "kernel.so").write_bytes(b"")
        inodes["theirs"] = (cache / folder.name / "kernel.so").stat().st_ino
        inodes["ours"] = (ours / "kernel.so").stat().st_ino
        return about

    with monkeypatch.context() as patch:
        patch.setattr(library, "cache_folder", lambda: other)
        library.build(SCALE, "scale", PORTABLE)
    monkeypatch.setattr(library, "_compile", compile_slowly)
    library.load(SCALE, "scale", PORTABLE)
    folder, *aside = sorted(cache.iterdir())
    assert built.kept(folder)
    kept = inodes["theirs" if first == "intact" else "ours"]
    assert (folder / "kernel.so").stat().st_ino == kept
    assert len(aside) == len(caplog.records) == (first == "damaged")


def test_a_source_that_does_not_compile(cache, caplog):
    with pytest.raises(LutlabError) as error:
        library.load("int f(void) {\n    return nothing;\n}\n", "wrong", PORTABLE)
    message = str(error.value)
    assert f"{compiler.find().command[0]} kernel.c -o kernel.so" in message
    assert "kernel.c:2:12: error: " in message
    assert "return nothing;" in message
    assert (cache / "refused.c").read_text().startswith("int f(void)")
    assert [path.name for path in cache.iterdir()] == ["refused.c"]
    assert caplog.text == ""  # OpenMP is not what was wrong


def test_the_linkers_cause_is_shown():
    said = "/usr/bin/ld: cannot find -lm\ncollect2: error: ld returned 1 exit status\n"
    assert library._first_error(said).startswith("/usr/bin/ld: cannot find -lm")


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path / "file"))
    x = torch.randn(9)
    for c in (1, 2):
        handle = library.load(SCALE + "\n" * c, "scale", PORTABLE)
        assert torch.equal(scaled(handle, x), x * 2)
    (warning,) = caplog.records
    assert "cannot write" in warning.getMessage()
    assert "LUTLAB_CACHE" in warning.getMessage()


def test_a_cache_that_can_only_be_read_is_used(cache, monkeypatch, compiled):
    library.build(SCALE, "scale", PORTABLE)
    monkeypatch.setattr(findings, "writable", lambda folder: pytest.fail("nothing is written"))
    library.load(SCALE, "scale", PORTABLE)
    assert len(compiled) == 1


@pytest.fixture
def uninstalled(monkeypatch, tmp_path):
    """A call after which no compiler is installed, in a new process."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("LUTLAB_CC", raising=False)

    def uninstall():
        monkeypatch.setenv("PATH", str(tmp_path))
        forget()

    return uninstall


def test_a_library_built_before_serves_where_no_compiler_is_installed_any_more(cache, uninstalled):
    library.load(SCALE, "scale", PORTABLE)
    uninstalled()
    x = torch.randn(10)
    assert torch.equal(scaled(library.load(SCALE, "scale", PORTABLE), x), x * 2)
    for source, name in ((SCALE + "\n", "scale"), (THREADS, "team")):
        with pytest.raises(compiler.NoCompiler, match="apt install gcc"):
            library.load(source, name, PORTABLE)


def test_without_a_compiler_no_library_of_other_flags_and_no_damaged_one_serves(
    cache, uninstalled, monkeypatch
):
    folder = library.build(SCALE, "scale", PORTABLE)
    uninstalled()
    slow = isa.Isa("portable", ("-O1",))
    monkeypatch.setattr(library, "runnable", lambda: (slow, PORTABLE))
    with pytest.raises(compiler.NoCompiler):
        library.load(SCALE, "scale", slow)
    (folder / "kernel.so").write_bytes(b"damaged")
    with pytest.raises(compiler.NoCompiler):
        library.load(SCALE, "scale", PORTABLE)


def test_a_full_disk(cache, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(library, "_compile", full)
    with pytest.raises(LutlabError, match=r"cannot write .*No space left on device.*LUTLAB_CACHE"):
        library.load(SCALE, "scale", PORTABLE)


def test_a_compiler_for_another_machine(cache, monkeypatch):
    real = library._compile

    def elsewhere(source, cc, flags, folder):
        about = real(source, cc, flags, folder)
        (folder / "kernel.so").write_bytes(b"\x7fELF of another machine")
        return about

    monkeypatch.setattr(library, "_compile", elsewhere)
    with pytest.raises(LutlabError, match=r"cannot load .* LUTLAB_CC"):
        library.load(SCALE, "scale", PORTABLE)


def test_a_compiler_without_openmp(cache, monkeypatch, caplog):
    """Apple's clang refuses -fopenmp: kernels run on one thread, the library and the log say so."""
    wrapper = cache.parent.parent / "no-openmp"
    wrapper.write_text(
        f"#!/bin/sh\ncase \"$*\" in *-fopenmp*) echo 'error: unsupported option' >&2; exit 1;; esac\n"
        f'exec {compiler.find().command[0]} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("LUTLAB_CC", str(wrapper))
    handle = library.load(THREADS, "team", PORTABLE)
    assert not handle.openmp
    assert handle.team(3) == 3
    assert "single thread" in caplog.text
    with pytest.raises(LutlabError, match=r"kernel.c:1:\d+: error"):
        library.load("int f(", "wrong", PORTABLE)


def test_nan_inf_and_denormals_pass(cache):
    """-ffast-math would flush denormals in the whole process as soon as its library is loaded."""
    handle = library.load(SCALE, "scale", isa.runnable()[0])
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0, 1e-40])
    assert torch.equal(scaled(handle, x, 0.0).isnan(), torch.tensor([1, 1, 1, 0, 0]).bool())
    assert torch.equal(scaled(handle, x, 1.0)[1:], x[1:])
    assert torch.tensor(1e-40) * 1 > 0


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks into /proc")
def test_one_runtime_and_one_pool_of_threads():
    """Our threads are torch's: no second OpenMP runtime, and not one thread more than torch has made."""
    code = f"""
import os, torch
from lutlab.kernels.codegen import isa, library
torch.set_num_threads(3)
torch.ones(10**6).add_(1)
before = len(os.listdir("/proc/self/task"))
handle = library.load({THREADS!r}, "team", isa.ISAS[-1])
assert handle.team(3) == 3
after = len(os.listdir("/proc/self/task"))
maps = open("/proc/self/maps").read().splitlines()
names = {{line.split("/")[-1] for line in maps}}
print(handle.openmp, after - before, len([n for n in names if "gomp" in n or "omp.so" in n or "omp5" in n]))
"""
    done = warm.run(code)
    openmp, more, runtimes = done.stdout.split() or pytest.fail(done.stderr)
    assert more == "0"
    assert runtimes == "1" or openmp == "False"


def test_address_sanitizer_is_refused_where_it_would_end_the_process(cache, monkeypatch):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    with pytest.raises(LutlabError, match="LD_PRELOAD"):
        library.load(SCALE, "scale", PORTABLE, sanitize=("address",))


def test_threads_of_one_process_load_the_same(cache):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(library.load(SCALE, "scale", PORTABLE)))
        for _ in range(3)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    x = torch.randn(5)
    assert all(torch.equal(scaled(handle, x), x * 2) for handle in found)
    assert len(found) == 3
