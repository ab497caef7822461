"""docs/coverage.md: what of the papers is measured here, item by item: `python -m tools.coverage`.

experiments/<paper>/<artifact>.yaml ─┐
experiments/coverage.yaml           ─┼─▶ docs/coverage.md
results/published/*/                ─┘
"""

from __future__ import annotations

import collections
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from lutlab.base import sources
from lutlab.base.kept.files import write_atomically
from lutlab.experiment.artifact.artifact import CLAIM_KINDS, load_artifact
from lutlab.experiment.artifact.catalog import artifact_groups, short_name
from lutlab.experiment.artifact.predicted import VERDICT
from lutlab.experiment.artifact.yaml_file import read_yaml
from lutlab.experiment.report import csv, published
from lutlab.experiment.run.ending import ended
from tools.published_list import PUBLISHED

PAGE = Path("docs") / "coverage.md"
_HEAD = """# Coverage

Every table and figure of the papers, and what of it is measured here. Written by `python -m tools.coverage` from
`experiments/`, its `coverage.yaml` and `results/published/`; a test holds it to them, and finds an item that nobody
names.

- *own*: cells measured on the paper's own model or product. *stand-in*: on another model, text or device, never
  compared in value. *real*: of those, on a real language model. *predicted*: by the model of the paper's GPUs, never
  measured. *not run*: with the reason that most of them have.
- Cells of an artifact count once for each of its variants and machines.
"""
_ROMAN = dict(zip(("I", "II", "III", "IV", "V"), range(1, 6), strict=True))


def items(paper: str) -> dict[str, str | list[str]]:
    """Item of a paper, as `Table 4` -> its artifacts, or a sentence where it has none.

    Raises:
        ValueError: nothing is said of an item, or of one that does not exist.
    """
    about = dict(read_yaml(sources.folder("experiments") / "coverage.yaml")[paper])
    counts = {"Table": about.pop("tables"), "Figure": about.pop("figures")}
    named: dict[str, list[str]] = collections.defaultdict(list)
    for name in artifact_groups()[f"{paper}/all"]:
        kind, number = re.fullmatch(r"(table|fig)(\d+)\w?", name.partition("/")[2]).groups()
        named[f"{'Table' if kind == 'table' else 'Figure'} {number}"].append(name)
    sentences = {_arabic(item): text for item, text in about.items()}
    every = [f"{kind} {i}" for kind, count in counts.items() for i in range(1, count + 1)]
    every += [item for item in sentences if item.partition(" ")[0] not in counts]
    if left_out := set(every) - {*sentences, *named}:
        raise ValueError(
            f"{paper}: nothing is said of {sorted(left_out)} in experiments/coverage.yaml"
        )
    if unknown := {*sentences, *named} - set(every):
        raise ValueError(f"{paper} has no {sorted(unknown)}")
    return {item: named.get(item) or sentences[item] for item in every}


def _arabic(item: str) -> str:
    kind, _, number = item.partition(" ")
    return f"{kind} {_ROMAN.get(number, number)}"


def measured(artifact: str) -> str:
    """`own 4, stand-in 160 (real 48), predicted 20, not run 28 (no CUDA device …)` of all that is published of it."""
    counts: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    for cell in cells(artifact):
        if cell["verdict"] == VERDICT:
            counts["predicted"] += 1
        elif not cell["measured"]:
            counts["not run"] += 1
            reasons[cell["note"]] += 1
        else:
            counts["stand-in" if cell["stand_in"] == "True" else "own"] += 1
            counts["real"] += cell["variant"].startswith("real")
    if not counts:
        return "not measured yet"
    real = f" (real {counts['real']})" if counts["real"] else ""
    why = f" (most: {reasons.most_common(1)[0][0]})" if reasons else ""
    words = {"own": "", "stand-in": real, "predicted": "", "not run": why}
    return ", ".join(f"{kind} {counts[kind]}{more}" for kind, more in words.items() if counts[kind])


def cells(artifact: str) -> Iterator[Mapping[str, str]]:
    """The cells of an artifact's published tables, of all machines."""
    for table in sorted(
        (sources.checkout() or Path()).glob(f"{PUBLISHED}/*/{artifact}/{published.TABLE}")
    ):
        yield from csv.parse(table.read_text(encoding="utf-8"))


def claims() -> dict[str, int]:
    """How many claims of each kind the artifacts have; what two versions of a paper say in the same place is one."""
    every = (claim for name in artifact_groups()["all"] for claim in load_artifact(name).claims)
    kinds = collections.Counter(kind for kind, _, _ in {(c.kind, c.where, c.text) for c in every})
    return {kind: kinds[kind] for kind in CLAIM_KINDS}


def page() -> str:
    """The text of docs/coverage.md."""
    parts = [_HEAD]
    for paper in read_yaml(sources.folder("experiments") / "coverage.yaml"):
        rows = [f"## {paper}\n", "| item | here | measured |", "|---|---|---|"]
        for item, artifacts in items(paper).items():
            if isinstance(artifacts, str):
                rows.append(f"| {item} | – | {artifacts} |")
                continue
            for name in artifacts:
                rows.append(f"| {item} | `+exp={short_name(name)}` | {measured(name)} |")
        parts.append("\n".join(rows) + "\n")
    counts = claims()
    lines = [f"- {heading}: {counts[kind]}" for kind, heading in CLAIM_KINDS.items()]
    parts.append("## Claims, by kind\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def main() -> int:
    """Write the page; returns the exit code."""
    return ended(lambda: print(write_atomically(PAGE, page().encode())))


if __name__ == "__main__":
    sys.exit(main())
