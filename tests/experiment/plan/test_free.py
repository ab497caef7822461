"""The mark of a sweep's folder: whose report lies there."""

import pytest

from lutlab.experiment.plan import free


@pytest.mark.parametrize("damage", [b"", b"{}", b"[1]", b"[" * 100_000, b"\xff", None])
def test_a_damaged_mark_is_named_and_set_aside(damage, tmp_path, caplog):
    mark = tmp_path / free.MARK
    assert free._marked(mark) is None
    mark.mkdir() if damage is None else mark.write_bytes(damage)
    assert free._marked(mark) is None
    (line,) = caplog.messages
    assert "sweep.json is damaged" in line
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.json.damaged"]
    free.mark(tmp_path, (), "python run.py q=3")
    assert free._marked(mark)[1] == "python run.py q=3"
