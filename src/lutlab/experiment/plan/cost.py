"""Predict what a cell will cost: seconds, peak memory, disk, downloads. Predictions only, shown by mode=plan.

Seconds: 2 * parameters * tokens floating-point operations of the forward pass plus 4 * layers * hidden * seqlen a token
of attention, over the matmul rate measured here in a moment, at half its efficiency. Memory: the weights, and one
batch of logits with its float32 copy. Calibration adds its forward passes, M K^2 a Hessian and N K^2 a linear layer,
and holds the hidden states of all windows and the Hessians of a block. Decoding reads the linear weights, as stored,
and the head once a token, at a share of the rate at which memory is read here, and costs transformers' own work.
"""

from __future__ import annotations

import functools
import time
from dataclasses import dataclass
from pathlib import Path

from lutlab import registry
from lutlab.data.protocols import PROTOCOLS
from lutlab.evaluators.kernel_latency import ROUNDS
from lutlab.experiment.plan.plan import PlannedCell
from lutlab.experiment.plan.resolve import cached_text
from lutlab.measure import products
from lutlab.measure.timing import CALLS
from lutlab.models import hub
from lutlab.models.families import evaluation_seqlen
from lutlab.models.load import folder_of
from lutlab.specs import ModelSpec, RunSpec, TextSpec

# tokens of the texts not looked at before they are downloaded, by GPT-2's tokenizer
HUB_TOKENS = {
    "wikitext2": 287_644, "ptb": 93_212, "ptb-new": 97_721,
    "lambada": 435_382, "lambada-standard": 424_558, "lambada-joined": 440_534,
    # every ending with its context; ARC-Challenge without its last two questions
    "piqa": 133_904, "hellaswag": 3_173_195, "winogrande": 55_875, "arc-easy": 303_946, "arc-challenge": 173_821,
}  # fmt: skip
CHARACTERS_PER_TOKEN = 3.3  # of the embedded tokenizer; larger vocabularies need fewer tokens
_EFFICIENCY = 0.5  # of the large-matmul rate that a whole forward pass reaches
_LOAD_SECONDS = 1.0
_CALIBRATION_PASSES = 2  # through a block: to see what its layers read, and on to the next block
RECORD_BYTES = 8_000
_LAYER_SECONDS = 1e-3  # a layer and token of transformers' own work
_PROCESS_SECONDS = 15.0  # until a fresh process has imported torch and transformers
_DISK_RATE = 0.5e9  # bytes a second, written and read again
_Q4_0_BITS = 4.5
# evaluators that decode: the share of the read rate that their products reach, decodings beside the repeats
_DECODERS = {
    "generation": (0.5, 1),
    "latency": (0.5, 1),
    "peak_memory": (0.5, 1),
    "qigen": (0.15, 3),
    "llama_cpp": (0.5, 1),
}


@dataclass(frozen=True)
class ModelShape:
    """What a prediction needs of a model, read from its config."""

    parameters: int
    linear_parameters: int
    hidden: int
    layers: int
    vocabulary: int
    seqlen: int
    inputs: tuple[
        tuple[int, int], ...
    ]  # of a block: K, and the sum of N over the layers that share the input


@dataclass(frozen=True)
class Cost:
    """Predicted cost of one cell."""

    seconds: float
    peak_bytes: int


@functools.cache
def matmul_rate(device: str, dtype: str) -> float:
    """Floating-point operations a second of a 1024^3 matmul here, the best of five."""
    import torch

    place = "cuda" if device == "spread" else device
    a = torch.randn(1024, 1024, device=place, dtype=getattr(torch, dtype))
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        (a @ a).sum().item()
        best = min(best, time.perf_counter() - began)
    return 2 * 1024**3 / best


@functools.cache
def read_rate(device: str) -> float:
    """Bytes a second that a sum over 256 MB reads here, the best of five."""
    import torch

    values = torch.ones(2**26, device="cuda" if device == "spread" else device)
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        values.sum().item()
        best = min(best, time.perf_counter() - began)
    return values.nbytes / best


