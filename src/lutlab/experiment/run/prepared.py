"""The model of a job: loaded, quantized, ready for every evaluator and for talking."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from lutlab import recipe
from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedTokenizerBase, torch
from lutlab.base.progress import tell
from lutlab.base.quiet import quiet
from lutlab.base.specs import LayerStats, ModelRun, Subject
from lutlab.checkpoint.stored import load_stored
from lutlab.compress.kept_blocks import BlockStore
from lutlab.compress.synthetic import load_packed
from lutlab.data import calibration_inputs
from lutlab.data.pairs import labelled_pairs
from lutlab.data.protocols import OWN, PROTOCOLS
from lutlab.experiment.plan.plan import Job, job_of_model
from lutlab.experiment.plan.resolve import Files
from lutlab.experiment.row.row import Row
from lutlab.experiment.run import advice, cli
from lutlab.experiment.run.words import OF_TABLES
from lutlab.generate import own
from lutlab.models.contract import CLASSIFIES
from lutlab.models.families import evaluation_seqlen, task_of
from lutlab.models.load import LoadedModel, folder_of, load_model, load_tokenizer
from lutlab.models.streamed import Streamed
from lutlab.quantizers.contract import make_method
from lutlab.quantizers.stored import STORED
from lutlab.tuning.losses import Labelled


@dataclass(frozen=True)
class Planned:
    """The model of a command, before anything is loaded: all that can be refused was refused.

    Attributes:
        settings: the row of the command line.
        job: its job, whose blocks are kept.
        run: the run of the job.
        files: the texts that were read.
        tokenizer: the model's.
    """

    settings: Row
    job: Job
    run: ModelRun
    files: Files
    tokenizer: PreTrainedTokenizerBase

    @classmethod
    def from_line(cls, line: Sequence[str], words: Iterable[str]) -> Planned:
        """Plan a command line, warn of widths beyond use, and set the number of threads.

        Args:
            line: keys of a sweep, the model among them.
            words: words of the command itself, which a misspelled key may have meant.

        Raises:
            LutlabError: a mistake in the line, a text or a model that is not there, or a model without a tokenizer.
        """
        settings, files = cli.composed(line, OF_TABLES, words), Files()
        job = job_of_model(settings, files)
        run = cast("ModelRun", job.run)  # no product is planned as a model
        advice.warn(run)
        tokenizer = _tokenizer_of(run)
        if settings.threads:
            torch.set_num_threads(settings.threads)
        return cls(settings, job, run, files, tokenizer)

    def prepared(self) -> Subject:
        """The model, quantized."""
        return prepare(self.run, self.job, self.files)[0]


def _tokenizer_of(run: ModelRun) -> PreTrainedTokenizerBase:
    with quiet():
        tokenizer = load_tokenizer(folder_of(run.model), required=run.model.source != "synthetic")
    if tokenizer is None:
        raise LutlabError(
            f"{run.name} came without a tokenizer, so no text can be read: copy the model's tokenizer.json beside "
            "its config.json"
        )
    return tokenizer


def prepare(run: ModelRun, job: Job, files: Files) -> tuple[Subject, dict[str, Any]]:
    """Load and quantize. Calibrated and streamed models are kept block by block, so that nothing is done twice.

    Args:
        run: the job's run.
        job: the row; its cells are not looked at.
        files: the texts that this process has read.

    Returns:
        The model; facts that say how, for every record of it.
    """
    if run.method == STORED:
        tell(f"loading {run.name}")
        loaded, layers, facts = load_stored(run.model, getattr(torch, run.dtype), run.device)
    elif run.model.packed:
        began = time.monotonic()
        loaded, layers = load_packed(run)
        seconds = round(time.monotonic() - began, 3)
        facts = {"weights": "drawn as stored", "draw_seconds": seconds}
    else:
        loaded, layers, facts = _quantized(run, job, files)
    seqlen = evaluation_seqlen(loaded.model.config)
    return Subject(loaded.model, loaded.tokenizer, layers, None, seqlen, run), facts


def _quantized(
    run: ModelRun, job: Job, files: Files
) -> tuple[LoadedModel, tuple[LayerStats, ...], dict[str, Any]]:
    tell(f"loading {run.name}")
    loaded = load_model(
        run.model, getattr(torch, run.dtype), run.device, run.seed, stream=job.stream
    )
    began = time.monotonic()
    folders = filter(None, (job.quantized, job.untuned))
    goes_on = any(any(folder.glob("*.safetensors")) for folder in folders)
    task = task_of(loaded.model)
    text = windows = labelled = None
    if chosen := run.calibration:
        if loaded.tokenizer is None:
            raise LutlabError(
                f"{run.name} came without a tokenizer, so it cannot be calibrated on a text"
            )
        text = files.planned_text(chosen.text, job.calibration_sha256)
        if text.protocol == OWN:
            model = hashlib.sha256(files.model_sha256(run.model).encode()).hexdigest()[:16]
            file = job.results / "calibration" / f"own-{PROTOCOLS[OWN].version}-{model}.json"
            text = own.text(loaded.model, loaded.tokenizer, file)
        length = chosen.seqlen or evaluation_seqlen(loaded.model.config)
        samples = chosen.samples + ((run.tuning and run.tuning.samples) or 0)
        drawn = (text, loaded.tokenizer, samples, length, chosen.seed)
        windows = calibration_inputs(task, *drawn)
        if run.tuning and task == CLASSIFIES:  # on the same pairs
            labelled = Labelled(*labelled_pairs(*drawn))
    layers, facts = recipe.quantize(
        loaded.model,
        make_method(run.method, **dict(run.options)),
        run.q,
        run.g,
        windows,
        labelled=labelled,
        sublayers=run.sublayers,
        skip=run.skip,
        layers=run.layers,
        budget=run.budget,
        candidates=run.candidates,
        tuning=run.tuning,
        blocks=loaded.blocks,
        folders=recipe.Folders(job.quantized, job.untuned, job.inputs),
    )
    if text and text.protocol == OWN:
        facts["calibration_text_sha256"] = text.sha256
    if text and text.differs:
        facts["calibration_text_differs"] = text.differs
    if isinstance(loaded.blocks, Streamed) and job.quantized:  # streamed blocks are always kept
        loaded.blocks.serve(BlockStore(job.quantized).serve)
    if widened := [layer.name for layer in layers if layer.widened]:
        facts["float32_coefficients"] = widened
    if not goes_on:  # else part of the work was done before, and its seconds are not known
        facts["quantize_seconds"] = round(time.monotonic() - began, 3)
    return loaded, layers, facts
