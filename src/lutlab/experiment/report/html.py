"""The report as one HTML file: nothing is fetched; style and figure are inside; light and dark."""

from __future__ import annotations

from importlib.resources import files

from lutlab.experiment.artifact.outcome import BREAKS, HOLDS
from lutlab.experiment.report.layout import Layout

CLAIM_CLASSES = {HOLDS: "holds", BREAKS: "breaks"}


def render(layout: Layout, figure: str) -> str:
    """Fill report.html. `figure` is the inline SVG."""
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    template = environment.from_string(
        files("lutlab.experiment.report").joinpath("report.html").read_text("utf-8")
    )
    return template.render(
        layout=layout,
        figure=Markup(figure),
        first=1 if layout.headed else 0,
        with_model=layout.show_model and not layout.headed,
        claim_class=lambda claim: CLAIM_CLASSES.get(claim.sign, "undecided"),
        verdict_class=lambda entry: (
            "v-" + "".join(c if c.isalnum() else "-" for c in entry.verdict.lower())
        ),
    )
