"""A source is built once, by whoever comes first; what is damaged, refused or in the way is told."""

import ctypes
import json
import math
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from tests import warm
from tests.kernels.checks import refused
from tests.kernels.codegen.sanitized import PORTABLE, SCALE

from lutlab.base.errors import LutlabError
from lutlab.base.kept import built, findings
from lutlab.kernels.codegen import compiler, isa, library

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


def build(source=SCALE, on=PORTABLE, **options):
    return library.build(source, "scale", on, **options)


def load(source=SCALE, on=PORTABLE, **options):
    return library.load(source, "scale", on, **options)


def scaled(handle, x, c=2.0, threads=1):
    y, pointer = torch.empty_like(x), ctypes.c_void_p
    sizes = ctypes.c_long(x.numel()), ctypes.c_float(c), threads
    handle.scale(pointer(x.data_ptr()), pointer(y.data_ptr()), *sizes)
    return y


def assert_scales(handle, threads=1):
    x = torch.randn(1001)
    assert torch.equal(scaled(handle, x, threads=threads), x * 2)


@pytest.mark.parametrize("each", isa.buildable(), ids=lambda each: each.name)
def test_what_this_cpu_cannot_run_is_built_but_not_loaded(cache, each):
    assert (build(on=each) / "kernel.so").is_file()
    if each in isa.runnable():
        for threads in (1, 2):
            assert_scales(load(on=each), threads)
    else:
        refused(rf"scale for {each.name} .* cannot run it; it runs ", load, on=each)


def test_built_once_and_readable(cache, monkeypatch):
    handle = load()
    assert load() is handle
    library._load.cache_clear()  # as in a new process; also where the cache can only be read
    monkeypatch.setattr(compiler.Compiler, "run", lambda *_: pytest.fail("it is built"))
    monkeypatch.setattr(findings, "writable", lambda _: pytest.fail("nothing is written"))
    load()
    (folder,) = cache.iterdir()
    assert folder.name.startswith("scale-portable-")
    assert (folder / "kernel.c").read_text() == SCALE
    about = json.loads((folder / "kernel.sealed").read_text().splitlines()[1])
    assert (about["openmp"], about["compiler"]) == (handle.openmp, compiler.find().version)


def test_whatever_decides_the_library_decides_its_place(cache, monkeypatch):
    places = [build(), build(SCALE + "\n"), build(sanitize=("undefined",))]
    places.append(build(on=isa.Isa("portable", ("-O1",))))
    monkeypatch.setattr(library, "features", lambda: frozenset({"another CPU"}))
    places.append(build())
    monkeypatch.setenv("LUTLAB_CC", f"{compiler.find().command[0]} -g")
    places.append(build())
    assert len(set(places)) == len(places)


@pytest.mark.parametrize(("file", "damage"), [
    ("kernel.so", lambda path: path.write_bytes(b"not a library")),
    ("kernel.so", lambda path: path.unlink()),
    ("kernel.so", lambda path: path.chmod(0o666)),
    ("kernel.c", lambda path: path.write_text(THREADS)),
    ("kernel.sealed", lambda path: path.unlink()),
    ("kernel.sealed", lambda path: path.write_text("[]")),
    ("kernel.sealed", lambda path: path.write_bytes(b"\xff\xfe{}")),
    ("kernel.sealed", lambda path: os.truncate(path, 100)),
    ("kernel.sealed", lambda path: (path.unlink(), path.mkdir())),
    ("", lambda path: (shutil.rmtree(path), path.write_text(""))),
    # Intact, and another's: it would be called with arguments that it does not have, a crash.
    ("", lambda path: (shutil.rmtree(path), build(THREADS).rename(path))),
])  # fmt: skip
def test_a_damaged_library_is_set_aside_and_built_again(cache, caplog, file, damage):
    folder = build()
    damage(folder / file)
    assert_scales(load())
    (warning,) = caplog.messages
    assert f"{folder} is damaged (" in warning
    assert sorted(os.listdir(cache)) == [folder.name, f"{folder.name}.damaged"]


def test_a_damaged_library_in_a_cache_that_can_only_be_read(cache, caplog, monkeypatch):
    folder = build()
    (folder / "kernel.so").write_bytes(b"")
    monkeypatch.setattr(findings, "writable", lambda _: cache.parent / "elsewhere")
    (cache.parent / "elsewhere").mkdir()
    read_only = Mock(side_effect=LutlabError("cannot be moved"))
    monkeypatch.setattr(findings, "set_aside", read_only)
    assert_scales(load())
    assert sorted(os.listdir(cache)) == [folder.name]


def test_two_processes_at_once(cache):
    """Each of four processes builds, or takes what another one built; no half of a folder is seen or left."""
    code = (
        "from lutlab.kernels.codegen import isa, library;"
        f"library.load({SCALE!r}, 'scale', isa.ISAS[-1]); print('ok')"
    )
    running = [warm.start(code) for _ in range(4)]
    assert [each.communicate() for each in running] == 4 * [("ok\n", "")]
    (folder,) = cache.iterdir()
    assert built.kept(folder)


