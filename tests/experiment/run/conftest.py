"""Commands whose exit code is checked."""

import pytest
from tests.command_line import CommandLine


class Checked(CommandLine):
    """`command("q=3", …, code=0)`; what is refused has no traceback."""

    def __call__(self, *arguments, code=0):
        outcome = super().__call__(*arguments)
        assert outcome.code == code, outcome.err
        assert not code or "Traceback" not in outcome.err
        return outcome


@pytest.fixture
def command(tmp_path, monkeypatch, capfd):
    """run.py in this process, with results under tmp_path."""
    return Checked(tmp_path, monkeypatch, capfd)
