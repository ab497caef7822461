"""Execute notebooks and write their outputs into them: `make notebooks`, or `python -m tools.notebooks [<name> ...]`.

What differs from call to call is left out: times, progress and warnings. Tables are kept as text and HTML, pictures as
PNG of few colors.
"""

from __future__ import annotations

import argparse
import base64
import io
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

from lutlab.experiment.run.ending import ended

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
_KINDS = ("text/plain", "text/html", "image/png")
_COLORS = 64  # of a picture: a fifth of the bytes, and no difference that an eye sees


def executed(path: Path) -> nbformat.NotebookNode:
    """A notebook with the outputs of its cells, run from top to bottom in its own folder.

    Raises:
        CellExecutionError: a cell raised, with its traceback.
    """
    notebook = nbformat.read(path, as_version=4)
    metadata = notebook.metadata.copy()
    where = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=300, resources=where, record_timing=False).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [*_shown(cell.outputs)]
    notebook.metadata = metadata  # without the version of this Python
    return notebook


def _shown(outputs: Sequence[nbformat.NotebookNode]) -> Iterator[nbformat.NotebookNode]:
    """Outputs without standard error, each in the kinds that are kept; parts of one stream joined."""
    printed = "".join(output.text for output in outputs if output.get("name") == "stdout")
    if printed:
        yield nbformat.v4.new_output("stream", name="stdout", text=printed)
    for output in outputs:
        if "data" in output:
            output.data = {kind: output.data[kind] for kind in _KINDS if kind in output.data}
            if "image/png" in output.data:
                output.data["image/png"] = _with_few_colors(output.data["image/png"])
            if "text/html" in output.data:
                output.data["text/html"] = re.sub(
                    r"(?s)<style.*?</style>\s*", "", output.data["text/html"]
                )
            output.metadata = {}
            yield output


def _with_few_colors(picture: str) -> str:
    """A PNG in base64 with a palette."""
    smaller = io.BytesIO()
    image = Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB")
    image.quantize(_COLORS).save(smaller, "png", optimize=True)
    return base64.b64encode(smaller.getvalue()).decode()


def texts(notebook: nbformat.NotebookNode) -> list[str]:
    """What the cells of a notebook print or return, as text; a picture's text is left out."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [output.get("text") or output.get("data", {}) for output in outputs]
    return [
        entry if isinstance(entry, str) else entry["text/plain"]
        for entry in shown
        if isinstance(entry, str) or "image/png" not in entry
    ]


def write(names: Sequence[str]) -> None:
    """Execute notebooks, all without names, and write them with their outputs."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if not names or path.stem in names:
            nbformat.write(executed(path), path)
            print(f"{path.relative_to(NOTEBOOKS.parent)}: {path.stat().st_size / 1e3:.0f} kB")


def main() -> int:
    """The command; returns the exit code: 0, or 2 for a mistake."""
    parser = argparse.ArgumentParser(prog="tools.notebooks", description=__doc__)
    parser.add_argument("names", nargs="*", help="two_bits, …")
    names = parser.parse_args().names
    return ended(lambda: write(names))


if __name__ == "__main__":
    sys.exit(main())
