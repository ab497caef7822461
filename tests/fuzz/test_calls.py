"""A sample of the hostile calls: `python -m tests.fuzz.calls` makes as many as one likes."""

from __future__ import annotations

import pytest
from tests.fuzz.calls import broken


# of torch's quantized tensors, one of which is given as a weight
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_hostile_calls_are_refused_or_right() -> None:
    said: list[str] = []
    found, counts = broken(200, 0, said.append)
    assert not found, "\n".join(said)
    assert counts["refused"] > 60
    assert counts["right"] > 30
