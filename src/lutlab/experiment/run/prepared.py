"""The model of a job: loaded, quantized, ready for every evaluator and for talking."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lutlab import recipe
from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedTokenizerBase, torch
from lutlab.base.progress import tell
from lutlab.base.quiet import quiet
from lutlab.base.specs import CalibrationSpec, ModelRun, ProductRun, Subject, Text
from lutlab.checkpoint.stored import load_stored
from lutlab.compress.kept_blocks import BlockStore
from lutlab.compress.synthetic import load_packed
from lutlab.data import calibration_inputs
from lutlab.data.pairs import labelled_pairs
from lutlab.experiment.plan.plan import Job, job_of_model
from lutlab.experiment.plan.resolve import Files
from lutlab.experiment.row.row import Row
from lutlab.experiment.run import advice, cli
from lutlab.experiment.run.words import OF_TABLES
from lutlab.models.contract import CLASSIFIES
from lutlab.models.families import evaluation_seqlen, task_of
from lutlab.models.load import folder_of, load_model, load_tokenizer
from lutlab.quantizers.contract import make_method
from lutlab.quantizers.stored import STORED
from lutlab.tuning.losses import Labelled

# A model, quantized, or a product, whose evaluator draws the weights; and facts that say how, for every record of it.
Prepared = tuple[Subject | ProductRun, dict[str, Any]]


@dataclass(frozen=True)
class Planned:
    """The model of a command, before anything is loaded: all that can be refused was refused.

    Attributes:
        settings: the row of the command line.
        job: its job, whose blocks are kept.
        files: the texts that were read.
        tokenizer: the model's.
    """

    settings: Row
    job: Job
    files: Files
    tokenizer: PreTrainedTokenizerBase

    @classmethod
    def of(cls, line: Sequence[str], words: Iterable[str]) -> Planned:
        """Plan a command line, warn of widths beyond use, and set the number of threads.

        Args:
            line: keys of a sweep, the model among them.
            words: words of the command itself, which a misspelled key may have meant.

        Raises:
            LutlabError: a mistake in the line, a text or a model that is not there, or a model without a tokenizer.
        """
        settings, files = cli.composed(line, OF_TABLES, words), Files()
        job = job_of_model(settings, files)
        advice.warn(job.run)
        tokenizer = _tokenizer_of(job)
        if settings.threads:
            torch.set_num_threads(settings.threads)
        return cls(settings, job, files, tokenizer)

    def prepared(self) -> Subject:
        """The model, quantized."""
        return prepare(self.job, self.files)[0]


def _tokenizer_of(job: Job) -> PreTrainedTokenizerBase:
    spec = job.run.model
    with quiet():
        tokenizer = load_tokenizer(folder_of(spec), required=spec.source != "synthetic")
    if tokenizer is None:
        raise LutlabError(
            f"{job.run.name} came without a tokenizer, so no text can be read: copy the model's tokenizer.json beside "
            "its config.json"
        )
    return tokenizer


def prepare(job: Job, files: Files) -> Prepared:
    """Load and quantize. Calibrated and streamed models are kept block by block, so that nothing is done twice.

    Args:
        job: the row; its cells are not looked at.
        files: the texts that this process has read.
    """
    spec = job.run
    if not isinstance(spec, ModelRun):
        return spec, {}
    if spec.method == STORED:
        return _stored(spec)
    if spec.model.packed:
        return _drawn(spec)
    tell(f"loading {spec.name}")
    loaded = load_model(
        spec.model, getattr(torch, spec.dtype), spec.device, spec.seed, stream=job.stream
    )
    model, seqlen = loaded.model, evaluation_seqlen(loaded.model.config)
    began = time.monotonic()
    task = task_of(model)
    windows = spec.calibration and _windows(job, files, loaded.tokenizer, task, seqlen)
    labelled = None
    if spec.tuning and task == CLASSIFIES:
        labelled = _labelled(job, files, loaded.tokenizer, seqlen)
    layers, facts = recipe.quantize(
        *(model, make_method(spec.method, **dict(spec.options)), spec.q, spec.g, windows),
        labelled=labelled,
        sublayers=spec.sublayers,
        skip=spec.skip,
        layers=spec.layers,
        budget=spec.budget,
        candidates=spec.candidates,
        tuning=spec.tuning,
        blocks=loaded.blocks,
        folders=recipe.Folders(job.quantized, job.untuned, job.inputs),
    )
    if spec.calibration and (differs := files.text(spec.calibration.text).differs):
        facts["calibration_text_differs"] = differs
    if job.stream:
        loaded.blocks.serve(BlockStore(job.quantized).serve)
    if widened := [layer.name for layer in layers if layer.widened]:
        facts["float32_coefficients"] = widened
    facts["quantize_seconds"] = round(time.monotonic() - began, 3)
    return Subject(model, loaded.tokenizer, layers, None, seqlen, spec), facts


def _stored(spec: ModelRun) -> Prepared:
    """A model that is quantized already."""
    tell(f"loading {spec.name}")
    loaded, layers, facts = load_stored(spec.model, getattr(torch, spec.dtype), spec.device)
    seqlen = evaluation_seqlen(loaded.model.config)
    return Subject(loaded.model, loaded.tokenizer, layers, None, seqlen, spec), facts


def _drawn(spec: ModelRun) -> Prepared:
    """A synthetic model whose layers are drawn as they are stored."""
    began = time.monotonic()
    loaded, layers = load_packed(spec)
    facts = {"weights": "drawn as stored", "draw_seconds": round(time.monotonic() - began, 3)}
    seqlen = evaluation_seqlen(loaded.model.config)
    return Subject(loaded.model, loaded.tokenizer, layers, None, seqlen, spec), facts


def _windows(job: Job, files: Files, tokenizer: Any, task: str, seqlen: int) -> Any:
    """Calibration windows of a job."""
    text, chosen = _calibration(job, files, tokenizer)
    return calibration_inputs(
        task, text, tokenizer, chosen.samples, chosen.seqlen or seqlen, chosen.seed
    )


def _labelled(job: Job, files: Files, tokenizer: Any, seqlen: int) -> Any:
    """The same pairs with their labels, which tuning trains on."""
    text, chosen = _calibration(job, files, tokenizer)
    return Labelled(
        *labelled_pairs(text, tokenizer, chosen.samples, chosen.seqlen or seqlen, chosen.seed)
    )


def _calibration(job: Job, files: Files, tokenizer: Any) -> tuple[Text, CalibrationSpec]:
    """The text to calibrate on, and how it is drawn from."""
    if tokenizer is None:
        raise LutlabError(
            f"{job.run.name} came without a tokenizer, so it cannot be calibrated on a text"
        )
    chosen = job.run.calibration
    return files.planned_text(chosen.text, job.calibration_sha256), chosen
