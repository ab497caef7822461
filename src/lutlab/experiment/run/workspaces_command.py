"""Workspaces and reports of Weights & Biases, built from code and records: without a server, or pushed to one.

    lutlab workspaces --out pages                     JSON, as it would be sent; no network
    lutlab workspaces --push --entity me --project lutlab

A push updates what an earlier one made: `<results>/wandb/views.json` keeps the ids of each project's pages. The runs
themselves come from `mode=run`, `mode=track` and `wandb sync`. Needs `pip install 'lutlab[workspaces]'`.

Pages read what tracked.py logs: config by the command line's names, summaries `<text or evaluator>/<metric>`. Building
them asks no server, except a report's panels where they are bound to a project (`bound`).
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lutlab.base.errors import WRONG_TYPE, LutlabError
from lutlab.base.kept.files import set_aside, write_atomically
from lutlab.experiment.artifact.catalog import artifacts, program, short_name
from lutlab.experiment.artifact.outcome import ResultTable
from lutlab.experiment.artifact.yaml_file import read_yaml
from lutlab.experiment.records.frame import shelves
from lutlab.experiment.report import markdown
from lutlab.experiment.report.layout import lay_out
from lutlab.experiment.report.published import Published
from lutlab.experiment.run.ending import ended

if TYPE_CHECKING:
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

log = logging.getLogger(__name__)
# tools/published_list.py reads and checks all of it
LIST = Path("results") / "published" / "list.yaml"
VIEWS = Path("wandb") / "views.json"  # below a results folder
TEXTS = ("topics", "wikitext2")  # of the models that ship with lutlab, and of the papers
BITS = "model_size/bits_per_weight"
KERNEL = "kernel_latency"


@dataclass(frozen=True)
class Project:
    """A project of Weights & Biases. `bound`: it is there, so that panels of reports may name it."""

    entity: str
    name: str
    bound: bool = False


Pages = dict[str, Callable[[Project], Any]]  # name -> how to build it


def pages(records: Path) -> Pages:
    """Pages by name: the two workspaces, and a report for each paper that has a table below `records`.

    Raises:
        LutlabError: no such folder, or a table is not of the artifact as it is today.
    """
    views: Pages = {"accuracy": accuracy, "kernels": kernels}
    papers: dict[str, dict[str, ResultTable]] = {}
    for name, table in _tables(records):
        papers.setdefault(table.artifact.partition("/")[0], {})[name] = table
    for paper, tables in papers.items():
        views[paper] = functools.partial(report, paper=paper, tables=tables)
    return views


def _tables(records: Path) -> Iterator[tuple[str, ResultTable]]:
    for shelf in shelves(records):
        cells: dict[str, dict[str, list[Any]]] = {}
        for cell in shelf.cells:
            cells.setdefault(cell["artifact"], {}).setdefault(cell["variant"], []).append(cell)
        for artifact in sorted(cells.keys() & artifacts().keys()):
            published = Published(artifact, cells[artifact], shelf.records_of(artifact))
            for variant, table in published.tables(_commands(artifact)).items():
                yield " ".join(filter(None, [artifact, variant, shelf.machine])), table


def _commands(artifact: str) -> dict[str, str]:
    """Variant -> the command that measures it, as a checkout's list of what is published says; nothing without one."""
    if not LIST.exists():
        return {}
    begin = f"{program()} +exp={short_name(artifact)}"
    lines = read_yaml(LIST).get(artifact, {})
    return {variant: f"{begin} {line}".strip() for variant, line in lines.items()}


def build(views: Pages, project: Project) -> dict[str, str]:
    """Name -> the page's JSON; the same each time."""
    made = {}
    for name, page in views.items():
        with _same_names(name):
            made[name] = _spec(page(project))
    return made


