"""Artifacts by name: a file experiments/<paper>/<artifact>.yaml is a choice of `+exp=` by being there."""

from __future__ import annotations

from pathlib import Path

from lutlab import sources

EXPERIMENTS = sources.folder("experiments")
LEAD_PAPER = "lut-gemm-v3"  # its artifacts have short names: +exp=table4


def artifacts() -> dict[str, Path]:
    """Every choice of +exp: `<paper>/<artifact>`, and the lead paper's artifacts by short name too."""
    found = {f"{p.parent.name}/{p.stem}": p for p in sorted(EXPERIMENTS.glob("*/*.yaml"))}
    lead = {p.stem: p for name, p in found.items() if name.startswith(f"{LEAD_PAPER}/")}
    return found | lead


def artifact_groups() -> dict[str, list[str]]:
    """`all` and `<paper>/all` -> the artifacts they run, by long name."""
    names = [name for name in artifacts() if "/" in name]
    papers = sorted({name.partition("/")[0] for name in names})
    by_paper = {f"{paper}/all": [n for n in names if n.startswith(f"{paper}/")] for paper in papers}
    return {"all": names, **by_paper}


def long_name(path: Path) -> str:
    """experiments/lut-gemm-v3/table4.yaml -> lut-gemm-v3/table4."""
    return f"{path.parent.name}/{path.stem}"


def program() -> str:
    """How this lutlab is called: `python run.py` in a checkout, `lutlab` where it is installed."""
    return "python run.py" if sources.checkout() else "lutlab"


def command_for(artifact: str) -> str:
    """The command a reader types to get this table."""
    paper, _, name = artifact.partition("/")
    return f"{program()} +exp={name if paper == LEAD_PAPER else artifact}"
