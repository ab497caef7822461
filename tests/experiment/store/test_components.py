"""Every part that decides a number has a name, a version and sources."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.experiment.store import components
from lutlab.experiment.store.components import (
    every_name,
    fingerprint_of,
    kernel_files,
    kernels_fingerprint,
    version,
    versions,
)
from lutlab.experiment.store.fingerprint import PACKAGE
from lutlab.kernels.codegen import cuda, templates

OWN = """
from typing import ClassVar
class Own:
    version: ClassVar[int] = 3
    levels = {levels}
"""


def own_method(folder: Path, monkeypatch, name: str, levels: int, words: str = "") -> None:
    """Register a method that stands in a file outside of lutlab."""
    (folder / f"{name}.py").write_text(f'"""{words}"""' + OWN.format(levels=levels))
    monkeypatch.syspath_prepend(folder)
    registry.classes("method")
    cls = __import__(name).Own
    monkeypatch.setitem(registry._CLASSES["method"], name, cls)


def test_every_registered_class_is_a_component() -> None:
    names = set(every_name())
    for group in components._ROOMS:
        ours = {n for n, c in registry.classes(group).items() if c.__module__.startswith("lutlab.")}
        assert {f"{group}/{name}" for name in ours} <= names


def test_versions_are_whole_numbers() -> None:
    assert {type(version(name)) for name in every_name()} == {int}
    assert versions("driver", "method/rtn") == {"driver": 1, "method/rtn": 1}


def test_every_pattern_finds_sources() -> None:
    for name, part in components._PARTS.items():
        for pattern in part.roots:
            assert list(PACKAGE.glob(pattern)), (name, pattern)
        assert all(path.exists() for path in part.sources), name


def test_no_kernel_is_forgotten() -> None:
    found = kernel_files("cpu") | kernel_files("cuda")
    ours = {path for path in PACKAGE.glob("kernels/**/*.py") if path.name != "__init__.py"}
    assert ours <= found
    texts = {p for root in (templates.ROOT, cuda.ROOT) for p in root.rglob("*.[ch]*")}
    assert {path.name for path in texts - found} == {"ceilings.cu"}, "which benchmarks run"


def test_devices_have_kernels_of_their_own() -> None:
    assert kernels_fingerprint("cpu") != kernels_fingerprint("cuda")
    assert kernels_fingerprint("spread") == kernels_fingerprint("cuda")
    own = {d: {p.name for p in kernel_files(d)} for d in ("cpu", "cuda")}
    assert {"rows_tuning.py", "qigen_gemv.py", "bcq_gemv.py", "tiles.py"} <= own["cpu"] - own[
        "cuda"
    ]
    assert {"choice.py", "launcher.py", "binary_tiles.py", "common.cuh"} <= own["cuda"] - own["cpu"]


def test_what_a_protocol_does_is_in_its_fingerprint_and_what_it_says_is_not(monkeypatch) -> None:
    import dataclasses

    from lutlab.data import protocols

    before = fingerprint_of("protocol/ptb")
    for change, moves in (({"join": "\n"}, True), ({"description": "other words"}, False)):
        rule = dataclasses.replace(protocols.PROTOCOLS["ptb"], **change)
        monkeypatch.setitem(protocols.PROTOCOLS, "ptb", rule)
        assert (fingerprint_of.__wrapped__("protocol/ptb") != before) is moves
        monkeypatch.undo()


def test_the_source_of_a_method_from_outside_counts(tmp_path: Path, monkeypatch) -> None:
    own_method(tmp_path, monkeypatch, "one_method", 1)
    own_method(tmp_path, monkeypatch, "same_method", 1, "Other words.")
    own_method(tmp_path, monkeypatch, "other_method", 2)
    said = {
        n: versions(f"method/{n}_method")[f"method/{n}_method"] for n in ("one", "same", "other")
    }
    assert said["one"].startswith("3+")
    assert said["one"] == said["same"] != said["other"]
    assert "method/one_method" not in every_name()


def test_a_method_without_a_file_is_refused(monkeypatch) -> None:
    module = types.ModuleType("typed_in")
    monkeypatch.setitem(sys.modules, "typed_in", module)
    registry.classes("method")
    cls = type("Own", (), {"version": 1, "__module__": "typed_in"})
    monkeypatch.setitem(registry._CLASSES["method"], "typed_in", cls)
    with pytest.raises(LutlabError, match="has no source file"):
        versions("method/typed_in")


def test_a_method_without_a_version_is_refused(tmp_path: Path, monkeypatch) -> None:
    own_method(tmp_path, monkeypatch, "bare_method", 1)
    monkeypatch.delattr(registry.lookup("method", "bare_method"), "version")
    with pytest.raises(LutlabError, match="declares no version"):
        version("method/bare_method")
