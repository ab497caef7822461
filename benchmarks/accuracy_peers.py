"""Public quantizers, each in a process of the environment that has it: what its driver runs, and how it is asked.

    parent   ask("gptqmodel", python, folder, ids, …)          child   python accuracy_peers.py <job, as JSON>

A peer (peers/) quantizes end to end, through its public entry point; the child saves the whole model with
dequantized weights, in float32. What was asked before, of the same versions and on the same tokens, is not run again.
The child needs torch and safetensors; the rest of lutlab's dependencies are on the parent's side.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import peers
import torch
from safetensors.torch import load_file, save_file

from lutlab.peers.contract import surroundings

CALIBRATION = "calibration.safetensors"


def serve(job: dict[str, Any]) -> None:
    """The child's side: a .safetensors and a .json for each row; the latter alone, with a reason, where it fails."""
    peer = peers.peer(job["peer"])
    if lacking := peer.lacking():
        raise SystemExit(lacking)
    work = Path(job["work"])
    torch.set_num_threads(job["threads"])
    ids = load_file(work / CALIBRATION)["ids"]
    driver = digest(Path(sys.modules[peer.__module__].__file__))
    for method, q, g in job["rows"]:
        options, path = peer.ways[method], work / row_file(method, q, g)
        facts = {"version": peer.version(), "options": dict(options), "gradient": peer.gradient}
        facts |= {"asked": job["asked"], "driver": driver}
        kept = json.loads(path.read_text()) if path.exists() else {}
        if "not_run" not in kept and facts.items() <= kept.items():
            continue
        start = time.perf_counter()
        try:
            dense = peer.quantize(job["model"], options, q, g, ids)
        except Exception as error:  # whatever it raises is the result at this setting
            traceback.print_exc()
            reason = str(error).strip().partition("\n")[0]
            facts["not_run"] = f"{type(error).__name__}: {reason}"
        else:
            facts["seconds"] = time.perf_counter() - start
            dense = {name: value.detach().float().contiguous() for name, value in dense.items()}
            save_file(
                {name: value.clone() for name, value in dense.items()},
                path.with_suffix(".safetensors"),
            )
        with path.open("w") as file:
            json.dump(facts, file, indent=1)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def row_file(method: str, q: int, g: int) -> str:
    return f"{method.replace(' ', '_').replace('=', '-')}-q{q}-g{g}.json"


def ask(
    peer: str,
    python: str,
    folder: Path,
    ids: torch.Tensor,
    rows: Sequence[tuple[str, int, int]],
    work: Path,
    threads: int,
) -> Iterator[tuple[str, int, int, dict[str, Any], dict[str, torch.Tensor] | None]]:
    """Yield method, q, g, facts, state dict; None and the fact `not_run` where there is none.

    Args:
        peer: its registered name.
        python: of an environment that has it.
        folder: of the model.
        ids: [samples, S], the calibration windows.
        rows: method, q, g of each.
        work: where the answers are kept; of this model, these windows and this peer alone.
        threads: of the peer's torch.
    """
    work = work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    save_file({"ids": ids}, work / CALIBRATION)
    asked = [digest(path) for path in (work / CALIBRATION, *sorted(folder.glob("*.safetensors")))]
    job = {
        "peer": peer,
        "model": str(folder.resolve()),
        "work": str(work),
        "threads": threads,
        "rows": list(rows),
    }
    # its absolute path, links kept, by which it knows its environment
    python = os.path.abspath(shutil.which(python) or python)
    command = [python, __file__, json.dumps(job | {"asked": asked})]
    environment = surroundings(threads)
    environment["HF_HUB_OFFLINE"] = "1"  # some look there for files that the folder lacks
    # in that folder, for some write logs where they run
    run = subprocess.run(command, check=False, stdout=sys.stderr, env=environment, cwd=work)
    for method, q, g in rows:
        path = work / row_file(method, q, g)
        facts = json.loads(path.read_text()) if path.exists() else {}
        if facts.get("asked") != asked:
            facts = {"not_run": f"its process ended with status {run.returncode}"}
        dense = None if "not_run" in facts else load_file(path.with_suffix(".safetensors"))
        yield method, q, g, {k: v for k, v in facts.items() if k not in ("asked", "driver")}, dense


class Material:
    """A model in full precision, the windows it is calibrated on, and the text it is judged by."""

    def __init__(
        self,
        name: str,
        samples: int,
        seqlen: int,
        seed: int,
        texts: tuple[Path, Path] | None = None,
    ) -> None:
        """Args:
        name: an embedded model's, or a folder.
        samples: calibration windows.
        seqlen: their tokens, and those of an evaluated window.
        seed: of the draw.
        texts: files to calibrate on and to evaluate; None takes Python's documentation.
        """
        from lutlab.base.specs import ModelSpec, Text, TextSpec
        from lutlab.data import load_text
        from lutlab.data.tokens import calibration_windows, token_stream
        from lutlab.models.load import embedded_names, folder_of, load_model

        spec = ModelSpec(name, "embedded" if name in embedded_names() else "folder", name)
        loaded = load_model(spec, torch.float32, "cpu", 0)
        self.name, self.seqlen, self.seed = Path(name).name, seqlen, seed
        self.folder, self.model = folder_of(spec), loaded.model
        both = []
        for protocol, path in zip(("pydocs-train", "topics"), texts or (None, None), strict=True):
            if path is None:
                both.append(load_text(TextSpec(protocol, "embedded")))
            else:  # one row, tokenized as that protocol is
                row = path.read_text(encoding="utf-8")
                both.append(Text(protocol, (row,), digest(path), path.name))
        self.texts = [text.origin for text in both]
        self.ids = calibration_windows(both[0], loaded.tokenizer, samples, seqlen, seed)
        self.held_out = token_stream(both[1], loaded.tokenizer, seqlen)

    def fresh(self) -> torch.nn.Module:
        """A copy of the model."""
        return copy.deepcopy(self.model)

    def perplexity(self, model: torch.nn.Module) -> float:
        """Of the held-out text in windows of seqlen tokens, by the GPTQ protocol."""
        from lutlab.evaluators.perplexity import window_nll

        nll = window_nll(model, self.held_out, self.seqlen)
        return math.exp(sum(nll) / (len(nll) * self.seqlen))

    def facts(self) -> dict[str, Any]:
        """For the record: names, hashes, and the perplexity in full precision."""
        from lutlab.data.tokens import token_sha256

        return {
            "model": self.name,
            "seed": self.seed,
            "texts": self.texts,
            "full_precision_ppl": self.perplexity(self.model),
            "calibration_sha256": token_sha256(self.ids.flatten()),
            "held_out_sha256": token_sha256(self.held_out),
        }


def with_weights(model: torch.nn.Module, dense: dict[str, torch.Tensor]) -> torch.nn.Module:
    """The model with a peer's tensors; all of its own must be there, those of codes and scales are left out."""
    own = model.state_dict()
    if missing := [name for name in own if name not in dense]:
        raise KeyError(f"the peer saved no {missing[0]} and {len(missing) - 1} more")
    model.load_state_dict({key: dense[key] for key in own})
    return model


def levels(weight: torch.Tensor, g: int) -> int:
    """The most distinct values that a group of g weights of a row of [N, K] holds."""
    most = 0
    for group in weight.split(g, dim=1):
        ordered = group.sort(dim=1).values
        most = max(most, 1 + int((ordered[:, 1:] != ordered[:, :-1]).sum(1).max()))
    return most


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
