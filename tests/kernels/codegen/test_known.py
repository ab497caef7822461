"""What was found out once is found again where all that decides it is the same and the file is whole."""

import stat

import pytest

from lutlab.kernels.codegen import bcq, isa, templates
from lutlab.kernels.codegen.known import known


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path))
    return tmp_path / "codegen" / "known"


def test_found_once_for_the_same_and_again_for_another(cache):
    assert known("answer", ["a", 1], lambda: 42) == 42
    assert known("answer", ["a", 1], lambda: pytest.fail("known")) == 42
    assert known("answer", ["a", 2], lambda: [43]) == [43]
    assert known("other", ["a", 1], lambda: 44) == 44
    modes = {stat.S_IMODE(path.stat().st_mode) for path in cache.iterdir()}
    assert modes == {0o600}


@pytest.mark.parametrize("harm", ["changed", "of another key", "writable by others"])
def test_a_file_that_is_not_as_it_was_written_is_set_aside(cache, caplog, harm):
    known("answer", [1], lambda: 42)
    (path,) = cache.iterdir()
    if harm == "changed":
        path.write_bytes(path.read_bytes().replace(b"42", b"43"))
    if harm == "of another key":
        known("answer", [2], lambda: 43)
        path.write_bytes(next(p for p in cache.iterdir() if p != path).read_bytes())
    if harm == "writable by others":
        path.chmod(0o666)
    assert known("answer", [1], lambda: 44) == 44
    assert "is damaged" in caplog.text
    assert known("answer", [1], lambda: pytest.fail("known")) == 44


def test_a_source_is_rendered_once_and_again_when_a_template_changes(cache, monkeypatch):
    calls = []

    @templates.kept
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
