"""Every notebook runs from top to bottom, reads `lutlab.results`, asserts, and is committed without outputs."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_runs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": path.parent}})
    client.execute()  # raises CellExecutionError with the cell's traceback
    kinds = {
        kind
        for cell in notebook.cells
        for o in cell.get("outputs", [])
        for kind in o.get("data", {})
    }
    assert "image/png" in kinds


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_notebook_is_committed_without_outputs(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert not [c for c in cells if c.get("outputs") or c.get("execution_count")]
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code")
    assert "lutlab.results(" in code
    assert "assert " in code
