"""What is kept is found again for the same bytes only, and never when its file is damaged."""

from lutlab.data.kept import recall


def test_found_once_for_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path))
    calls = []

    def find():
        calls.append(1)
        return {"é\udc80": ["a", len(calls)]}

    first = recall("words", [b"ab", b"c"], find)
    assert recall("words", [b"ab", b"c"], find) == first == {"é\udc80": ["a", 1]}
    assert recall("words", [b"a", b"bc"], find) == {"é\udc80": ["a", 2]}
    (file, _) = sorted((tmp_path / "texts").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    file.write_bytes(file.read_bytes().replace(b'"a"', b'"b"'))
    assert recall("words", [b"ab", b"c"], find) == {"é\udc80": ["a", 3]}
    assert file.with_name(f"{file.name}.damaged").is_file()
    assert recall("words", [b"ab", b"c"], find) == {"é\udc80": ["a", 3]}


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LUTLAB_CACHE", str(tmp_path / "file"))
    assert [recall("words", [b"a"], lambda n=n: n) for n in (1, 2)] == [1, 2]
