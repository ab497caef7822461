"""Cost of a cell here, seconds, peak memory, disk, downloads, and mode=plan, which prints it and runs nothing.

An evaluator says what it does in units of no machine (evaluators/contract.py, Work); the rates are measured here in a
moment. Seconds: 2 * parameters * tokens floating-point operations of a forward pass plus 4 * layers * hidden * seqlen a
token of attention, at half of the matmul rate. Memory: the weights, and one batch of logits with its float32 copy.
Calibration adds its forward passes, M K^2 a Hessian and N K^2 a linear layer, and holds the hidden states of all
windows and the Hessians of a block. A target of the full-precision model (compress/target.py) doubles passes and hidden
states, and holds a second block and cross moments; hessian=gradients adds a pass forward and back and another through
every block, and Hessians of every group of outputs. Tuning adds passes forward and back. A decoded token reads the
linear weights, as stored, and the head, at a share of the rate at which memory is read here, and costs transformers'
own work.
"""

from __future__ import annotations

import functools
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.lazy import torch
from lutlab.base.specs import EvalSpec, ModelRun, RunSpec, TextSpec
from lutlab.data import tasks
from lutlab.data.protocols import PROTOCOLS
from lutlab.evaluators.contract import Work
from lutlab.experiment.artifact.artifact import Artifact
from lutlab.experiment.artifact.predicted import OOM, least, predicted
from lutlab.experiment.plan.plan import PlannedCell, PlannedRow
from lutlab.experiment.plan.resolve import Files
from lutlab.models import hub
from lutlab.models.shape import ModelShape, linear_shapes, shape_of
from lutlab.predict import latency
from lutlab.quantizers.contract import make_method

# of a task whose rows lm-eval fetches: a guess, which is known when it is loaded
TASK_EXAMPLES, TASK_TOKENS = 2000, 100
CHARACTERS_PER_TOKEN = 3.3  # of the embedded tokenizer; larger vocabularies need fewer tokens
RECORD_BYTES = 8_000
_EFFICIENCY = 0.5  # of the large-matmul rate that a whole forward pass reaches
_LOAD_SECONDS = 1.0
_RATE_SECONDS = 0.5  # of measuring a rate
_LEAST_SECONDS = 0.1  # of any cell: what is not modelled
_CALIBRATION_PASSES = 2  # through a block: to see what its layers read, and on to the next block
_GRADIENT_PASSES = 4  # forward, backward (twice that), and once more to weigh tokens
_TARGET_MOMENTS = 4  # as large as a Hessian: its factor, D, and H and D of the windows held out
_TUNING_PASSES = 4  # forward, backward (twice that), and the full-precision model's
_ROUNDING_SECONDS = 5e-8  # a weight rounded, packed and decoded on one core
# a linear weight in float32, and Adam's two means; or decoded, and its code
_TUNING_BYTES = {"weights": 12, "scales": 5}
_LAYER_SECONDS = 1e-3  # a layer and token of transformers' own work
_PROCESS_SECONDS = 15.0  # until a fresh process has imported torch and transformers
_DISK_RATE = 0.5e9  # bytes a second, written and read again
_DRAWN_SECONDS = 0.005  # a million weights of a model, drawn and packed
_DRAW_SECONDS = 1e-7  # a weight of a product, drawn and packed


@dataclass(frozen=True)
class Cost:
    """Predicted cost of one cell; state_bytes: kept on disk, once for all rows of its model, dtype and text."""

    seconds: float
    peak_bytes: int
    state_bytes: int = 0


@functools.cache
def matmul_rate(device: str, dtype: str) -> float:
    """Floating-point operations a second of a 1024^3 matmul here."""
    a = torch.randn(1024, 1024, device=_place(device), dtype=getattr(torch, dtype))
    return 2 * 1024**3 / _fastest(lambda: (a @ a).sum().item())


@functools.cache
def read_rate(device: str) -> float:
    """Bytes a second that a sum over 256 MB reads here."""
    values = torch.ones(2**26, device=_place(device))
    return values.nbytes / _fastest(lambda: values.sum().item())


def _place(device: str) -> str:
    return "cuda" if device == "spread" else device


