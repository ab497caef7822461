"""Every notebook runs from top to bottom, reads `lutlab.results`, asserts, and is committed with its outputs."""

import re
import sys

import nbformat
import pytest
from tests.conftest import ROOT, locked

from tools.notebooks import NOTEBOOKS, executed, texts

NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")
# Some numbers are measured on Python's documentation, and each version of Python brings another one.
PYTHON = (3, 11)
of_each = pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda p: p.stem)


def words(text):
    """A text without its numbers, and without blanks and dots, by which pandas cuts and aligns tables."""
    return re.sub(r"[\s.\\]+", " ", NUMBER.sub("#", text))


def numbers(text):
    return [float(number.replace(",", "").rstrip(".")) for number in NUMBER.findall(text)]


@pytest.mark.slow
@of_each
def test_a_run_gives_the_outputs_that_are_committed(path):
    """Other instruction sets round otherwise, so that numbers need only be near."""
    committed = texts(nbformat.read(path, as_version=4))
    today = texts(executed(path))  # raises with the traceback of a cell
    assert [words(text) for text in today] == [words(text) for text in committed]
    if sys.version_info[:2] == PYTHON and locked():
        for ours, theirs in zip(today, committed, strict=True):
            assert numbers(ours) == pytest.approx(numbers(theirs), rel=0.1, abs=0.02)


@of_each
def test_a_notebook_is_committed_with_outputs_of_no_machine(path):
    text = path.read_text(encoding="utf-8")
    cells = [cell for cell in nbformat.reads(text, as_version=4).cells if cell.cell_type == "code"]
    outputs = [output for cell in cells for output in cell.outputs]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert not [output for output in outputs if output.output_type == "error"]
    assert len(text) < 300_000
    assert not re.search(rf"{re.escape(str(ROOT))}|/(tmp|home|root)/", text)
    code = "\n".join(cell.source for cell in cells)
    assert "lutlab.results(" in code
    assert "assert " in code
