"""A row's model: loaded, quantized, ready for every evaluator of the row."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lutlab.errors import LutlabError
from lutlab.experiment.plan.ids import inputs_id, quantized_id
from lutlab.experiment.plan.plan import PlannedRow
from lutlab.experiment.plan.resolve import cached_text
from lutlab.specs import LayerStats, RunSpec


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A loaded and quantized model; `facts` say how, for every record of it."""

    model: Any
    tokenizer: Any
    layers: tuple[LayerStats, ...]
    seqlen: int
    facts: Mapping[str, Any]


def prepare(row: PlannedRow, config: DictConfig) -> Prepared:
    """Load and quantize. Calibrated and streamed models are kept block by block, so that nothing is done twice."""
    import torch

    from lutlab.compress.driver import quantize_model
    from lutlab.compress.kept_blocks import BlockStore, StatsStore
    from lutlab.compress.widths import widths
    from lutlab.models.families import evaluation_seqlen, kinds
    from lutlab.models.load import load_model
    from lutlab.quantizers.contract import make_method

    spec, folder = row.spec, Path(config.results)
    if spec.model.source == "product":  # its evaluator draws the weights
        return Prepared(None, None, (), 0, {})
    loaded = load_model(
        spec.model, getattr(torch, spec.dtype), spec.device, spec.seed, stream=config.stream
    )
    model, seqlen = loaded.model, evaluation_seqlen(loaded.model.config)
    began = time.monotonic()
    keep = config.stream or spec.calibration
    kept = BlockStore(folder / "quantized" / quantized_id(spec)) if keep else None
    seen = StatsStore(folder / "calibration" / inputs_id(spec)) if spec.calibration else None
    quantizer = make_method(spec.method, **dict(spec.options))
    windows = spec.calibration and _windows(spec, loaded.tokenizer, seqlen)
    facts: dict[str, Any] = {}
    if spec.budget is None:
        chosen = widths(kinds(model.config), spec.q, spec.g, spec.sublayers, spec.skip)
    else:
        from lutlab.compress.search import search_widths

        found = search_widths(
            model, quantizer, spec.candidates, spec.budget, windows, skip=spec.skip, seen=seen
        )
        chosen, facts["budget"] = found.widths, found.facts
    layers = quantize_model(
        model, quantizer, chosen, windows, blocks=loaded.blocks, kept=kept, seen=seen
    )
    if config.stream:
        loaded.blocks.serve(kept.serve)
    facts["quantize_seconds"] = round(time.monotonic() - began, 3)
    return Prepared(model, loaded.tokenizer, layers, seqlen, facts)


def _windows(spec: RunSpec, tokenizer: Any, seqlen: int) -> Any:
    """Token ids [samples, S] that calibration looks at."""
    from lutlab.data.calibration import calibration_windows

    if tokenizer is None:
        raise LutlabError(
            f"{spec.model.name} came without a tokenizer, so it cannot be calibrated on a text"
        )
    chosen = spec.calibration
    text = cached_text(chosen.text)
    return calibration_windows(
        text, tokenizer, chosen.samples, chosen.seqlen or seqlen, chosen.seed
    )