def _fastest(call: Callable[[], object]) -> float:
    """Seconds of the fastest call of half a second, at least five: where others work, one has the cores alone."""
    seconds: list[float] = []
    while len(seconds) < 5 or sum(seconds) < _RATE_SECONDS:
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def predict(run: RunSpec, evaluation: EvalSpec, files: Files) -> Cost:
    """Predicted seconds and peak bytes of one cell, loading and quantizing not included in the seconds."""
    evaluator = registry.lookup("evaluator", evaluation.evaluator)
    work: Work = evaluator(**dict(evaluation.options)).work(run)
    if not isinstance(run, ModelRun):
        reading = work.streamed_bytes / (work.read_share * read_rate(run.device))
        return Cost(reading + _DRAW_SECONDS * work.drawn_weights, work.held_bytes)
    shape = shape_of(run.model)
    held = _model_bytes(run, shape) + work.held_bytes
    tokens, states = float(work.checked_tokens), 0
    if evaluation.text and work.passes:
        read = _tokens(evaluation.text, shape.seqlen, files)
        tokens += work.passes * read
        states = int(work.state_files * read * shape.hidden * _width(run))
        held += 2048 * shape.vocabulary * (_width(run) + 4)
    codes, head = _packed_bytes(run, shape, work)
    seconds = _seconds(run, _forward(shape, tokens)) if tokens else _LEAST_SECONDS
    seconds += _decoding_seconds(run, shape, work, codes, head)
    seconds += work.processes * _PROCESS_SECONDS
    seconds += work.packed_files * (codes + head) / _DISK_RATE
    seconds += work.float32_files * 4 * shape.parameters / _DISK_RATE
    if work.decoded_tokens and run.model.layers:  # measured with half of them as well
        seconds *= 1.5
    held += work.packed_copies * (codes + head)
    held += work.dense_copies * shape.parameters * _width(run)
    return Cost(seconds, int(held), states)


def _width(run: ModelRun) -> int:
    """Bytes of a number of the model's dtype."""
    return 4 if run.dtype == "float32" else 2


def _model_bytes(run: ModelRun, shape: ModelShape) -> int:
    """The model in memory while it is quantized, and what calibration holds."""
    width = _width(run)
    if run.model.packed:
        return _drawn_bytes(run, shape)
    held = shape.parameters * width + shape.linear_parameters * (width if run.q < 16 else 0)
    if run.calibration:
        states = run.calibration.samples * _window(run, shape) * shape.hidden * width
        held += states + 4 * sum(columns**2 for columns, _ in shape.inputs)
        held += 4 * _groups(run) * sum(columns**2 for columns, _ in shape.inputs)
        if _beside(run):
            largest = max(columns for columns, _ in shape.inputs)
            held += states + 4 * _TARGET_MOMENTS * largest**2
            held += shape.linear_parameters // shape.layers * width
    if run.tuning:
        held += _TUNING_BYTES[run.tuning.trains] * shape.linear_parameters
    return held


def _drawn_bytes(run: ModelRun, shape: ModelShape) -> int:
    """A model whose layers are drawn as they are stored, at q and g; all else in the model's dtype."""
    from lutlab.compress.sizes import stored_bits

    method = make_method(run.method, **dict(run.options))
    if not method.quantizes:
        return shape.parameters * _width(run)
    sizes = linear_shapes(run.model).values()
    packed = sum(stored_bits(method, run.q, run.g, *one) for one in sizes) // 8
    return packed + (shape.parameters - shape.linear_parameters) * _width(run)


def _packed_bytes(run: ModelRun, shape: ModelShape, work: Work) -> tuple[float, int]:
    """Linear weights as stored while decoding, and the head."""
    width = _width(run)
    group = shape.hidden if run.g == -1 else run.g
    bits = work.bits or (8 * width if run.q == 16 else run.q + 32 / group)
    return shape.linear_parameters * bits / 8, shape.vocabulary * shape.hidden * width


def _decoding_seconds(
    run: ModelRun, shape: ModelShape, work: Work, codes: float, head: int
) -> float:
    """Token after token; codes, head: bytes that each reads."""
    if not work.decoded_tokens:
        return 0.0
    reading = (codes / work.read_share + head / _EFFICIENCY) / read_rate(run.device)
    return work.decoded_tokens * (reading + shape.layers * _LAYER_SECONDS)


def _forward(shape: ModelShape, tokens: float) -> float:
    """Operations of a forward pass over many tokens at once."""
    return tokens * (2 * shape.parameters + 4 * shape.layers * shape.hidden * shape.seqlen)


def _seconds(run: ModelRun, operations: float) -> float:
    return operations / (matmul_rate(run.device, run.dtype) * _EFFICIENCY)


