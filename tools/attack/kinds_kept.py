"""What a run keeps: quantized blocks, calibration statistics, records, published artifacts."""

from __future__ import annotations

import dataclasses
import functools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tests.models.architectures import make, token_ids, uniform

from lutlab import sources
from lutlab.compress.driver import quantize_model
from lutlab.compress.kept_blocks import BlockStore, StatsStore
from lutlab.experiment.records.frame import results
from lutlab.experiment.report.published import seal
from lutlab.experiment.store.record import LINES, read_lines
from lutlab.experiment.store.store import Store
from lutlab.quantizers.contract import make_method
from tools.attack.kinds import Kind, digest_of

PUBLISHED = sources.checkout() / "results" / "published" / "amd-epyc-2cores"
# a small artifact that has speeds and one that has qualities
ARTIFACTS = ("lut-gemm-v3/table2", "lut-gemm-v3/table3")


def quantized(method: str, **stores: Any) -> dict[str, Any]:
    """A tiny LLaMA quantized with what is kept, or by the way kept for the next time."""
    model = make("llama-1")
    stats = quantize_model(model, make_method(method), uniform(model, 3, 16), token_ids(), **stores)
    with torch.no_grad():
        logits = model(token_ids()).logits.double().sum().item()
    errors = [layer.squared_error for layer in stats]
    return {"numbers": [digest_of(model), errors, [s.bits_stored for s in stats], logits]}


def blocks(method: str, folder: Path) -> dict[str, Any]:
    return quantized(method, kept=BlockStore(folder / "0123456789abcdef"))


def statistics(folder: Path) -> dict[str, Any]:
    return quantized("awq", seen=StatsStore(folder / "0123456789abcdef"))


def make_records(folder: Path) -> None:
    """Records of quality as a run has them, taken from those that are published."""
    store = Store(folder / "results")
    published = read_lines(PUBLISHED / ARTIFACTS[1] / LINES)
    for record in list(published.values())[:8]:
        store.save(record)


def loaded(folder: Path) -> dict[str, Any]:
    """Cell by cell, as a plan asks for them; a cell without a record is measured again."""
    store = Store(folder / "results")
    cells = read_lines(PUBLISHED / ARTIFACTS[1] / LINES)
    found = {cell: store.load(cell) for cell in list(cells)[:8]}
    return {"numbers": {cell: _plain(dataclasses.asdict(r)) for cell, r in found.items() if r}}


def framed(root: Path) -> dict[str, Any]:
    """As one table, `lutlab.results`."""
    frame = results(root, samples=True).astype(object)
    keys = ["paper", "artifact", "variant", "row", "column", "metric", "cell_id"]
    rows = frame.where(frame.notna(), "").astype(str).to_dict("records")
    return {"numbers": {"/".join(row[k] for k in keys): row for row in map(_portable, rows)}}


def _portable(row: Mapping[str, str]) -> dict[str, str]:
    return {name: _spelled(value) for name, value in row.items() if name != "folder"}


def _spelled(value: str) -> str:
    """Numbers as floats: a whole column is made of them where one row of it has none."""
    try:
        return repr(float(value))
    except ValueError:
        return value


def make_published(folder: Path) -> None:
    for artifact in ARTIFACTS:
        place = folder / "machine" / artifact
        place.mkdir(parents=True)
        for name in ("records.jsonl", "table.csv"):
            shutil.copy(PUBLISHED / artifact / name, place)
    seal(folder / "machine")


def _plain(value: Any) -> Any:
    """As JSON has it."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


KINDS = [
    *(
        Kind(
            f"blocks-{method}", functools.partial(blocks, method), functools.partial(blocks, method)
        )
        for method in ("rtn", "gptq")
    ),
    Kind("statistics", statistics, statistics),
    Kind("records", make_records, loaded),
    Kind("records-frame", make_records, lambda folder: framed(folder / "results")),
    Kind(
        "published", make_published, lambda folder: framed(folder / "machine"), "**/records.jsonl"
    ),
    Kind(
        "published-table", make_published, lambda folder: framed(folder / "machine"), "**/table.csv"
    ),
]
