"""The report as GitHub-flavoured Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from lutlab.experiment.artifact.outcome import BREAKS, HOLDS, ClaimResult
from lutlab.experiment.report.layout import DASH, Grid, Layout


def render(layout: Layout) -> str:
    """The whole report as one Markdown text."""
    head = [f"# {_escape(layout.title)}", "\n".join((*_paper(layout), *_measured(layout)))]
    return _join([*head, *_body(layout, "##"), *_provenance(layout.origins, layout.provenance)])


def render_variants(
    layouts: Mapping[str, Layout], origins: Sequence[str], provenance: Mapping[str, str]
) -> str:
    """An artifact's reports on one page: a section a variant, and where the numbers of all of them come from."""
    first = next(iter(layouts.values()))
    parts = [f"# {_escape(first.title)}", *_paper(first)]
    for name, layout in layouts.items():
        parts += [f"## {_escape(name)}", "\n".join(_measured(layout)), *_body(layout, "###")]
    return _join([*parts, *_differences(layouts), *_provenance(origins, provenance.items())])


def _differences(layouts: Mapping[str, Layout]) -> list[str]:
    """Claims that a real model decides otherwise than a stand-in does, and which of the two to believe."""
    lines = []
    for name, real in layouts.items():
        if real.scale != "real":
            continue
        for i, claim in enumerate(_flat(real)):
            signs = {n: _flat(o)[i].sign for n, o in layouts.items() if o.scale != "real"}
            others = [n for n, sign in signs.items() if {sign, claim.sign} == {HOLDS, BREAKS}]
            if others:
                theirs = f"{signs[others[0]]} on {', '.join(others)}"
                lines.append(f"{claim.sign} on {name}, {theirs}: {claim.text}")
    if not lines:
        return []
    why = (
        "Believe the real model: weights of a trained language model have outliers, which those of a stand-in of a few "
        "million parameters lack, and codes are judged by what they do to outliers."
    )
    return ["## Where the real model and the stand-ins differ", why, _list(lines)]


def _flat(layout: Layout) -> list[ClaimResult]:
    return [claim for _, claims in layout.claims for claim in claims]


def _join(parts: Sequence[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def _body(layout: Layout, heading: str) -> list[str]:
    """Tables, claims and notes; `heading` is the mark of a heading, such as `##`."""
    parts = []
    if layout.main.heads:
        parts += [
            *_tables(layout, layout.main, pairs=True),
            _list(filter(None, (layout.left_out, *layout.legend, *layout.footnotes))),
        ]
    if layout.reference.heads:
        parts += [
            f"{heading} Published, not measured here",
            *_tables(layout, layout.reference, pairs=False),
            _list(layout.reasons),
        ]
    for title, claims in layout.claims:
        parts += [f"{heading} {title}", _claims(claims)]
    if layout.notes:
        parts += [f"{heading} Notes", _list(layout.notes)]
    return parts


def _provenance(origins: Sequence[str], provenance: Iterable[tuple[str, str]]) -> list[str]:
    lines = [*origins, *(f"{name}: {value}" for name, value in provenance)]
    return ["## Where the measured numbers come from", _list(lines)] if lines else []


def _paper(layout: Layout) -> list[str]:
    return [f"- Published numbers: {_escape(layout.paper)}"] if layout.paper else []


def _measured(layout: Layout) -> list[str]:
    lines = [f"- Measured numbers: {_code(layout.command)}, {_escape(layout.measured)}"]
    if layout.stand_ins:
        lines.append(
            f"- **Stand-ins** (not comparable in value): {_escape('; '.join(layout.stand_ins))}"
        )
    return lines


_WIDTH = 160  # characters of a line of a table
_Columns = list[list[str]]  # a column is its head and its cells


def _tables(layout: Layout, grid: Grid, pairs: bool) -> list[str]:
    """The paper's columns, then ours, in as many tables as lines of _WIDTH take; the first ones have every label.

    A label that no line takes beside those that tell rows apart stands in a list behind the tables.
    """
    lines = [line for block in grid.blocks for line in block.lines]
    labels = [[axis, *(line.labels[i] for line in lines)] for i, axis in enumerate(layout.axes)]
    telling, others = labels[: layout.telling], labels[layout.telling :]
    if pairs and layout.show_model:
        others.append(["ours on", *(line.model for line in lines)])
    long = [column for column in others if not _fits(telling, [column])]
    others = [column for column in others if column not in long]
    tables: list[tuple[_Columns, _Columns]] = []
    for column in others:
        if not tables or not _fits(tables[-1][0], [column]):
            tables.append(([*telling], []))
        tables[-1][0].append(column)
    tables = tables or [(telling, [])]
    for published in (True, False):
        first = True  # of the columns that a table of their own begins with
        for i, head in enumerate(grid.heads):
            if bool(head.paper) is not published:
                continue
            halves = [
                [
                    f"{head.name} {half}",
                    *(line.entries[i].halves(head, pairs, delta=pairs)[n] for line in lines),
                ]
                for n, half in enumerate(head.halves(pairs))
            ]
            for columns in [halves] if _fits(telling, halves) else [[half] for half in halves]:
                left, right = tables[-1]
                begins = first and not (len(tables) == 1 and not right)
                if begins or not _fits(left, [*right, *columns]):
                    tables.append((telling, []))
                tables[-1][1].extend(columns)
                first = False
    return [*(_table(left, right) for left, right in tables), *_long_labels(telling, long)]


def _fits(left: _Columns, right: _Columns) -> bool:
    """Whether a line of _WIDTH takes columns."""
    return _width(left) + _width(right) < _WIDTH


def _long_labels(telling: _Columns, long: _Columns) -> list[str]:
    """A list of labels too long for a table, if there are any, each with what tells its rows apart."""
    rows = list(zip(*(column[1:] for column in telling), strict=True))
    found = {
        f"{', '.join(row)}: {head} {cell}": None
        for head, *cells in long
        for row, cell in zip(rows, cells, strict=True)
        if cell != DASH
    }
    return [_list(found)] if found else []


def _width(columns: _Columns) -> int:
    """Characters of columns as tabulate draws them, which pads a head by two."""
    return sum(
        3 + max(len(_escape(c)) + 2 * (i == 0) for i, c in enumerate(col)) for col in columns
    )


def _table(left: _Columns, right: _Columns) -> str:
    from tabulate import tabulate

    heads, *rows = zip(
        *([_escape(cell) for cell in column] for column in left + right), strict=True
    )
    align = ["left"] * len(left) + ["right"] * len(right)
    return tabulate(rows, heads, tablefmt="pipe", disable_numparse=True, colalign=align)


def _claims(claims: Iterable[ClaimResult]) -> str:
    lines = []
    for claim in claims:
        counts = f"{claim.paper} · {claim.ours} {_escape(claim.instances())}".rstrip()
        lines.append(f"- {counts}  \n  {_escape(claim.text)} ({_escape(claim.where)})")
    return "\n".join(lines)


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_escape(line)}" for line in lines)


def _code(text: str) -> str:
    """A text as code, which no backtick of it ends."""
    return "`{}`".format(text.replace("`", "'"))


def _escape(text: str) -> str:
    """Keep a text on one line and from being read as markup."""
    plain = re.sub(r"([\\`*<>|])", r"\\\1", " ".join(text.split()))
    # None of these is a link: [text](address), [text][name], [name]: address.
    return re.sub(r"\](?=[(:\[])", r"\]", plain)
