"""Everything measured, on one page: a file that opens in any browser and asks no network for anything.

    lutlab.results, claims ──────┐
    .wandb files of runs ────────┴▶ rows ─▶ page/{page.html, *.css, *.js}, plotly.js ─▶ one HTML file

plotly, since it is one bundle that a package of its own carries, and a click on a point can be answered.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import write_atomically
from lutlab.base.lazy import pandas
from lutlab.base.specs import TextSpec
from lutlab.data.protocols import PROTOCOLS
from lutlab.experiment.records import frame, wandb_files
from lutlab.experiment.report.style import SERIES

# One script, in this order.
SCRIPTS = ("data", "filters", "runs", "compare", "plots", "claims", "record", "page")
SIZES = "model_size"  # the evaluator whose metrics are sizes, whoever else declares them

Row = Mapping[str, Any]


def of_records(*folders: str | Path) -> tuple[list[Row], list[Row]]:
    """Cells and claims of results folders or published ones; arguments and errors are those of `lutlab.results`."""
    return rows(frame.results(*folders)), rows(frame.claims(*folders))


def of_tracked(folder: str | Path) -> list[Row]:
    """Cells of the Weights & Biases runs in a folder; notes, citations and claims are not in them.

    Raises:
        LutlabError: no run of a row in the folder, or one that cannot be read.
    """
    cells: list[Row] = [c for run in wandb_files.read(folder) for c in _cells_of(run)]
    if not cells:
        raise LutlabError(
            f"no row of a table among the Weights & Biases runs in {folder}: name a folder of offline runs, as "
            "results/wandb, which a run with logger=offline or mode=track fills"
        )
    return cells


def _cells_of(run: Mapping[str, Row]) -> Iterator[dict[str, Any]]:
    """The cells of a tracked row: its summary's `topics/ppl/wiki2/published` is a field of the cell in column wiki2."""
    config, summary = run["config"], run["summary"]
    if config.get("kind") != "row":
        return
    shared = {key: value for key, value in config.items() if key not in ("kind", "of", "scale")}
    shared["artifact"] = str(config.get("artifact", "")).rpartition("/")[2]
    if "scale" in config:
        shared["stand_in"] = config["scale"] != "paper"
    bits = {key.rpartition("/")[2]: value for key, value in summary.items() if key.count("/") == 1}
    if "bits_per_weight" in bits:
        shared["stored_bits"] = bits["bits_per_weight"]
    cells: dict[tuple[str, ...], dict[str, Any]] = {}
    for key, value in summary.items():
        place, *names = key.split("/")
        if len(names) == 3:
            metric, column, name = names
            cell = shared | _text_of(place) | {"column": column, "metric": metric}
            cells.setdefault((place, metric, column), cell)[name] = value
    yield from cells.values()


def _text_of(place: str) -> dict[str, str]:
    """`topics-first64` -> the text that was read; of an evaluator without a text there is none."""
    parts = re.fullmatch(r"(.+?)(?:-window(\d+))?(?:-first(\d+))?", place)
    if not parts or parts[1] not in PROTOCOLS:
        return {}
    text = TextSpec(
        parts[1], "", window=int(parts[2] or 0) or None, limit=int(parts[3] or 0) or None
    )
    return {"text": text.protocol, "measured_on": text.name}


def write(path: Path, cells: Sequence[Row], claims: Sequence[Row], source: str) -> Path:
    """Write the page and return its path; the folder is made. Arguments are those of `render`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_atomically(path, render(cells, claims, source).encode())


def render(cells: Sequence[Row], claims: Sequence[Row], source: str) -> str:
    """The page as HTML, with style, scripts, plotly and data inside.

    Args:
        cells: flat rows by the columns of `lutlab.results`; what a row does not have is left out.
        claims: rows of `frame.claims`; none where the source has none.
        source: folders, as the page's head names them.
    """
    import jinja2

    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise LutlabError("the dashboard needs plotly: pip install 'lutlab[dashboard]'") from error
    shown = {
        "cells": _by_column(cells),
        "claims": list(claims),
        "metrics": _metrics(),
        "colours": SERIES,
    }
    template = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(_part("page.html"))
    return template.render(
        source=source,
        style=_part("page.css"),
        script="\n".join(_part(f"{name}.js") for name in SCRIPTS),
        plotly=get_plotlyjs(),
        # no `<` inside a script element, so that no text of a record can end it
        data=json.dumps(shown, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c"),
    )


def _part(name: str) -> str:
    return files("lutlab.experiment.records").joinpath("page", name).read_text("utf-8")


def rows(table: pandas.DataFrame) -> list[Row]:
    """Rows of a frame without what is empty, in JSON's types."""
    columns = {name: table[name].astype(object).tolist() for name in table.columns}
    return [
        {name: values[i] for name, values in columns.items() if not _is_empty(values[i])}
        for i in range(len(table))
    ]


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or value != value


def _by_column(rows: Sequence[Row]) -> dict[str, Any]:
    """Rows as columns of indices into the column's distinct values, so that each commit or command is there once.

    >>> _by_column([{"q": 4}, {"q": 4, "g": 32}])
    {'count': 2, 'columns': {'q': ([4], [0, 0]), 'g': ([32], [-1, 0])}}
    """
    columns = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        places: dict[str, int] = {}  # JSON -> index, since 1 and true are one key
        at = [
            places.setdefault(json.dumps(row[name]), len(places)) if name in row else -1
            for row in rows
        ]
        columns[name] = ([json.loads(value) for value in places], at)
    return {"count": len(rows), "columns": columns}


def _metrics() -> dict[str, Row]:
    """Metric -> its kind (quality, size or speed) by the evaluator that declares it, and which numbers are better."""
    metrics: dict[str, Row] = {}
    classes = registry.classes("evaluator")
    for name in sorted(classes, key=lambda name: name == SIZES):
        kind = "speed" if classes[name].of_this_machine else "quality"
        for metric in classes[name].metrics:
            metrics[metric.name] = {
                "kind": "size" if name == SIZES else kind,
                "lower_is_better": metric.lower_is_better,
            }
    return metrics
