"""What was found out once is found again where all that decides it is the same and the file is whole."""

import pytest

from lutlab.kernels.codegen import isa, templates
from lutlab.kernels.cpu import bcq_gemv as bcq


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path))
    return tmp_path / "known"


def test_a_source_is_rendered_once_and_again_when_a_template_changes(cache, monkeypatch):
    calls = []

    @templates.cached
    def source(one, *, q):
        calls.append(q)
        return f"{one.name} {q}"

    on = isa.ISAS[-1]
    assert source(on, q=2) == "portable 2"
    source.cache_clear()  # as another process
    assert source(on, q=2) == "portable 2"
    assert calls == [2]
    monkeypatch.setattr(templates, "_generators", lambda root: "other templates")
    source.cache_clear()
    assert source(on, q=2) == "portable 2"
    assert source(on, q=3) == "portable 3"
    assert calls == [2, 2, 3]


def test_kept_sources_are_those_rendered(cache):
    arguments = {"q": 2, "groups_in_unit": 1, "alpha": "f16", "offset": None}
    text = bcq.source(isa.ISAS[-1], **arguments)
    bcq.source.cache_clear()
    assert (
        bcq.source(isa.ISAS[-1], **arguments)
        == text
        == bcq.source.__wrapped__(isa.ISAS[-1], **arguments)
    )
    assert len(list(cache.glob("source-*"))) == 1


def test_features_do_not_hang_on_what_varies(tmp_path):
    first = "vendor_id : x\nflags : fpu avx2\ncpu MHz : {}\nbogomips : {}\n"
    for n, text in enumerate((first.format(1, 2), first.format(3, 4) + "\nflags : of the next\n")):
        (tmp_path / f"{n}").write_text(text)
    read = [isa._of_first_cpu(tmp_path / name) for name in ("0", "1", "none")]
    assert read == ["vendor_id : x\nflags : fpu avx2\n"] * 2 + [""]
