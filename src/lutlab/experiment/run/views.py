"""Pages of Weights & Biases as code: a workspace for accuracies, one for kernels, a report a paper.

They read what tracked.py logs: config by the command line's names, summaries `<text or evaluator>/<metric>`. Nothing
in here asks a server, except a report's panels where they are bound to a project (`bound`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lutlab.experiment.artifact.outcome import ResultTable
from lutlab.experiment.report import markdown
from lutlab.experiment.report.layout import lay_out

if TYPE_CHECKING:
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

TEXTS = ("topics", "wikitext2")  # of the models that ship with lutlab, and of the papers
BITS = "model_size/bits_per_weight"
KERNEL = "kernel_latency"


@dataclass(frozen=True)
class Project:
    """A project of Weights & Biases. `bound`: it is there, so that panels of reports may name it."""

    entity: str
    name: str
    bound: bool = False


def accuracy(project: Project, texts: Sequence[str] = TEXTS) -> ws.Workspace:
    """Stored bits against perplexity, methods as bars, every axis side by side, what differs between any runs.

    Args:
        project: project whose runs it shows.
        texts: protocols, a section each.
    """
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    axes = [wr.Config(name) for name in ("model", "method", "q", "g")]

    def of(text: str) -> ws.Section:
        ppl = wr.SummaryMetric(f"{text}/ppl")
        columns = [*axes, wr.SummaryMetric(BITS), ppl]
        panels = [
            wr.ScatterPlot(title=f"size and perplexity, {text}", x=wr.SummaryMetric(BITS), y=ppl, log_y=True),
            wr.BarPlot(title=f"perplexity by method, {text}", metrics=[ppl], groupby=wr.Config("method")),
            wr.ParallelCoordinatesPlot(columns=[wr.ParallelCoordinatesPlotColumn(c) for c in columns]),
            wr.LinePlot(title="perplexity of the first windows", x=wr.Metric("window"), y=[f"window/{text}/ppl"]),
        ]  # fmt: skip
        return ws.Section(name=f"perplexity on {text}", panels=panels, is_open=text == texts[0])

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
        *map(of, texts),
        ws.Section(name="layers and tuning", panels=[*by_layer, tuning], is_open=False),
        ws.Section(name="compare runs", panels=[wr.RunComparer(diff_only="split")], is_open=True),
    ]
    return _workspace(project, "lutlab: accuracy", "model", sections)


def kernels(project: Project) -> ws.Workspace:
    """Latency and fraction of the memory's bandwidth by shape and q, rounds, what differs between any runs."""
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    latency, fraction, speedup, error = (
        wr.SummaryMetric(f"{KERNEL}/{name}")
        for name in ("latency_us", "bandwidth_fraction", "speedup_fp16", "relative_error")
    )
    q, shape = wr.Config("q"), wr.Config("model")
    columns = [
        shape,
        wr.Config("method"),
        wr.Config("kernel"),
        q,
        wr.Config("g"),
        latency,
        fraction,
    ]
    sections = [
        ws.Section(
            name="latency",
            panels=[
                wr.BarPlot(title="µs by shape", metrics=[latency], groupby=shape),
                wr.BarPlot(title="µs by q", metrics=[latency], groupby=q),
                wr.ScatterPlot(title="µs over q", x=q, y=latency, log_y=True),
                wr.BarPlot(title="speed-up over the dense product by q", metrics=[speedup], groupby=q),
            ],
            is_open=True,
        ),
        ws.Section(
            name="of the memory's bandwidth",
            panels=[
                wr.BarPlot(title="fraction by shape", metrics=[fraction], groupby=shape),
                wr.BarPlot(title="fraction by q", metrics=[fraction], groupby=q),
                wr.ScatterPlot(title="fraction over q", x=q, y=fraction),
            ],
            is_open=True,
        ),
        ws.Section(
            name="all axes, rounds, errors",
            panels=[
                wr.ParallelCoordinatesPlot(columns=[wr.ParallelCoordinatesPlotColumn(c) for c in columns]),
                wr.LinePlot(title="s by round", x=wr.Metric("round"), y=[f"round/{KERNEL}_s"]),
                wr.ScatterPlot(title="error over q", x=q, y=error, log_y=True),
                wr.RunComparer(diff_only="split"),
            ],
            is_open=True,
        ),
    ]  # fmt: skip
    return _workspace(project, "lutlab: kernels", "product", sections)


def _workspace(project: Project, name: str, of: str, sections: Sequence[ws.Section]) -> Any:
    import wandb_workspaces.workspaces as ws

    return ws.Workspace(
        entity=project.entity,
        project=project.name,
        name=name,
        sections=list(sections),
        auto_generate_panels=False,
        runset_settings=ws.RunsetSettings(
            filters=[ws.Config("kind") == "row", ws.Config("of") == of]
        ),
    )


def report(project: Project, paper: str, tables: Mapping[str, ResultTable]) -> wr.Report:
    """A paper's tables, published beside measured, with their claims, over the runs that they come from.

    Args:
        project: project whose runs its panels show.
        paper: a folder of experiments.
        tables: `<artifact> <variant>` -> table.
    """
    import wandb_workspaces.reports.v2 as wr

    blocks: list[Any] = [wr.TableOfContents()]
    for name, table in tables.items():
        blocks.append(wr.H1(text=name))
        blocks.append(wr.MarkdownBlock(text=markdown.render(lay_out(table))))
        filters = f"Config('artifact') = '{table.artifact}' and Config('kind') = 'row'"
        owner = {"entity": project.entity, "project": project.name} if project.bound else {}
        blocks.append(
            wr.PanelGrid(
                runsets=[wr.Runset(name=name, filters=filters, **owner)],
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
def same_names(name: str) -> Iterator[None]:
    """Panels get random names; in here the same page gets the same ones each time, and a push moves none of them."""
    import wandb_workspaces.reports.v2
    import wandb_workspaces.workspaces  # noqa: F401, each draws names of its own at its import

    before = random.getstate()
    random.seed(name)
    try:
        yield
    finally:
        random.setstate(before)


def spec(view: Any) -> str:
    """The page as JSON, as it is sent. The call is a private one: versions of wandb-workspaces are pinned."""
    return view._to_model().spec.model_dump_json(by_alias=True, exclude_none=True)
