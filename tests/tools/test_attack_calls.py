"""A sample of the hostile calls: `python -m tools.attack.calls` makes as many as one likes."""

from __future__ import annotations

import pytest

from tools.attack.calls import broken


# torch's, of the kinds of tensors that are given: quantized, sparse
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_hostile_calls_are_refused_or_right() -> None:
    said: list[str] = []
    found, counts = broken(200, 0, said.append)
    assert not found, "\n".join(said)
    assert counts["refused"] > 60
    assert counts["right"] > 30