def push(views: Pages, project: Project, results: Path) -> list[str]:
    """Send the pages to the server that wandb is logged in to; returns their addresses.

    Raises:
        LutlabError: the server refuses one of them; those before it are there.
    """
    known = _known(results)
    ids = known.setdefault(f"{project.entity}/{project.name}", {})
    addresses = []
    for name, page in views.items():
        try:
            with _same_names(name):
                view = page(project)
                _restore(view, ids.get(name, {}))
                view.save()
        except Exception as error:  # wandb raises private classes for what a server refuses
            raise LutlabError(
                f"the page '{name}' of {project.entity}/{project.name} was not saved ({type(error).__name__}: "
                f"{str(error).strip()}); log in with 'wandb login', fill the project first (mode=track logger=online, "
                f"or wandb sync), or, where the page was deleted there, remove it from {results / VIEWS}"
            ) from error
        ids[name] = _saved(view)
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
        if not all(isinstance(page_id, str) for page_id in ids):
            raise TypeError(f"ids {ids}")
    except (OSError, ValueError, *WRONG_TYPE) as error:
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
    typed = parser.parse_args(arguments)
    return ended(lambda: _build(typed))


def _build(typed: argparse.Namespace) -> None:
    _check(typed)
    views = pages(typed.records)
    if typed.out:
        project = Project(typed.entity or "entity", typed.project)
        for name, text in build(views, project).items():
            print(write_atomically(typed.out / f"{name}.json", text.encode()))
    if typed.push:
        project = Project(typed.entity, typed.project, bound=True)
        print(*push(views, project, typed.results), sep="\n")


def _check(typed: argparse.Namespace) -> None:
    if importlib.util.find_spec("wandb_workspaces") is None:
        raise LutlabError("workspaces need wandb-workspaces: pip install 'lutlab[workspaces]'")
    if not (typed.out or typed.push):
        raise LutlabError("give --out <folder>, --push, or both")
    if typed.push and not typed.entity:
        raise LutlabError("--push needs --entity, the user or team that owns the project")


# ---- the pages ----


def _section(name: str, *panels: Any, is_open: bool = True) -> ws.Section:
    import wandb_workspaces.workspaces as ws

    return ws.Section(name=name, panels=list(panels), is_open=is_open)


def accuracy(project: Project) -> ws.Workspace:
    """Stored bits against perplexity, methods as bars, every axis side by side, what differs between any runs."""
    import wandb_workspaces.reports.v2 as wr

    axes = [wr.Config(name) for name in ("model", "method", "q", "g")]

    def section(text: str) -> ws.Section:
        ppl = wr.SummaryMetric(f"{text}/ppl")
        columns: list[wr.Config | wr.SummaryMetric] = [*axes, wr.SummaryMetric(BITS), ppl]
        return _section(
            f"perplexity on {text}",
            wr.ScatterPlot(title=f"size and perplexity, {text}", x=wr.SummaryMetric(BITS), y=ppl, log_y=True),
            wr.BarPlot(title=f"perplexity by method, {text}", metrics=[ppl], groupby=wr.Config("method")),
            wr.ParallelCoordinatesPlot(columns=[wr.ParallelCoordinatesPlotColumn(c) for c in columns]),
            wr.LinePlot(title="perplexity of the first windows", x=wr.Metric("window"), y=[f"window/{text}/ppl"]),
            is_open=text == TEXTS[0],
        )  # fmt: skip

    by_layer = [
        wr.LinePlot(title=title, x=wr.Metric("layer"), y=[f"layer/{name}"])
        for name, title in (
            ("weight_relative_mse", "weight error by layer"),
            ("output_relative_mse", "output error by layer"),
            ("bits_per_weight", "stored bits by layer"),
        )
    ]
    tuning = wr.LinePlot(
        title="tuning loss",
        x=wr.Metric("tuning_step"),
        y=["tuning_step/held_out_loss", "tuning_step/loss"],
    )
    sections = [
        *map(section, TEXTS),
        _section("layers and tuning", *by_layer, tuning, is_open=False),
        _section("compare runs", wr.RunComparer(diff_only="split")),
    ]
    return _workspace(project, "lutlab: accuracy", "model", sections)