def _tokens(text: TextSpec, seqlen: int, files: Files) -> float:
    if text.source == tasks.SOURCE:
        return (text.limit or TASK_EXAMPLES) * TASK_TOKENS
    rule = PROTOCOLS[text.protocol]
    if text.source != "hub":
        rows = files.text(text).rows
        kept = rows if rule.kind == "stream" else rows[: text.limit]
        tokens = sum(map(len, kept)) / CHARACTERS_PER_TOKEN
    else:
        tokens = rule.windows * seqlen if rule.windows else rule.tokens
    return min(tokens, text.limit * seqlen) if text.limit and rule.kind == "stream" else tokens


def quantize_seconds(run: RunSpec) -> float:
    """Loading and quantizing one row: about 0.1 s a million weights for alternating BCQ on two cores, 0.03 for RTN."""
    if not isinstance(run, ModelRun):
        return 0.0
    shape = shape_of(run.model)
    rate = {"none": 0.0, "stored": 0.0, "rtn": 0.03}.get(run.method, 0.1)
    rate = _DRAWN_SECONDS if run.model.packed else rate
    tries = max(1, len(run.candidates))  # a search under a budget quantizes at every width
    seconds = rate * shape.linear_parameters / 1e6 + _calibration_seconds(run, shape)
    return _LOAD_SECONDS + tries * seconds + _tuning_seconds(run, shape, seconds)


def _tuning_seconds(run: ModelRun, shape: ModelShape, quantizing: float) -> float:
    """A model quantized once more, the passes of its steps, and every weight rounded in each; quantizing: seconds."""
    if not run.tuning:
        return 0.0
    # a step on each of the blocks is one on the model, but for its head
    steps = run.tuning.steps + run.tuning.block_steps
    tokens = steps * run.tuning.batch * _window(run, shape)
    rounded = steps * _ROUNDING_SECONDS * shape.linear_parameters
    return quantizing + _TUNING_PASSES * _seconds(run, _forward(shape, tokens)) + rounded


def _window(run: ModelRun, shape: ModelShape) -> int:
    return run.calibration.seqlen or shape.seqlen


def _beside(run: ModelRun) -> bool:
    """Whether the full-precision model goes beside the quantized one."""
    return dict(run.options).get("target", "weights") != "weights"


def _groups(run: ModelRun) -> int:
    """Groups of outputs that have a Hessian of their own; 0 where all tokens count the same."""
    options = dict(run.options)
    if options.get("hessian", "inputs") == "inputs":
        return 0
    return options.get("output_groups", registry.lookup("method", run.method).output_groups)


def _calibration_seconds(run: ModelRun, shape: ModelShape) -> float:
    if not run.calibration:
        return 0.0
    tokens = run.calibration.samples * _window(run, shape)
    beside, groups = _beside(run), _groups(run)
    solve = sum(
        2 * (1 + beside) * tokens * columns**2 + (2 * columns + 4 * rows) * columns**2
        for columns, rows in shape.inputs
    )
    passes = (1 + beside) * _CALIBRATION_PASSES + (_GRADIENT_PASSES if groups else 0)
    return _seconds(run, passes * _forward(shape, tokens) + (1 + groups) * shape.layers * solve)


def disk_bytes(run: RunSpec) -> int:
    """Bytes kept of a calibrated row: its quantized blocks, those before tuning, the statistics of its inputs."""
    if not isinstance(run, ModelRun) or not run.calibration:
        return 0
    shape = shape_of(run.model)
    packed = int(shape.linear_parameters * min(run.q + 2, 16) / 8)
    packed *= 2 if run.tuning else 1
    return packed + 4 * shape.layers * sum(columns**2 for columns, _ in shape.inputs)


# ---- mode=plan ----