@functools.cache
def shape_of(spec: ModelSpec) -> ModelShape:
    """Shape of a model from its config alone (a hub model: only its config is fetched)."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from lutlab.models.families import decoder_blocks, family_of, linear_layers, weight_of

    folder = (
        hub.download(spec.id, spec.revision, weights=False)
        if spec.source == "hub"
        else folder_of(spec)
    )
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    if spec.layers is not None:
        config.num_hidden_layers = spec.layers
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    block = decoder_blocks(model)[0]
    inputs = []
    for shared in family_of(config).inputs:
        shapes = [weight_of(block.get_submodule(layer)).shape for layer in shared.layers]
        inputs.append((shapes[0][1], sum(rows for rows, _ in shapes)))
    return ModelShape(
        parameters=sum(p.numel() for p in model.parameters()),
        linear_parameters=sum(weight_of(m).numel() for _, m in linear_layers(model)),
        hidden=config.hidden_size,
        layers=config.num_hidden_layers,
        vocabulary=config.vocab_size,
        seqlen=evaluation_seqlen(config),
        inputs=tuple(inputs),
    )


def predict(spec: RunSpec, cell: PlannedCell) -> Cost:
    """Predicted seconds and peak bytes of one cell, loading and quantizing not included in the seconds."""
    if spec.model.source == "product":
        return _product(spec)
    shape = shape_of(spec.model)
    text = cell.evaluation.text
    width = 4 if spec.dtype == "float32" else 2
    weights = shape.parameters * width + shape.linear_parameters * (width if spec.q < 16 else 0)
    if spec.calibration:
        hidden = spec.calibration.samples * _window(spec, shape) * shape.hidden * width
        weights += hidden + 4 * sum(columns**2 for columns, _ in shape.inputs)
    if cell.evaluation.evaluator in _DECODERS:
        return _decoding(spec, shape, cell.evaluation.evaluator, weights)
    if text is None:
        return Cost(0.1, weights)
    logits = 2048 * shape.vocabulary * (width + 4)
    return Cost(_forward_seconds(spec, shape, _tokens(text, shape.seqlen)), weights + logits)


def _forward_seconds(spec: RunSpec, shape: ModelShape, tokens: float) -> float:
    """Of many tokens at once."""
    operations = tokens * (2 * shape.parameters + 4 * shape.layers * shape.hidden * shape.seqlen)
    return operations / (matmul_rate(spec.device, spec.dtype) * _EFFICIENCY)


def _decoding(spec: RunSpec, shape: ModelShape, evaluator: str, held: int) -> Cost:
    """Token after token. `held`: bytes of the model; a peer and a fresh process hold a packed one of their own."""
    decoder = registry.lookup("evaluator", evaluator)()
    share, times = _DECODERS[evaluator]
    times += getattr(decoder, "repeats", 0)
    width = 4 if spec.dtype == "float32" else 2
    bits = 8 * width if spec.q == 16 else spec.q + 32 / (shape.hidden if spec.g == -1 else spec.g)
    if evaluator == "llama_cpp":
        bits = _Q4_0_BITS
    codes, head = shape.linear_parameters * bits / 8, shape.vocabulary * shape.hidden * width
    packed = codes + head
    token = (codes / share + head / _EFFICIENCY) / read_rate(spec.device)
    seconds = times * decoder.tokens * (token + shape.layers * _LAYER_SECONDS)
    if evaluator == "peak_memory":
        seconds += _PROCESS_SECONDS + packed / _DISK_RATE
    else:  # checked before it is timed
        seconds += _forward_seconds(spec, shape, decoder.tokens)
    if evaluator == "llama_cpp":
        seconds += 4 * shape.parameters / _DISK_RATE
    if spec.model.layers:  # measured with half of them as well
        seconds *= 1.5
    return Cost(
        seconds, int(held + (packed if evaluator in ("peak_memory", "qigen", "llama_cpp") else 0))
    )


def _product(spec: RunSpec) -> Cost:
    """The dense product, the row's own and its row-wise one, each with its copies, at a cautious 10 GB/s."""
    weights = sum(rows * columns for rows, columns, _ in products.shapes_of(spec))
    sizes = [4 * weights, spec.q * weights // 8, spec.q * weights // 8]
    moved = sum(max(CALLS * size, products.COLD_LIMIT // 2) for size in sizes)
    held = sum(max(2 * size, products.COLD_LIMIT // 2) for size in sizes)
    seconds = ROUNDS["cpu"] * moved / 1e10 + 1e-7 * weights  # the last for drawing and packing
    return Cost(seconds, held + 9 * weights)


def _tokens(text: TextSpec, seqlen: int) -> float:
    rule = PROTOCOLS[text.protocol]
    if text.source != "hub":
        rows = cached_text(text).rows
        kept = rows if rule.kind == "stream" else rows[: text.limit]
        tokens = sum(map(len, kept)) / CHARACTERS_PER_TOKEN
    else:
        tokens = rule.windows * seqlen if rule.windows else HUB_TOKENS[text.protocol]
    return min(tokens, text.limit * seqlen) if text.limit and rule.kind == "stream" else tokens


def quantize_seconds(spec: RunSpec) -> float:
    """Loading and quantizing one row: about 0.1 s a million weights for alternating BCQ on two cores, 0.03 for RTN."""
    if spec.model.source == "product":
        return 0.0
    shape = shape_of(spec.model)
    rate = {"none": 0.0, "rtn": 0.03}.get(spec.method, 0.1)
    tries = max(1, len(spec.candidates))  # a search under a budget quantizes at every width
    seconds = rate * shape.linear_parameters / 1e6 + _calibration_seconds(spec, shape)
    return _LOAD_SECONDS + tries * seconds


def _window(spec: RunSpec, shape: ModelShape) -> int:
    return spec.calibration.seqlen or shape.seqlen


def _calibration_seconds(spec: RunSpec, shape: ModelShape) -> float:
    if not spec.calibration:
        return 0.0
    tokens = spec.calibration.samples * _window(spec, shape)
    forward = tokens * (2 * shape.parameters + 4 * shape.layers * shape.hidden * shape.seqlen)
    solve = sum(
        2 * tokens * columns**2 + (2 * columns + 4 * rows) * columns**2
        for columns, rows in shape.inputs
    )
    operations = _CALIBRATION_PASSES * forward + shape.layers * solve
    return operations / (matmul_rate(spec.device, spec.dtype) * _EFFICIENCY)


def disk_bytes(spec: RunSpec) -> int:
    """What is kept of a calibrated row: its quantized blocks, and the statistics of its linear inputs."""
    if not spec.calibration:
        return 0
    shape = shape_of(spec.model)
    packed = shape.linear_parameters * min(spec.q + 2, 16) // 8
    return packed + 4 * shape.layers * sum(columns**2 for columns, _ in shape.inputs)


def download_bytes(spec: ModelSpec) -> int:
    """Bytes a hub model still has to fetch; 0 if its files are here."""
    if spec.source != "hub":
        return 0
    return hub.download_bytes(spec.id, spec.revision)


def free_bytes(folder: Path) -> int:
    """Free disk space where the results go."""
    import shutil

    existing = next(p for p in (folder, *folder.resolve().parents) if p.exists())
    return shutil.disk_usage(existing).free