@pytest.mark.parametrize("first", ["intact", "damaged"])
def test_another_process_was_first(cache, monkeypatch, caplog, first):
    """Between our look into the cache and our rename, the folder appears. A rename keeps the file, a copy would not."""
    real, other, inodes = library._compile, cache.parent / "other", {}

    def compile_slowly(source, cc, flags, ours):
        about = real(source, cc, flags, ours)
        (folder,) = other.iterdir()
        theirs = cache / folder.name
        shutil.copytree(folder, theirs)
        if first == "damaged":
            (theirs / "kernel.so").write_bytes(b"")
        inodes["intact"] = (theirs / "kernel.so").stat().st_ino
        inodes["damaged"] = (ours / "kernel.so").stat().st_ino
        return about

    with monkeypatch.context() as patch:
        patch.setattr(library, "cache_folder", lambda: other)
        build()
    monkeypatch.setattr(library, "_compile", compile_slowly)
    load()
    folder, *aside = sorted(cache.iterdir())
    assert built.kept(folder)
    assert (folder / "kernel.so").stat().st_ino == inodes[first]
    assert len(aside) == len(caplog.records) == (first == "damaged")


def test_the_cause_of_what_does_not_compile_or_link_is_shown(cache, caplog):
    with pytest.raises(LutlabError) as error:
        load("int f(void) {\n    return nothing;\n}\n")
    command = f"{compiler.find().command[0]} kernel.c -o kernel.so"
    for part in (command, "kernel.c:2:12: error: ", "return nothing;"):
        assert part in str(error.value)
    assert (cache / "refused.c").read_text().startswith("int f(void)")
    assert sorted(os.listdir(cache)) == ["refused.c"]
    assert caplog.text == ""  # OpenMP is not what was wrong
    output = "/usr/bin/ld: cannot find -lm\ncollect2: error: ld returned 1 exit status\n"
    assert library._first_error(output).startswith("/usr/bin/ld: cannot find -lm")


def test_a_cache_that_cannot_be_written(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path / "file"))
    for c in (1, 2):
        assert_scales(load(SCALE + "\n" * c))
    (warning,) = caplog.messages
    assert "cannot write" in warning
    assert "LUTLAB_CACHE" in warning


def test_without_a_compiler_a_library_built_before_serves(cache, monkeypatch, tmp_path):
    """Where its source, name and flags are the same and it is whole."""
    folder, slow = build(), isa.Isa("portable", ("-O1",))
    for name, value in (("CC", ""), ("LUTLAB_CC", ""), ("PATH", str(tmp_path))):
        monkeypatch.setenv(name, value)
    assert_scales(load())
    monkeypatch.setattr(library, "runnable", lambda: (slow, PORTABLE))
    for source, on in ((SCALE + "\n", PORTABLE), (THREADS, PORTABLE), (SCALE, slow)):
        refused("apt install gcc", load, source, on)
    (folder / "kernel.so").write_bytes(b"damaged")
    refused("apt install gcc", load)


def test_a_full_disk_and_a_compiler_for_another_machine(cache, monkeypatch):
    real = library._compile

    def elsewhere(source, cc, flags, folder):
        about = real(source, cc, flags, folder)
        (folder / "kernel.so").write_bytes(b"\x7fELF of another machine")
        return about

    full = OSError(28, "No space left on device")
    monkeypatch.setattr(library, "_compile", Mock(side_effect=full))
    refused(r"cannot write .*No space left on device.*LUTLAB_CACHE", load)
    monkeypatch.setattr(library, "_compile", elsewhere)
    refused(r"cannot load .* LUTLAB_CC", load)


def test_a_compiler_without_openmp(cache, monkeypatch, caplog):
    """Apple's clang refuses -fopenmp: kernels run on one thread, the library and the log say so."""
    wrapper = cache.parent / "no-openmp"
    wrapper.write_text(
        f"#!/bin/sh\ncase \"$*\" in *-fopenmp*) echo 'error: unsupported option' >&2; exit 1;; esac\n"
        f'exec {compiler.find().command[0]} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("LUTLAB_CC", str(wrapper))
    handle = load(THREADS)
    assert not handle.openmp
    assert handle.team(3) == 3
    assert "single thread" in caplog.text
    refused(r"kernel.c:1:\d+: error", load, "int f(")


def test_nan_inf_and_denormals_pass(cache):
    """-ffast-math would flush denormals in the whole process as soon as its library is loaded."""
    handle = load(on=isa.runnable()[0])
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
    refused("LD_PRELOAD", load, sanitize=("address",))


def test_threads_of_one_process_load_the_same(cache):
    with ThreadPoolExecutor(3) as pool:
        for handle in pool.map(lambda _: load(), range(3)):
            assert_scales(handle)