def print_plan(
    artifact: Artifact | None,
    rows: Sequence[PlannedRow],
    results: Path,
    console: Console,
    files: Files,
) -> None:
    """Print the plan of an artifact or a sweep: what all of it is predicted to cost, then a line for each row.

    Of rows with predicted columns it says the latency, memory and least number of GPUs of the paper's model too.
    """
    table = Table(box=None)
    for title in ("row", "model"):
        table.add_column(title, no_wrap=True, overflow="ellipsis", ratio=1)
    for title in ("done", "to do", "not run", "time", "memory"):
        table.add_column(title, justify="right", no_wrap=True, min_width=max(7, len(title)))
    planned: dict[tuple[RunSpec, EvalSpec], Cost | None] = {}
    unknown: set[str] = set()
    retried = 0
    for row in rows:
        cells = {cell.evaluation: cell for cell in row.cells.values()}
        wanted = {e: cell for e, cell in cells.items() if not (cell.missing or cell.done)}
        costs = {e: _predict(row, cell, unknown, files) for e, cell in wanted.items()}
        planned |= {(row.spec, e): predicted for e, predicted in costs.items()}
        retried += sum(cell.record is not None for cell in wanted.values())
        known = all(costs.values())
        seconds = sum(one.seconds for one in costs.values()) if known else 0
        peak = max((one.peak_bytes for one in costs.values()), default=0) if known else 0
        done = sum(cell.done for cell in cells.values())
        table.add_row(
            *(row.key, row.spec.name),
            *(f"{n or ''}" for n in (done, len(wanted), len(cells) - done - len(wanted))),
            (f"{seconds:,.1f} s" if known else "?") if wanted else "",
            (f"{peak / 1e6:,.0f} MB" if known else "?") if wanted else "",
        )
    name = artifact.name if artifact else "sweep"
    console.print(f"plan: {name} (predictions; nothing is run)", highlight=False)
    console.print(_summary(planned, results), highlight=False)
    if retried:
        console.print(f"{retried} cells failed before and are tried again", highlight=False)
    console.print(table)
    for reason in sorted({c.missing for row in rows for c in row.cells.values() if c.missing}):
        console.print(f"not run: {reason}", highlight=False)
    for reason in sorted(unknown):
        console.print(f"not predicted: {reason}", highlight=False)
    for line in _per_token(artifact, rows) if artifact else ():
        console.print(line, highlight=False, soft_wrap=True)


def _per_token(artifact: Artifact, rows: Sequence[PlannedRow]) -> Iterator[str]:
    """A line for each row with predicted columns: milliseconds, memory, the least GPUs that hold the model."""
    predictions = artifact.predictions()
    said = ""
    for row in rows:
        own = [of for (key, _), of in predictions.items() if key == row.key]
        if not own:
            continue
        found = [latency(**of) for of in own]
        _, note = predicted(own[0])
        if note != said:
            yield f"\npredicted, of the paper's models, {note}:"
        said = note
        times = ", ".join(f"{one.ms_per_token:.1f}" if one.fits else OOM for one in found)
        sizes = ", ".join(f"{one.memory.each / 1e9:.1f}" for one in found)
        gpus = ", ".join(str(of["gpus"]) for of in own)
        enough = least(own[0])
        held = f"{enough} GPU(s) hold it" if enough else "no number of GPUs holds it"
        yield f"  {row.key}: {times} ms/token on {gpus} GPU(s); {sizes} GB each; {held}"


def _predict(row: PlannedRow, cell: PlannedCell, unknown: set[str], files: Files) -> Cost | None:
    """The cell's cost; None, and why, where the model's config is not here and the hub cannot be asked."""
    try:
        return predict(row.spec, cell.evaluation, files)
    except LutlabError as error:
        unknown.add(str(error))
        return None


def _summary(planned: dict[tuple[RunSpec, EvalSpec], Cost | None], results: Path) -> str:
    known = [predicted for predicted in planned.values() if predicted]
    seconds, disk = sum(p.seconds for p in known), len(planned) * RECORD_BYTES
    more, downloads = f" for the {len(known)} predicted", "an unknown amount"
    if len(known) == len(planned):
        to_run = {spec for spec, _ in planned}
        seconds += sum(map(quantize_seconds, to_run))
        disk += sum(map(disk_bytes, to_run))
        hubs = {run.model for run in to_run if isinstance(run, ModelRun)}
        lacking = (hub.download_bytes(m.id, m.revision) for m in hubs if m.source == "hub")
        more, downloads = "", f"{sum(lacking) / 1e9:,.1f} GB"
    disk += sum(
        {
            (s.model, s.dtype, e.text): p.state_bytes
            for (s, e), p in planned.items()
            if p and p.state_bytes
        }.values()
    )
    peak = max((p.peak_bytes for p in known), default=0)
    free = shutil.disk_usage(next(p for p in (results, *results.resolve().parents) if p.exists()))
    return (
        f"{len(planned)} cells to measure, about {seconds:.0f} s one by one, at most {peak / 1e6:,.0f} MB{more}; "
        f"disk {disk / 1e6:,.1f} MB of {free.free / 1e9:,.0f} GB free; models to download: {downloads}"
    )
