"""Long work tells how far it is, to whoever listens."""

from lutlab.base.progress import duration, heard, steps, tell


def test_only_a_listener_hears():
    stages = []
    tell("nobody listens")
    with heard(stages.append):
        assert list(steps("abc", "step")) == ["a", "b", "c"]
    tell("nobody listens any more")
    counts = [stage.partition(",")[0] for stage in stages]
    assert counts == ["step 1 of 3", "step 2 of 3", "step 3 of 3"]
    assert [duration(99), duration(180)] == ["99 s", "3 min"]
