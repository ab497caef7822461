"""A fingerprint moves with what is computed, and with nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from lutlab.experiment.store.fingerprint import (
    PACKAGE,
    fingerprint,
    plain_c,
    plain_python,
    with_imports,
)

MODULE = PACKAGE / "quantizers" / "rtn.py"
C = """/* A block. */
{# of a template #}
#define A 1 // first
static int f(int x) { return x + A; }
const char *s = "/* no comment */ // none";
"""


def of_copy(folder: Path, text: str, name: str = "rtn.py") -> str:
    """The fingerprint of a text as a module."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return fingerprint([path])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"""Round-to-nearest (RTN)', '"""RTN'),  # the module's docstring
        ('"""[N, K] float -> UniformTensor', '"""A tensor'),  # a method's
        ("return UniformTensor(", "# as it is\n        return UniformTensor("),
        ("from lutlab.base.lazy import torch", "from lutlab.base.lazy import np, torch"),
        ("import Bits, blocks, check_bits", "import blocks, Bits, check_bits"),
        ("rows, in_features = weight.shape", "rows, in_features = (\n            weight.shape\n        )"),
    ],
)  # fmt: skip
def test_words_leave_it(before: str, after: str, tmp_path: Path) -> None:
    text = MODULE.read_text()
    assert text.count(before) == 1
    changed = text.replace(before, after)
    assert of_copy(tmp_path / "a", text) == of_copy(tmp_path / "b", changed, "other.py")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("2**q - 1)", "2**q - 2)"),
        ("2**q - 1)", "2.0**q - 1)"),
        ('scale_dtype: ScaleDtype = "fp16"', 'scale_dtype: ScaleDtype = "fp32"'),
        ("blocks(weight, g)", "blocks(weight, -1)"),
        ("block.amin(dim=2)", "-block.amin(dim=2)"),
        ("q, g = check_bits(q), check_group_size(g)\n", "\n"),
    ],
)
def test_computations_move_it(before: str, after: str, tmp_path: Path) -> None:
    text = MODULE.read_text()
    assert text.count(before) == 1
    changed = text.replace(before, after)
    assert of_copy(tmp_path / "a", text) != of_copy(tmp_path / "b", changed)


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


@pytest.mark.parametrize(
    ("before", "after"), [("x + A", "x - A"), ("A 1", "A 2"), ("/* no", "/* a")]
)
def test_other_c_moves_it(before: str, after: str) -> None:
    assert plain_c(C.replace(before, after)) != plain_c(C)


def test_other_data_and_another_file_move_it(tmp_path: Path) -> None:
    one = of_copy(tmp_path, "x = 1", "a.py")
    two = tmp_path / "b.py"
    two.write_text("x = 2")
    assert (
        len({one, fingerprint([tmp_path / "a.py", two]), fingerprint([tmp_path / "a.py"], "data")})
        == 3
    )


@pytest.mark.parametrize(
    ("source", "needs", "ignores"),
    [
        ("quantizers/rtn.py", {"quantizers/grid.py", "base/groups.py"}, "quantizers/gptq.py"),
        ("quantizers/gptq_bcq.py", {"quantizers/compensation.py", "quantizers/alternating.py"}, "quantizers/awq.py"),
    ],
)  # fmt: skip
def test_imports_are_followed_within_rooms(source, needs, ignores) -> None:
    found = with_imports([PACKAGE / source], ("quantizers", "base.groups"))
    names = {path.relative_to(PACKAGE).as_posix() for path in found}
    assert {source} | needs <= names
    assert ignores not in names
    assert {name.partition("/")[0] for name in names} == {"quantizers", "base"}
