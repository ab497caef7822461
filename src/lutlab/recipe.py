"""One recipe for a quantized model: method -> widths, or a search under a budget -> tuning -> block by block.

`lutlab.quantize` follows it with a model in memory; rows of tables and the commands with folders, from which a killed
run goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lutlab.base.errors import LutlabError
from lutlab.base.groups import Bits, Width
from lutlab.base.lazy import PreTrainedModel, torch
from lutlab.base.specs import LayerStats, LayerWidth, Sublayer, Tuning
from lutlab.compress.calibrate import Windows
from lutlab.compress.driver import quantize_model
from lutlab.compress.kept_blocks import BlockStore, RestStore, StatsStore, TuningStore
from lutlab.compress.search import search_widths
from lutlab.compress.widths import widths
from lutlab.formats.contract import Format
from lutlab.models.contract import CLASSIFIES
from lutlab.models.families import decoder_blocks, kinds, task_of
from lutlab.models.resident import Blocks
from lutlab.quantizers.contract import Method
from lutlab.tuning.losses import Labelled
from lutlab.tuning.stages import put, tune


@dataclass(frozen=True)
class Folders:
    """Folders of what is finished; None: nothing is kept.

    Attributes:
        blocks: folder of quantized blocks, and of the states of tuning.
        untuned: folder of the blocks that tuning starts from.
        inputs: folder of what calibration sees of the full-precision model.
    """

    blocks: Path | None = None
    untuned: Path | None = None
    inputs: Path | None = None


def quantize(
    model: PreTrainedModel,
    quantizer: Method,
    q: Bits,
    g: int,
    windows: Windows | None = None,
    *,
    labelled: Labelled | None = None,
    sublayers: Sequence[Sublayer] = (),
    skip: Sequence[str] = (),
    layers: Sequence[LayerWidth] = (),
    budget: float | None = None,
    candidates: Sequence[Width] = (),
    tuning: Tuning | None = None,
    blocks: Blocks | None = None,
    folders: Folders = Folders(),
) -> tuple[tuple[LayerStats, ...], dict[str, Any]]:
    """Quantize a model's linear layers in place.

    Args:
        model: model in evaluation mode.
        quantizer: the method, with its options.
        q: bits a weight, where no other width is said.
        g: weights that share a scale.
        windows: calibration windows, as quantize_model takes them; behind them those of tuning.samples.
        labelled: labelled texts that a classifier is tuned on; None: tuning trains on the windows.
        sublayers: kinds of sub-layer with their own widths.
        skip: patterns of layer names that stay in full precision.
        layers: patterns of layer names with their own widths.
        budget: stored bits a weight of all layers together, for which widths are searched; None: no search.
        candidates: (q, g) that a layer may have under the budget.
        tuning: options of tuning; None: none.
        blocks: place that blocks come from and go to; None: all are in memory.
        folders: folders of what is finished.

    Returns:
        Statistics of the layers in forward order; facts of a record: the search, the tuning.

    Raises:
        LutlabError: the model, its widths, a budget or a tuning is refused by quantize_model, search_widths or tune.
    """
    kept = BlockStore(folders.blocks) if folders.blocks else None
    seen = StatsStore(folders.inputs) if folders.inputs else None
    facts: dict[str, Any] = {}
    samples = labelled or windows
    if tuning and tuning.samples:
        windows, samples = _apart(windows, labelled, tuning.samples)
    if budget is None:
        chosen = widths(kinds(model.config), q, g, sublayers, skip, layers)
    else:
        chosen, facts["budget"] = search_widths(
            model, quantizer, candidates, budget, windows, skip=skip, seen=seen
        )
    packed = None
    if tuning:
        packed, parameters, facts_of_tuning = _tuned(
            model, quantizer, chosen, windows, samples, tuning, seen, folders
        )
        put(model, parameters)
        if facts_of_tuning:
            facts["tuning"] = facts_of_tuning
    stats = quantize_model(
        model, quantizer, chosen, windows, blocks=blocks, kept=kept, seen=seen, packed=packed
    )
    if tuning and folders.blocks:
        TuningStore(folders.blocks).forget()  # what they led to is in the blocks
    return stats, facts


def _apart(
    windows: Windows | None, labelled: Labelled | None, count: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The windows that a method calibrates on, and those behind them, which only tuning sees.

    Raises:
        LutlabError: there are no windows of a text, or none for the method.
    """
    if labelled or not isinstance(windows, torch.Tensor):
        raise LutlabError(
            "tuning.samples are windows of a text behind those of calibration, and this model learns from texts with "
            "padding: drop it"
        )
    if count >= len(windows):
        raise LutlabError(
            f"tuning.samples={count} of {len(windows)} calibration windows leaves the method none: give more windows"
        )
    return windows[:-count], windows[-count:]


def _tuned(
    model: PreTrainedModel,
    quantizer: Method,
    chosen: Mapping[str, Width | None],
    windows: Windows | None,
    samples: Windows | Labelled | None,
    tuning: Tuning,
    seen: StatsStore | None,
    folders: Folders,
) -> tuple[dict[str, Format] | None, Mapping[str, torch.Tensor], Mapping[str, Any] | None]:
    """Packed layers, None where finished blocks have them; parameters outside of them; how the tuning came about."""
    if not folders.blocks:
        return tune(model, quantizer, chosen, windows, samples, tuning, seen=seen)
    kept, rest = BlockStore(folders.blocks), RestStore(folders.blocks)
    states = TuningStore(folders.blocks)
    has_rest = task_of(model) == CLASSIFIES or not quantizer.quantizes
    finished = not has_rest or rest.has(0)
    if finished and all(map(kept.has, range(len(decoder_blocks(model))))):
        return None, rest.load() if has_rest else {}, states.facts()
    kept.forget_from(0)  # all blocks are of one tuning
    untuned = BlockStore(folders.untuned) if folders.untuned else None
    packed, parameters, facts = tune(
        *(model, quantizer, chosen, windows, samples, tuning),
        seen=seen,
        untuned=untuned,
        kept=states,
    )
    states.note(facts)
    if has_rest:
        rest.save(parameters)
    return packed, parameters, facts
