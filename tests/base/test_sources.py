"""conf, experiments and kernels are found in a checkout and in a wheel; tests/installed.sh uses a real wheel."""

import re

from tests.base.refusals import refused
from tests.conftest import ROOT

from lutlab.base import sources


def test_a_checkout_has_them_at_its_top():
    assert sources.checkout() == ROOT
    assert sources.folder("conf") == ROOT / "conf"


def test_a_wheel_has_them_beside_the_modules(tmp_path, monkeypatch):
    (tmp_path / "share" / "conf").mkdir(parents=True)
    monkeypatch.setattr(sources, "_SHARE", tmp_path / "share")
    assert sources.checkout() is None
    assert sources.folder("conf") == tmp_path / "share" / "conf"


def test_a_copy_without_them_is_refused(tmp_path, monkeypatch):
    package = tmp_path / "somewhere" / "lutlab"
    monkeypatch.setattr(sources, "_PACKAGE", package)
    refused(r"kernels/ is not at .*install lutlab with pip", sources.folder, "kernels")


def test_pyproject_puts_each_folder_that_is_asked_for_into_the_wheel():
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    used = set(re.findall(r'sources\.folder\("(\w+)"\)', "".join(texts)))
    project = (ROOT / "pyproject.toml").read_text()
    carried = re.findall(r'^(\w+) = "lutlab/share/(\w+)"$', project, re.MULTILINE)
    assert {here for here, there in carried if here == there} == used
    assert len(carried) == len(used) == 3
