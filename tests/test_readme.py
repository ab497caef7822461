"""The README's commands are the ones CI runs, and what they name exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_ci_runs_the_readmes_test_command_to_the_letter() -> None:
    commands = [line for line in README.splitlines() if line.startswith("python3 -m venv")]
    assert len(commands) == 2
    install, _, test = commands[1].rpartition(" && ")
    script = (ROOT / ".ci" / "run").read_text().splitlines()
    assert install in script
    assert test in script


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_environment_names_no_versions_of_its_own() -> None:
    """pyproject.toml is the one list of versions."""
    environment = (ROOT / "environment.yml").read_text()
    assert "-e .[dev]" in environment
    assert "torch" not in environment
