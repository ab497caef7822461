"""The report as GitHub-flavoured Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from lutlab.experiment.report.parts import Grid, Layout


def render(layout: Layout) -> str:
    """The whole report as one Markdown text."""
    parts = [f"# {_escape(layout.title)}", _about(layout)]
    if layout.main.heads:
        parts += [
            _table(layout, layout.main, pairs=True),
            _list(filter(None, (layout.left_out, *layout.legend, *layout.footnotes))),
        ]
    if layout.reference.heads:
        parts += [
            "## Published, not measured here",
            _table(layout, layout.reference, pairs=False),
            _list(layout.reasons),
        ]
    if layout.claims:
        parts += ["## Claims of the paper", _claims(layout)]
    if layout.notes:
        parts += ["## Notes", _list(layout.notes)]
    if layout.provenance:
        lines = [f"{name}: {value}" for name, value in layout.provenance]
        parts += ["## Where the measured numbers come from", _list(lines)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _about(layout: Layout) -> str:
    lines = [f"- Published numbers: {_escape(layout.paper)}"] if layout.paper else []
    lines.append(f"- Measured numbers: `{layout.command}`, scale `{layout.scale}`")
    if layout.stand_ins:
        lines.append(
            f"- **Stand-ins** (not comparable in value): {_escape('; '.join(layout.stand_ins))}"
        )
    return "\n".join(lines)


def _table(layout: Layout, grid: Grid, pairs: bool) -> str:
    from tabulate import tabulate

    with_model = pairs and layout.show_model
    heads = [*layout.axes, *(["ours on"] if with_model else [])]
    for head in grid.heads:
        if not pairs:
            heads.append(f"{head.name} {head.paper}".rstrip())
            continue
        heads += [f"{head.name} {head.paper}"] if head.paper else []
        heads.append(f"{head.name} {head.ours}")
    rows = []
    for line in (line for block in grid.blocks for line in block.lines):
        cells = [*line.labels, *([line.model] if with_model else [])]
        for head, entry in zip(grid.heads, line.entries, strict=True):
            if not pairs:
                cells.append(entry.paper + entry.foot if head.paper else entry.ours_text)
                continue
            cells += [entry.paper] if head.paper else []
            cells.append(f"{entry.ours_text} {entry.delta}".rstrip())
        rows.append([_escape(cell) for cell in cells])
    left = len(layout.axes) + with_model
    align = ["left"] * left + ["right"] * (len(heads) - left)
    return tabulate(
        rows, [_escape(h) for h in heads], tablefmt="pipe", disable_numparse=True, colalign=align
    )


def _claims(layout: Layout) -> str:
    lines = []
    for claim in layout.claims:
        failing = f" — fails: {_escape(claim.failing_text())}" if claim.failing else ""
        lines.append(
            f"- {claim.paper} · {claim.ours}{failing}  \n  {_escape(claim.text)} ({_escape(claim.where)})"
        )
    return "\n".join(lines)


def _list(lines: Sequence[str] | Iterable[str]) -> str:
    return "\n".join(f"- {_escape(line)}" for line in lines)


def _escape(text: str) -> str:
    """Keep a text on one line and from being read as markup."""
    return re.sub(r"([\\`*<>|])", r"\\\1", " ".join(text.split()))
