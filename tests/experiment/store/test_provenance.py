"""What decides a number is part of its cell's name."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import lutlab
from lutlab import sources
from lutlab.errors import LutlabError
from lutlab.experiment.store.provenance import (
    _CLOCKS,
    _DECIDING,
    _ENTRANCES,
    _SEARCHING,
    _dirty,
    _git,
    _kernels,
    _with_imports,
    code_sha256,
    kernels_sha256,
    search_sha256,
)

PACKAGE = Path(lutlab.__file__).parent


def test_every_pattern_finds_sources() -> None:
    entrances = [path for paths in _ENTRANCES.values() for path in paths]
    for pattern in (*_DECIDING, *_SEARCHING, *_CLOCKS, *entrances):
        assert list(PACKAGE.glob(pattern)), pattern


def test_the_search_has_a_name_of_its_own() -> None:
    assert code_sha256() != search_sha256()
    assert len(code_sha256()) == len(search_sha256()) == 64


def test_kernels_of_each_device_have_a_name_of_their_own() -> None:
    assert len({kernels_sha256("cpu"), kernels_sha256("cuda"), code_sha256()}) == 3


@pytest.mark.parametrize(
    ("source", "devices"),
    [
        ("kernels/gpu/lut_gemv/launcher.py", {"cuda", "spread"}),
        ("kernels/gpu/lut_gemv/paper.py", {"cuda", "spread"}),
        ("kernels/gpu/choice.py", {"cuda", "spread"}),
        ("codegen/cuda.py", {"cuda", "spread"}),
        ("formats/binary_tiles.py", {"cuda", "spread"}),
        ("kernels/cpu/rows_tuning.py", {"cpu"}),
        ("kernels/cpu/qigen_gemv.py", {"cpu"}),
        ("codegen/tiles.py", {"cpu"}),
        ("formats/bcq_rows.py", {"cpu"}),
        ("formats/row_blocks.py", {"cpu"}),
        ("timing.py", {"cpu", "cuda", "spread"}),
        ("energy.py", {"cpu", "cuda", "spread"}),
        ("quantizers/rtn.py", set()),
    ],
)
def test_a_change_makes_speeds_of_its_devices_new(source, devices, monkeypatch) -> None:
    everywhere = ("cpu", "cuda", "spread")
    before = {device: kernels_sha256.__wrapped__(device) for device in everywhere}
    read = Path.read_bytes
    changed = PACKAGE / source
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + b"#" * (path == changed))
    now = {device: kernels_sha256.__wrapped__(device) for device in everywhere}
    assert {device for device in everywhere if before[device] != now[device]} == devices


def test_no_kernel_is_forgotten() -> None:
    found = _kernels("cpu") | _kernels("cuda")
    sources = {*PACKAGE.glob("kernels/**/*.py"), *PACKAGE.glob("codegen/*.py")}
    assert {path.name for path in sources - found} == {"reference.py"}, "which tests compare with"


def test_an_accuracy_does_not_rest_on_kernels() -> None:
    found = {path.relative_to(PACKAGE).parts[0] for path in _with_imports({PACKAGE / "modules.py"})}
    assert found == {"modules.py", "formats", "quantizers"} & found


@pytest.mark.parametrize(
    ("source", "needs", "ignores"),
    [
        ("quantizers/rtn.py", {"quantizers/grid.py"}, "quantizers/gptq.py"),
        ("quantizers/gptq_bcq.py", {"quantizers/from_grid.py", "quantizers/sorted_groups.py"}, "quantizers/awq.py"),
        ("evaluators/lambada.py", {"evaluators/__init__.py", "evaluators/scoring.py"}, "evaluators/zero_shot.py"),
    ],
)  # fmt: skip
def test_a_cell_rests_on_what_its_method_and_evaluator_import(source, needs, ignores) -> None:
    found = {path.relative_to(PACKAGE).as_posix() for path in _with_imports({PACKAGE / source})}
    assert {source} | needs <= found
    assert ignores not in found


def test_methods_and_evaluators_have_names_of_their_own() -> None:
    modules = [
        ("lutlab.quantizers.rtn", "lutlab.evaluators.perplexity"),
        ("lutlab.quantizers.gptq", "lutlab.evaluators.perplexity"),
        ("lutlab.quantizers.rtn", "lutlab.evaluators.lambada"),
        (),
    ]
    assert len({code_sha256(*pair) for pair in modules}) == len(modules)


def test_a_method_in_a_file_outside_of_lutlab_counts(tmp_path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "one_method.py").write_text("LEVELS = 1\n")
    (tmp_path / "other_method.py").write_text("LEVELS = 2\n")
    assert code_sha256("one_method") != code_sha256("other_method") != code_sha256()


def test_a_method_without_a_file_is_refused(monkeypatch) -> None:
    import sys
    import types

    monkeypatch.setitem(sys.modules, "typed_in", types.ModuleType("typed_in"))
    with pytest.raises(LutlabError, match="has no source file"):
        code_sha256("typed_in")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with one file in each folder, which lutlab takes for its own."""
    monkeypatch.setattr(sources, "checkout", lambda: tmp_path)
    for name in ("src", "kernels", "experiments", "conf", "docs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("as committed\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@localhost"]
    for arguments in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize("folder", ["src", "kernels", "experiments", "conf"])
def test_a_changed_file_makes_the_tree_dirty(repository, folder) -> None:
    assert _dirty() is False
    (repository / "docs" / "file").write_text("changed: decides no number\n")
    assert _dirty() is False
    (repository / folder / "file").write_text("changed\n")
    assert _dirty() is True


def test_a_wheel_has_no_commit_even_inside_a_repository(repository, monkeypatch) -> None:
    assert len(_git("rev-parse", "HEAD")) == 40
    installed = repository / "environment" / "lib"
    installed.mkdir(parents=True)
    for checkout in (None, installed):
        monkeypatch.setattr(sources, "checkout", lambda found=checkout: found)
        assert _git("rev-parse", "HEAD") is None
        assert _dirty() is None
