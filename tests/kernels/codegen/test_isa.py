"""The best instruction set that the CPU has is chosen; one that it lacks is refused, never reached."""

import platform

import pytest
from tests.kernels.checks import refused
from tests.kernels.weights import packed

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


@pytest.mark.parametrize(("machine", "features", "names"), [
    ("x86_64", AVX512, ["avx512", "avx2", "portable"]),
    ("x86_64", AVX512 - {"avx512bw"}, ["avx2", "portable"]),
    ("x86_64", AVX2, ["avx2", "portable"]),
    ("x86_64", AVX2 - {"fma"}, ["portable"]),
    ("x86_64", set(), ["portable"]),
    ("arm64", {"fp", "asimd"}, ["neon", "portable"]),
    ("aarch64", set(), ["neon", "portable"]),
    ("riscv64", AVX512, ["portable"]),
])  # fmt: skip
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


@pytest.mark.parametrize(("vendor", "family", "halved"), [
    ("AuthenticAMD", 25, True), ("AuthenticAMD", 26, False), ("GenuineIntel", 25, False),
])  # fmt: skip
def test_avx2s_integers_take_the_place_of_an_avx512_in_two_turns(
    vendor, family, halved, cpu, monkeypatch
):
    cpu("x86_64", AVX512)
    about = f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: 25\n"
    monkeypatch.setattr(isa, "described", lambda _: about)
    isa.halved.cache_clear()
    try:
        codes = packed(8, 64, "codes", 4, 32)
        assert codes.instructions().name == ("avx2" if halved else "avx512")
        assert packed(8, 64, "codes", 8, 32).instructions().name == "avx512"
        monkeypatch.setenv("LUTLAB_ISA", "avx512")
        assert codes.instructions().name == "avx512"
    finally:
        isa.halved.cache_clear()


def test_another_by_name(cpu, monkeypatch):
    cpu("x86_64", AVX2)
    monkeypatch.setenv("LUTLAB_ISA", "portable")
    assert isa.detect() == isa.Isa("portable", ())
    for wanted, message in (
        ("avx521", "did you mean 'avx512'"),
        ("avx512", "this CPU cannot run it; it runs avx2, portable"),
        ("neon", "this CPU cannot run it"),
    ):
        monkeypatch.setenv("LUTLAB_ISA", wanted)
        refused(message, isa.detect)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of x86")
def test_features_are_those_of_the_operating_system(tmp_path):
    """The compiler's own look at the CPU agrees with ours, for every flag that we give."""
    (tmp_path / "empty.c").write_text("")
    output = compiler.find().run(["-march=native", "-dM", "-E", "empty.c"], tmp_path).stdout
    native = {line.split()[1] for line in output.splitlines()}
    best = next(each for each in isa.runnable() if each.name != "neon")
    for flag in best.flags:
        assert f"__{flag.removeprefix('-m').upper()}__" in native
    assert ("__AVX512F__" in native) == (best.name == "avx512")


def test_features_do_not_hang_on_what_varies(tmp_path):
    first = "vendor_id : x\nflags : fpu avx2\ncpu MHz : {}\nbogomips : {}\n"
    (tmp_path / "0").write_text(first.format(1, 2))
    (tmp_path / "1").write_text(first.format(3, 4) + "\nflags : of the next\n")
    read = [isa.described(tmp_path / name) for name in ("0", "1", "none")]
    assert read == ["vendor_id : x\nflags : fpu avx2\n"] * 2 + [""]
