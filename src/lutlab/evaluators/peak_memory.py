"""Peak memory of a fresh process that loads a saved model and decodes 128 tokens (QIGen Table 3).

    peak_memory_gb  = largest resident set of the process / 10^9       all of it: interpreter, libraries, model
    model_memory_gb = that, less the resident set just before the model is loaded

Resident set: VmHWM and VmRSS of /proc/self/status, not getrusage's ru_maxrss, which begins at the size of the process
that started this one. The model is written to a temporary folder first; weights are mapped from there, and count as
far as decoding touches them: of the embeddings a row a token.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from lutlab.base import children
from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedModel, torch, transformers
from lutlab.base.limits import Count
from lutlab.base.registry import register
from lutlab.base.specs import Measurement, Subject
from lutlab.evaluators.contract import Evaluator, Metric
from lutlab.evaluators.depth import scaled_to_all_layers
from lutlab.evaluators.generation import check_context, decode, kernels
from lutlab.models.pretrained import model_of

_STATUS = Path("/proc/self/status")


@register("evaluator", "peak_memory")
@dataclass(frozen=True)
class PeakMemory(Evaluator):
    """Metrics `peak_memory_gb` and `model_memory_gb`, in 10^9 bytes.

    Attributes:
        tokens: number of tokens to decode.
    """

    version: ClassVar[int] = 1
    task: ClassVar[str] = "causal_lm"
    metrics: ClassVar[tuple[Metric, ...]] = (
        Metric("peak_memory_gb", "GB", "peak memory"),
        Metric("model_memory_gb", "GB", "memory of the model"),
    )
    of_this_machine: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("transformers",)
    tokens: Count = 128

    @scaled_to_all_layers
    def measure(self, subject: Subject) -> Measurement:
        """Needs no text and no tokenizer; disk for the model in the temporary folder (TMPDIR).

        Raises:
            MemoryError: the process was killed, as a system does that runs out of memory.
        """
        model = subject.model
        check_context(model, self.tokens)
        if not _STATUS.exists():
            raise LutlabError(f"peak_memory reads {_STATUS}, which only Linux has")
        if any(p.is_meta for p in model.parameters()):
            raise LutlabError(
                "peak_memory needs the whole model in memory: run without stream=true"
            )
        with tempfile.TemporaryDirectory(prefix="lutlab-") as parent:
            folder = Path(parent) / "model"
            save(model, folder)
            seen = _in_a_fresh_process(folder, type(model).__module__, self.tokens)
        values = {
            "peak_memory_gb": seen["peak"] / 1e9,
            "model_memory_gb": (seen["peak"] - seen["before"]) / 1e9,
        }
        facts = {
            "tokens": self.tokens,
            "kernel": seen["kernel"],
            "threads": seen["threads"],
            "interpreter_gb": seen["before"] / 1e9,
        }
        return Measurement(values=values, n=1, facts=facts)


def save(model: PreTrainedModel, folder: Path) -> None:
    """Write a model, quantized or not, without transformers' progress bar, which would run through a table's own.

    Raises:
        LutlabError: the disk is full, or the folder cannot be written.
    """
    from transformers.utils import logging

    from lutlab.checkpoint import saving
    from lutlab.modules import QuantLinear

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        if any(isinstance(module, QuantLinear) for module in model.modules()):
            saving.save(model, folder)
        else:
            model.save_pretrained(folder)
    except OSError as error:
        raise LutlabError(
            f"cannot write the model to {folder} ({error}): free some space, or name another folder in TMPDIR"
        ) from error
    finally:
        if shown:
            logging.enable_progress_bar()


def _in_a_fresh_process(folder: Path, modeling: str, tokens: int) -> dict[str, Any]:
    code = "from lutlab.evaluators import peak_memory; peak_memory.run(*sys.argv[1:])"
    arguments = (str(folder), modeling, str(tokens), str(torch.get_num_threads()))
    done = subprocess.run(
        children.python(code, *arguments),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    if done.returncode == -signal.SIGKILL:
        raise MemoryError("the process that measures peak memory was killed")
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise LutlabError(f"the process that measures peak memory failed: {last}")
    return json.loads(done.stdout.splitlines()[-1])


def run(folder: str, modeling: str, tokens: str, threads: str) -> None:
    """Work of the fresh process: load, decode, print the bytes it saw as JSON.

    `modeling` is the module that defines the model, imported before memory is looked at.
    """
    import importlib

    importlib.import_module("lutlab.checkpoint.transformers")
    importlib.import_module(modeling)
    torch.set_num_threads(int(threads))
    before = _resident("VmRSS")
    model, _ = model_of(transformers.AutoModelForCausalLM, Path(folder), dtype="auto")
    model.eval()
    with torch.inference_mode():
        decode(model, int(tokens))
    seen = {
        "before": before,
        "peak": _resident("VmHWM"),
        "kernel": kernels(),
        "threads": int(threads),
    }
    print(json.dumps(seen))


def _resident(field: str) -> int:
    """Bytes that /proc/self/status has under VmRSS (now) or VmHWM (the most so far)."""
    fields = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
    return 1024 * int(fields[field].removesuffix("kB"))