def kernels(project: Project) -> ws.Workspace:
    """Latency and fraction of the memory's bandwidth by shape and q, rounds, what differs between any runs."""
    import wandb_workspaces.reports.v2 as wr

    latency, fraction, speedup, error = (
        wr.SummaryMetric(f"{KERNEL}/{name}")
        for name in ("latency_us", "bandwidth_fraction", "speedup_fp16", "relative_error")
    )
    q, shape = wr.Config("q"), wr.Config("model")
    axes = [shape, wr.Config("method"), wr.Config("kernel"), q, wr.Config("g")]
    columns: list[wr.Config | wr.SummaryMetric] = [*axes, latency, fraction]
    sections = [
        _section(
            "latency",
            wr.BarPlot(title="µs by shape", metrics=[latency], groupby=shape),
            wr.BarPlot(title="µs by q", metrics=[latency], groupby=q),
            wr.ScatterPlot(title="µs over q", x=q, y=latency, log_y=True),
            wr.BarPlot(title="speed-up over the dense product by q", metrics=[speedup], groupby=q),
        ),
        _section(
            "of the memory's bandwidth",
            wr.BarPlot(title="fraction by shape", metrics=[fraction], groupby=shape),
            wr.BarPlot(title="fraction by q", metrics=[fraction], groupby=q),
            wr.ScatterPlot(title="fraction over q", x=q, y=fraction),
        ),
        _section(
            "all axes, rounds, errors",
            wr.ParallelCoordinatesPlot(columns=[wr.ParallelCoordinatesPlotColumn(c) for c in columns]),
            wr.LinePlot(title="s by round", x=wr.Metric("round"), y=[f"round/{KERNEL}_s"]),
            wr.ScatterPlot(title="error over q", x=q, y=error, log_y=True),
            wr.RunComparer(diff_only="split"),
        ),
    ]  # fmt: skip
    return _workspace(project, "lutlab: kernels", "product", sections)


def _workspace(project: Project, name: str, kind: str, sections: Sequence[ws.Section]) -> Any:
    import wandb_workspaces.workspaces as ws

    return ws.Workspace(
        entity=project.entity,
        project=project.name,
        name=name,
        sections=list(sections),
        auto_generate_panels=False,
        runset_settings=ws.RunsetSettings(
            filters=[ws.Config("kind") == "row", ws.Config("of") == kind]
        ),
    )


def report(project: Project, paper: str, tables: Mapping[str, ResultTable]) -> wr.Report:
    """A paper's tables, published beside measured, with their claims, over the runs that they come from."""
    import wandb_workspaces.reports.v2 as wr

    blocks: list[Any] = [wr.TableOfContents()]
    for name, table in tables.items():
        blocks.append(wr.H1(text=name))
        blocks.append(wr.MarkdownBlock(text=markdown.render(lay_out(table))))
        filters = f"Config('artifact') = '{table.artifact}' and Config('kind') = 'row'"
        owner = (project.entity, project.name) if project.bound else ("", "")
        blocks.append(
            wr.PanelGrid(
                runsets=[wr.Runset(*owner, name=name, filters=filters)],
                panels=[wr.RunComparer(diff_only="split")],
            )
        )
    return wr.Report(
        entity=project.entity,
        project=project.name,
        title=f"lutlab: {paper}, published and measured",
        description="Numbers of the paper beside those of the records, claim by claim.",
        blocks=blocks,
        width="fluid",
    )


@contextmanager
def _same_names(name: str) -> Iterator[None]:
    """Panels get random names; in here the same page gets the same ones each time, and a push moves none of them."""
    import wandb_workspaces.reports.v2
    import wandb_workspaces.workspaces  # noqa: F401, each draws names of its own at its import

    before = random.getstate()
    random.seed(name)
    try:
        yield
    finally:
        random.setstate(before)


def _spec(view: Any) -> str:
    """The page as JSON, as it is sent. The call is a private one: versions of wandb-workspaces are pinned."""
    return view._to_model().spec.model_dump_json(by_alias=True, exclude_none=True)
