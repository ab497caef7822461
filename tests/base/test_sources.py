"""conf, experiments and kernels are found in a checkout and in a wheel; tests/installed.sh uses a real wheel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.conftest import ROOT

from lutlab.base import sources
from lutlab.base.errors import LutlabError


def test_a_checkout_has_them_at_its_top() -> None:
    assert sources.checkout() == ROOT
    assert sources.folder("conf") == ROOT / "conf"


def test_a_wheel_has_them_beside_the_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "share" / "conf").mkdir(parents=True)
    monkeypatch.setattr(sources, "_SHARE", tmp_path / "share")
    assert sources.checkout() is None
    assert sources.folder("conf") == tmp_path / "share" / "conf"


def test_a_copy_without_them_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "somewhere" / "lutlab"
    monkeypatch.setattr(sources, "_PACKAGE", package)
    with pytest.raises(LutlabError, match=r"kernels/ is not at .*install lutlab with pip"):
        sources.folder("kernels")


def test_pyproject_puts_each_folder_that_is_asked_for_into_the_wheel() -> None:
    used = re.compile(r'sources\.folder\("(\w+)"\)')
    asked = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in used.findall(path.read_text(encoding="utf-8"))
    }
    carried = re.findall(
        r'^(\w+) = "lutlab/share/(\w+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert {here for here, there in carried if here == there} == asked
    assert len(carried) == len(asked) == 3
