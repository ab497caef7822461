"""What an experiment reads and leaves: its YAML, presets, sweeps, and a whole run from what an earlier one has kept."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra

from lutlab import sources
from lutlab.errors import LutlabError
from lutlab.experiment.artifact import catalog
from lutlab.experiment.artifact.artifact import load_artifact
from lutlab.experiment.records import wandb_files
from lutlab.experiment.run.main import main
from lutlab.experiment.store.store import Store
from tools.attack.kinds import Kind
from tools.attack.kinds_models import make_folder
from tools.attack.kinds_texts import make_texts

QUICK = [
    "method=gptq", "q=3", "g=16", "evaluate=[ppl:wikitext2,weight_error]", "data.limit=2", "name=mine", "logger=none",
    "calibration.text=wikitext103-train-head", "calibration.samples=2", "calibration.seqlen=32",
]  # fmt: skip


def run(folder: Path, *arguments: str) -> None:
    """run.py in this process; its message is in what was printed."""
    GlobalHydra.instance().clear()
    os.chdir(folder)
    os.environ["LUTLAB_CACHE"] = str(folder / "cache")
    sys.argv = ["run.py", *arguments, f"results={folder / 'results'}"]
    if code := main():
        raise LutlabError(f"exit code {code}")


# ---- a table of one's own ----


def make_yaml(folder: Path) -> None:
    (folder / "own").mkdir()
    for name in ("table3", "table7"):
        shutil.copy(sources.folder("experiments") / "lut-gemm-v3" / f"{name}.yaml", folder / "own")


def read_yaml(folder: Path) -> dict[str, Any]:
    catalog.add_folder(folder)
    return {"numbers": [repr(load_artifact(f"own/{name}")) for name in ("table3", "table7")]}


# ---- a run, its sweep and its presets ----


def make_run(folder: Path) -> None:
    make_folder("5GB", folder)
    make_texts(folder / "data")
    measure(folder)


def measure(folder: Path) -> dict[str, Any]:
    """Run the sweep: what is kept is not measured again."""
    places = ["model=folder", f"model.id={folder / 'model'}", "data=hub", "data.source=folder"]
    run(folder, *places, f"data.root={folder / 'data'}", *QUICK)
    records = Store(folder / "results").all().values()
    numbers = [[r.cell_id, r.status, dict(r.values), list(r.samples)] for r in records]
    return {"numbers": [numbers, (folder / "results/sweep/mine/table.csv").read_text()]}


def make_preset(folder: Path) -> None:
    make_folder("5GB", folder)
    (folder / "conf" / "model").mkdir(parents=True)
    preset = f"name: mine\nsource: folder\nid: {folder / 'model'}\nrevision: null\nlayers: null\n"
    (folder / "conf/model/mine.yaml").write_text(preset)


def plan_preset(folder: Path) -> dict[str, Any]:
    presets = f"--config-dir={folder / 'conf'}"
    line = "--multirun model=mine mode=plan method=rtn q=3 g=16 evaluate=[weight_error] logger=none"
    run(folder, presets, *line.split())
    return {"numbers": 0}


# ---- Weights & Biases ----


def make_tracked(folder: Path) -> None:
    make_run(folder)
    shutil.rmtree(folder / "results")
    run(folder, "model=folder", f"model.id={folder / 'model'}", "method=rtn", "q=3", "g=16",
        "evaluate=[weight_error]", "baseline=false")  # fmt: skip


def read_tracked(folder: Path) -> dict[str, Any]:
    """A run says how far it got: what is cut off behind a damage is missing from a run that is not finished."""
    found = wandb_files.read(folder / "results")
    numbers = [[one["name"], one["config"], one["summary"]] for one in found]
    return {"numbers": numbers, "identity": [one["state"] for one in found]}


KINDS = [
    Kind("yaml", make_yaml, read_yaml, "own/*.yaml", of_user=True),
    Kind("run", make_run, measure, "results/**/*", slow=True),
    Kind("sweep", make_run, measure, "results/sweep/**/*", slow=True),
    Kind("preset", make_preset, plan_preset, "conf/**/*", of_user=True, slow=True),
    Kind("wandb", make_tracked, read_tracked, "**/*.wandb", slow=True),
]
