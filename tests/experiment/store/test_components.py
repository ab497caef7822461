"""Every part that decides a number has a name, a version and sources, whose fingerprint moves with what is computed."""

import dataclasses
import sys
import types

import pytest
from tests.base.refusals import refused

from lutlab.base import registry
from lutlab.data import protocols
from lutlab.experiment.store import components, fingerprint
from lutlab.experiment.store.fingerprint import PACKAGE, plain_c, plain_python
from lutlab.kernels.codegen import cuda, templates


def register(monkeypatch, name: str, cls: type) -> None:
    registry.classes("method")
    monkeypatch.setitem(registry._CLASSES["method"], name, cls)


def own_method(folder, monkeypatch, name: str, levels: int, words: str = "") -> None:
    """Register a method that stands in a file outside of lutlab."""
    code = f'"""{words}"""\nclass Own:\n    version: int = 3\n    levels = {levels}\n'
    (folder / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(folder)
    register(monkeypatch, name, __import__(name).Own)


def test_every_registered_class_is_a_component() -> None:
    names = set(components.every_name())
    for group in components._ROOMS:
        ours = {n for n, c in registry.classes(group).items() if c.__module__.startswith("lutlab.")}
        assert {f"{group}/{name}" for name in ours} <= names


def test_versions_are_whole_numbers() -> None:
    assert {type(components.version(name)) for name in components.every_name()} == {int}
    assert components.versions("driver", "method/rtn") == {"driver": 1, "method/rtn": 1}


def test_every_pattern_finds_sources() -> None:
    for name, part in components._PARTS.items():
        for pattern in part.roots:
            assert list(PACKAGE.glob(pattern)), (name, pattern)
        assert all(path.exists() for path in part.sources), name


def test_no_kernel_is_forgotten() -> None:
    known = components.kernel_files("cpu") | components.kernel_files("cuda")
    ours = {path for path in PACKAGE.glob("kernels/**/*.py") if path.name != "__init__.py"}
    assert ours <= known
    texts = {p for root in (templates.ROOT, cuda.ROOT) for p in root.rglob("*.[ch]*")}
    assert {path.name for path in texts - known} == {"ceilings.cu"}, "which benchmarks run"


def test_devices_have_kernels_of_their_own() -> None:
    assert components.kernels_fingerprint("cpu") != components.kernels_fingerprint("cuda")
    assert components.kernels_fingerprint("spread") == components.kernels_fingerprint("cuda")
    cpu, cuda = ({p.name for p in components.kernel_files(device)} for device in ("cpu", "cuda"))
    assert {"rows_tuning.py", "qigen_gemv.py", "bcq_gemv.py", "tiles.py"} <= cpu - cuda
    assert {"choice.py", "launcher.py", "binary_tiles.py", "common.cuh"} <= cuda - cpu


@pytest.mark.parametrize(("change", "moves"), [({"join": "\n"}, True), ({"description": "other"}, False)])  # fmt: skip
def test_what_a_protocol_does_is_in_its_fingerprint(change, moves, monkeypatch) -> None:
    before = components.fingerprint_of("protocol/ptb")
    rule = dataclasses.replace(protocols.PROTOCOLS["ptb"], **change)
    monkeypatch.setitem(protocols.PROTOCOLS, "ptb", rule)
    assert (components.fingerprint_of.__wrapped__("protocol/ptb") != before) is moves


def test_the_source_of_a_method_from_outside_counts(tmp_path, monkeypatch) -> None:
    own_method(tmp_path, monkeypatch, "first_method", 1)
    own_method(tmp_path, monkeypatch, "same_method", 1, "Other words.")
    own_method(tmp_path, monkeypatch, "other_method", 2)
    names = [f"method/{name}_method" for name in ("first", "same", "other")]
    first, same, other = (components.versions(name)[name] for name in names)
    assert first.startswith("3+")
    assert first == same != other
    assert "method/first_method" not in components.every_name()


def test_a_method_without_a_file_is_refused(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "typed_in", types.ModuleType("typed_in"))
    register(monkeypatch, "typed_in", type("Own", (), {"version": 1, "__module__": "typed_in"}))
    refused("has no source file", components.versions, "method/typed_in")


def test_a_method_without_a_version_is_refused(tmp_path, monkeypatch) -> None:
    own_method(tmp_path, monkeypatch, "bare_method", 1)
    monkeypatch.delattr(registry.lookup("method", "bare_method"), "version")
    refused("declares no version", components.version, "method/bare_method")


MODULE = PACKAGE / "quantizers" / "rtn.py"
C = """/* A block. */
{# of a template #}
#define A 1 // first
static int f(int x) { return x + A; }
const char *s = "/* no comment */ // none";
"""


def print_of(folder, text: str, name: str = "rtn.py") -> str:
    (folder / name).write_text(text)
    return fingerprint.fingerprint([folder / name])


@pytest.mark.parametrize(("before", "after", "moves"), [
    ('"""Round-to-nearest (RTN)', '"""RTN', False),  # the module's docstring
    ('"""[N, K] float -> UniformTensor', '"""A tensor', False),  # a method's
    ("return UniformTensor(", "# as it is\n        return UniformTensor(", False),
    ("from lutlab.base.lazy import torch", "from lutlab.base.lazy import np, torch", False),
    ("import Bits, blocks, check_bits", "import blocks, Bits, check_bits", False),
    ("rows, in_features = weight.shape", "rows, in_features = (\n            weight.shape\n        )", False),
    ("2**q - 1)", "2**q - 2)", True),
    ("2**q - 1)", "2.0**q - 1)", True),
    ('scale_dtype: ScaleDtype = "fp16"', 'scale_dtype: ScaleDtype = "fp32"', True),
    ("blocks(weight, g)", "blocks(weight, -1)", True),
    ("block.amin(dim=2)", "-block.amin(dim=2)", True),
    ("q, g = check_bits(q), check_group_size(g)\n", "\n", True),
])  # fmt: skip
def test_computations_move_it_and_words_do_not(before, after, moves, tmp_path) -> None:
    text = MODULE.read_text()
    assert text.count(before) == 1
    changed = print_of(tmp_path, text.replace(before, after), "other.py")
    assert (print_of(tmp_path, text) != changed) is moves


def test_an_errors_text_leaves_it_and_its_condition_does_not() -> None:
    text = "if x:\n    raise ValueError('wrong')"
    assert plain_python(text) == plain_python(text.replace("wrong", "give another"))
    assert plain_python(text) != plain_python(text.replace("if x", "if not x"))


def test_none_and_nothing_are_not_the_same() -> None:
    texts = ["x = None", "x = 0", "x = False", "x = ''", "x = b''", "x = []", "def f(x=None): ..."]
    assert len(set(map(plain_python, texts))) == len(texts)


def test_comments_and_blanks_of_c_leave_it() -> None:
    same = C.replace("/* A block. */", "/* Two\n * blocks. */").replace("// first", "")
    same = same.replace("{# of a template #}\n", "").replace("int x", "int   x")
    assert plain_c(same) == plain_c(C)
    assert '"/* no comment */ // none"' in plain_c(C)
    assert "#define A 1\nstatic" in plain_c(C)


@pytest.mark.parametrize(("before", "after"), [("x + A", "x - A"), ("A 1", "A 2"), ("/* no", "/* a")])  # fmt: skip
def test_other_c_moves_it(before: str, after: str) -> None:
    assert plain_c(C.replace(before, after)) != plain_c(C)


def test_other_data_and_another_file_move_it(tmp_path) -> None:
    prints = {print_of(tmp_path, "x = 1", "a.py"), print_of(tmp_path, "x = 2", "b.py")}
    both = [tmp_path / "a.py", tmp_path / "b.py"]
    prints |= {fingerprint.fingerprint(both), fingerprint.fingerprint(both[:1], "data")}
    assert len(prints) == 4


@pytest.mark.parametrize(("source", "needs", "ignores"), [
    ("quantizers/rtn.py", {"quantizers/grid.py", "base/groups.py"}, "quantizers/gptq.py"),
    ("quantizers/gptq_bcq.py", {"quantizers/compensation.py", "quantizers/alternating.py"}, "quantizers/awq.py"),
])  # fmt: skip
def test_imports_are_followed_within_rooms(source, needs, ignores) -> None:
    files = fingerprint.with_imports([PACKAGE / source], ("quantizers", "base.groups"))
    names = {path.relative_to(PACKAGE).as_posix() for path in files}
    assert {source} | needs <= names
    assert ignores not in names
    assert {name.partition("/")[0] for name in names} == {"quantizers", "base"}
