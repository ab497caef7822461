"""The best instruction set that the CPU has is chosen; one that it lacks is refused, never reached."""

import platform

import pytest

from lutlab.base.errors import LutlabError
from lutlab.kernels.codegen import compiler, isa

AVX2 = {"avx2", "fma", "f16c", "sse4_2"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}


@pytest.fixture
def cpu(monkeypatch):
    """A CPU of our choice: its kind and its features."""

    def pretend(machine, features):
        monkeypatch.setattr(platform, "machine", lambda: machine)
        monkeypatch.setattr(isa, "features", lambda: frozenset(features))

    monkeypatch.delenv("LUTLAB_ISA", raising=False)
    return pretend


@pytest.mark.parametrize(
    ("machine", "features", "names"),
    [
        ("x86_64", AVX512, ["avx512", "avx2", "portable"]),
        ("x86_64", AVX512 - {"avx512bw"}, ["avx2", "portable"]),
        ("x86_64", AVX2, ["avx2", "portable"]),
        ("x86_64", AVX2 - {"fma"}, ["portable"]),
        ("x86_64", set(), ["portable"]),
        ("arm64", {"fp", "asimd"}, ["neon", "portable"]),
        ("aarch64", set(), ["neon", "portable"]),
        ("riscv64", AVX512, ["portable"]),
    ],
)
def test_what_a_cpu_runs(cpu, machine, features, names):
    cpu(machine, features)
    assert [each.name for each in isa.runnable()] == names
    assert isa.detect().name == names[0]


def test_extras_only_where_the_cpu_has_them(cpu):
    cpu("x86_64", AVX512 | {"avx512_vnni"})
    flags = isa.detect().flags
    assert "-mavx512vnni" in flags
    assert not {"-mavx512bf16", "-mavx512vbmi"} & set(flags)
    assert set(isa.buildable()[0].flags) > set(flags)


def test_another_one_by_name(cpu, monkeypatch):
    cpu("x86_64", AVX512)
    monkeypatch.setenv("LUTLAB_ISA", "portable")
    assert isa.detect() == isa.Isa("portable", ())


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("avx521", "did you mean 'avx512'"),
        ("avx512", "this CPU cannot run it; it runs avx2, portable"),
        ("neon", "this CPU cannot run it"),
    ],
)
def test_what_cannot_run_is_refused(cpu, monkeypatch, wanted, message):
    cpu("x86_64", AVX2)
    monkeypatch.setenv("LUTLAB_ISA", wanted)
    with pytest.raises(LutlabError, match=message):
        isa.detect()


def test_every_flag_of_this_kind_of_machine_is_known_to_the_compiler(tmp_path):
    (tmp_path / "empty.c").write_text("int nothing;\n")
    for each in isa.buildable():
        done = compiler.find().run(["-c", "empty.c", "-Werror", *each.flags], tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86")
def test_features_are_those_of_the_operating_system(tmp_path):
    """The compiler's own look at the CPU agrees with ours, for every flag that we give."""
    (tmp_path / "empty.c").write_text("")
    said = compiler.find().run(["-march=native", "-dM", "-E", "empty.c"], tmp_path).stdout
    native = {line.split()[1] for line in said.splitlines()}
    best = next(each for each in isa.runnable() if each.name != "neon")
    for flag in best.flags:
        assert f"__{flag.removeprefix('-m').upper()}__" in native
    assert ("__AVX512F__" in native) == (best.name == "avx512")
