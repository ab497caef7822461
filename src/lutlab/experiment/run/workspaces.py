"""Workspaces and reports of Weights & Biases, built from code and records: without a server, or pushed to one.

    lutlab workspaces --out pages                     JSON, as it would be sent; no network
    lutlab workspaces --push --entity me --project lutlab

A push updates what an earlier one made: `<results>/wandb/views.json` keeps the ids of each project's pages. The runs
themselves come from `mode=run`, `mode=track` and `wandb sync`. Needs `pip install 'lutlab[workspaces]'`.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lutlab.errors import LutlabError
from lutlab.experiment.artifact.catalog import artifacts
from lutlab.experiment.artifact.outcome import ResultTable
from lutlab.experiment.records.frame import shelves
from lutlab.experiment.report.published import Published
from lutlab.experiment.run import views
from lutlab.experiment.run.ending import ended
from lutlab.experiment.run.published_list import commands
from lutlab.experiment.run.views import Project
from lutlab.kept.files import set_aside, write_atomically

log = logging.getLogger(__name__)
VIEWS = Path("wandb") / "views.json"  # below a results folder
Pages = dict[str, Callable[[Project], Any]]  # name -> how to build it


def pages(records: Path) -> Pages:
    """Pages by name: the two workspaces, and a report for each paper that has a table below `records`.

    Raises:
        LutlabError: no such folder, or a table is not of the artifact as it is today.
    """
    found: Pages = {"accuracy": views.accuracy, "kernels": views.kernels}
    papers: dict[str, dict[str, ResultTable]] = {}
    for name, table in _tables(records):
        papers.setdefault(table.artifact.partition("/")[0], {})[name] = table
    for paper, tables in papers.items():
        found[paper] = _report_of(paper, tables)
    return found


def _report_of(paper: str, tables: dict[str, ResultTable]) -> Callable[[Project], Any]:
    return lambda project: views.report(project, paper, tables)


def _tables(records: Path) -> Iterator[tuple[str, ResultTable]]:
    for shelf in shelves(records):
        found: dict[str, dict[str, list[Any]]] = {}
        for cell in shelf.cells:
            found.setdefault(cell["artifact"], {}).setdefault(cell["variant"], []).append(cell)
        for artifact in sorted(found.keys() & artifacts().keys()):
            own = Published(artifact, found[artifact], shelf.records_of(artifact))
            tables = own.tables(commands(artifact))
            for variant, table in tables.items():
                yield " ".join(filter(None, [artifact, variant, shelf.machine])), table


def build(found: Pages, project: Project) -> dict[str, str]:
    """Name -> the page's JSON; the same each time."""
    made = {}
    for name, page in found.items():
        with views.same_names(name):
            made[name] = views.spec(page(project))
    return made


def push(found: Pages, project: Project, results: Path) -> list[str]:
    """Send the pages to the server that wandb is logged in to; returns their addresses.

    Raises:
        LutlabError: the server refuses one of them; those before it are there.
    """
    known = _known(results)
    own = known.setdefault(f"{project.entity}/{project.name}", {})
    addresses = []
    for name, page in found.items():
        try:
            with views.same_names(name):
                view = page(project)
                _restore(view, own.get(name, {}))
                view.save()
        except Exception as error:  # wandb raises private classes for what a server refuses
            raise LutlabError(
                f"the page '{name}' of {project.entity}/{project.name} was not saved ({type(error).__name__}: "
                f"{str(error).strip()}); log in with 'wandb login', fill the project first (mode=track logger=online, "
                f"or wandb sync), or, where the page was deleted there, remove it from {results / VIEWS}"
            ) from error
        own[name] = _saved(view)
        text = json.dumps(known, indent=1, sort_keys=True)
        write_atomically(results / VIEWS, text.encode())  # after each: a later one may fail
        addresses.append(view.url)
    return addresses


def _known(results: Path) -> dict[str, dict[str, dict[str, str]]]:
    path = results / VIEWS
    if not path.exists():
        return {}
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        ids = [page["id"] for pages in known.values() for page in pages.values()]
        if not all(isinstance(one, str) for one in ids):
            raise TypeError(f"ids {ids}")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        log.warning(
            "%s is damaged (%s): set aside as %s; pages that it named stay on the server, and new ones are made",
            path,
            type(error).__name__,
            set_aside(path).name,
        )
        return {}
    return known


def _saved(view: Any) -> dict[str, str]:
    """The ids by which the server knows a page: a report has one, a workspace an internal name too."""
    if hasattr(view, "blocks"):
        return {"id": view.id}
    return {"id": view._internal_id, "name": view._internal_name}


def _restore(view: Any, saved: dict[str, str]) -> None:
    if not saved:
        return
    if hasattr(view, "blocks"):
        view.id = saved["id"]
    else:
        view._internal_id, view._internal_name = saved["id"], saved["name"]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code: 0, or 2 for a mistake."""
    parser = argparse.ArgumentParser(prog="lutlab workspaces")
    parser.description = "Build Weights & Biases' workspaces and reports from records; push them."
    parser.add_argument("--records", type=Path, default=Path("results"), help="folder with tables")
    parser.add_argument("--results", type=Path, default=Path("results"), help="keeps their ids")
    parser.add_argument("--entity", default="", help="user or team; needed to push")
    parser.add_argument("--project", default="lutlab")
    parser.add_argument("--out", type=Path, help="folder for the pages as JSON")
    parser.add_argument("--push", action="store_true", help="create or update them on the server")
    given = parser.parse_args(arguments)
    return ended(lambda: _build(given))


def _build(given: argparse.Namespace) -> None:
    _check(given)
    found = pages(given.records)
    if given.out:
        for name, text in build(found, Project(given.entity or "entity", given.project)).items():
            print(write_atomically(given.out / f"{name}.json", text.encode()))
    if given.push:
        for address in push(found, Project(given.entity, given.project, True), given.results):
            print(address)


def _check(given: argparse.Namespace) -> None:
    if importlib.util.find_spec("wandb_workspaces") is None:
        raise LutlabError("workspaces need wandb-workspaces: pip install 'lutlab[workspaces]'")
    if not (given.out or given.push):
        raise LutlabError("give --out <folder>, --push, or both")
    if given.push and not given.entity:
        raise LutlabError("--push needs --entity, the user or team that owns the project")
