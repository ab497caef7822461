"""Argument lines of docstrings begin with a noun, and lines of errors say what is wrong (CONTRIBUTING.md)."""

import ast
import re

import pytest
from tests.conftest import ROOT

SECTION = re.compile(r"^(Args|Attributes|Raises):\n((?: .*\n|\n)+)", re.MULTILINE)
ENTRY = re.compile(r"^ {4}(\S.*?): ((?:.|\n {5,})*)", re.MULTILINE)
# After an argument's name they make half a sentence, as in "folder: of the model", or name no thing.
NO_NOUN = re.compile(r"(of|as|what|how|where|whose|which|that|with|told|asked|said|kept)\b|\S+$")
ELSEWHERE = re.compile(r"as (of )?[\w.`]+(\.|;|,|$)")  # "LutlabError: as load."


def faults(docstring):
    """The lines that break the rules."""
    for section, body in SECTION.findall(docstring + "\n"):
        rule = ELSEWHERE if section == "Raises" else NO_NOUN
        for name, text in ENTRY.findall(body):
            if rule.match(text):
                yield f"{name}: {' '.join(text.split())}"


def test_lines_of_arguments_begin_with_a_noun():
    lines = []
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "tools").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                lines += [f"{path}: {line}" for line in faults(ast.get_docstring(node) or "")]
    assert lines == []


@pytest.mark.parametrize(("section", "count"), [
    ("Args:\n    a: of the model.\n    b: 2 of\n        them.\n    c: as in f.", 2),
    ("Attributes:\n    a: [N].\n    b: [N] or None.", 1),
    ("Raises:\n    LutlabError: as load.\n    OSError: as a disk does that is full.", 1),
])  # fmt: skip
def test_the_rules_find_what_breaks_them(section, count):
    docstring = f"A sentence.\n\n{section}\n\nReturns:\n    of no rule: of none."
    assert len([*faults(docstring)]) == count
