"""Pages of the documentation for every artifact and notebook: `make docs`, or `python -m tools.gallery`.

    docs/artifacts/index.md                            all of experiments/, paper by paper
    docs/artifacts/<machine>/<paper>/<artifact>.md     a published artifact: its table.md and its figure
    docs/artifacts/notebooks/index.md, <name>.md       the notebooks with the outputs that are committed

Written anew each time, ignored by git; nothing is measured.
"""

from __future__ import annotations

import base64
import itertools
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import nbformat

from lutlab.experiment.artifact.artifact import Artifact, load_artifact
from lutlab.experiment.artifact.catalog import artifact_groups, cite, program, short_name
from lutlab.experiment.report import figure, published
from lutlab.experiment.run.ending import ended
from tools.notebooks import NOTEBOOKS
from tools.published_list import PUBLISHED, read_list

GALLERY = Path("docs") / "artifacts"
_INTRODUCTION = """# Artifacts

A table or figure of a paper is a file of `experiments/`, with every number that the paper prints and its claims as
predicates. *Published* leads to what was measured for it, a page a machine. A number on a stand-in never stands for the
paper's ([concepts](../concepts.md#stand-ins)).
"""


def write(folder: Path = GALLERY) -> list[Path]:
    """Write the pages below a folder, which is emptied before; returns them.

    Raises:
        LutlabError: the current folder is not a checkout, or a published file is damaged.
    """
    commands = {(v.artifact, v.name): v.command for v in read_list()}
    artifacts = {name: load_artifact(name) for name in artifact_groups()["all"]}
    shutil.rmtree(folder, ignore_errors=True)
    places: dict[str, list[str]] = {}  # artifact -> machines
    pages = []
    for table in sorted(PUBLISHED.glob(f"*/*/*/{published.TABLE}")):
        machine, name = table.parts[-4], "/".join(table.parts[-3:-1])
        places.setdefault(name, []).append(machine)
        page = folder / machine / f"{name}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(table, page.with_suffix(".csv"))
        lines = [f"[table.csv]({page.stem}.csv) · records: `{table.with_name('records.jsonl')}`"]
        if artifacts[name].figure is not None:
            mine = {variant: line for (of, variant), line in commands.items() if of == name}
            lines.insert(0, _figure(table.parent, page, mine))
        title, _, rest = table.with_name(published.PAGE).read_text("utf-8").partition("\n")
        page.write_text("\n\n".join([title, *lines]) + f"\n{rest}", encoding="utf-8")
        pages.append(page)
    index = folder / "index.md"
    index.write_text(f"{_INTRODUCTION}\n{_papers(artifacts, places)}\n", encoding="utf-8")
    return [index, *pages, *_notebooks(folder / "notebooks")]


def _notebooks(folder: Path) -> list[Path]:
    """A page for each notebook, and one that lists them with their last pictures."""
    folder.mkdir()
    lines, pages = ["# Notebooks", "Each with the outputs of `make notebooks`."], []
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        shutil.copyfile(path, folder / path.name)
        parts = [*_parts(nbformat.read(path, as_version=4).cells, folder, path.stem)]
        page = folder / f"{path.stem}.md"
        page.write_text("\n\n".join([*parts, f"[{path.name}]({path.name})"]) + "\n", "utf-8")
        title = parts[0].partition("\n")[0].removeprefix("# ")
        picture = next(part for part in reversed(parts) if part.startswith("!["))
        lines += [f"## [{title}]({page.name})", picture]
        pages.append(page)
    index = folder / "index.md"
    index.write_text("\n\n".join(lines) + "\n", encoding="utf-8")
    return [index, *pages]


def _parts(cells: Sequence[nbformat.NotebookNode], folder: Path, name: str) -> Iterator[str]:
    """Markdown of each cell and output of a notebook; pictures are written beside its page."""
    for at, cell in enumerate(cells):
        if cell.cell_type == "markdown":
            yield cell.source.replace(".ipynb)", ".md)").replace("](../docs/", "](../../")
            continue
        yield f"```python\n{cell.source}\n```"
        for output in cell.outputs:
            data = output.get("data", {})
            if "image/png" in data:
                drawing = folder / f"{name}-{at}.png"
                drawing.write_bytes(base64.b64decode(data["image/png"]))
                yield f"![a figure of {name}]({drawing.name})"
            elif "text/html" in data:
                yield data["text/html"]
            else:
                yield f"```text\n{output.get('text') or data['text/plain']}\n```"


def _figure(source: Path, page: Path, commands: Mapping[str, str]) -> str:
    """Draw the first variant from the records, beside its page (`make report` draws all); returns what shows it."""
    variant, table = next(iter(published.read(source).tables(commands).items()))
    drawing = page.with_suffix(".svg")
    drawing.write_bytes(figure.render(table)[0])
    return f"![{table.title}]({drawing.name})\n\n*{variant}: `{table.command}`*"


def _papers(artifacts: Mapping[str, Artifact], places: Mapping[str, list[str]]) -> str:
    """A section a paper: its artifacts, where each is published, and its command."""
    sections = []
    for paper, names in itertools.groupby(artifacts, key=lambda name: name.partition("/")[0]):
        found = list(names)
        cited = dict.fromkeys(cite(artifacts[name].citation) for name in found)
        rows = [
            f"| {artifacts[name].title} "
            f"| {', '.join(f'[{m}]({m}/{name}.md)' for m in places.get(name, [])) or 'not measured yet'} "
            f"| `{program()} +exp={short_name(name)}` |"
            for name in found
        ]
        head = "| artifact | published | command |\n|---|---|---|\n"
        sections.append(f"## {paper}\n\n{'; '.join(cited)}\n\n{head}" + "\n".join(rows))
    return "\n\n".join(sections)


def main() -> int:
    """The command; returns the exit code: 0, or 2 for a mistake."""
    return ended(lambda: print(f"{len(write())} pages in {GALLERY}"))


if __name__ == "__main__":
    sys.exit(main())
