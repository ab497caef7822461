"""Speed and memory of a synthetic model that is cut to its first layers, scaled to all of them.

    cost(T) = cost(L) + (T - L) (cost(L) - cost(l)) / (L - l)        L of T layers at hand, l = L // 2

cost is the seconds of a token, or bytes: measured with all layers at hand and with half of them, since embeddings and
head weigh more in a cut model than in a whole one. The facts say what was measured and what was scaled.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedModel
from lutlab.base.specs import Measurement, Subject
from lutlab.models.families import decoder_blocks, family_of
from lutlab.models.load import folder_of

Measure = Callable[[Any, Subject], Measurement]


def scaled_to_all_layers(measure: Measure) -> Measure:
    """Decorate an evaluator's `measure`; of a model that is not cut it stays what it is.

    Raises:
        LutlabError: a single layer, of which half cannot be measured; or more layers were not slower.
    """

    @functools.wraps(measure)
    def both(self: Any, subject: Subject) -> Measurement:
        layers = _all_layers(subject)
        measurement = measure(self, subject)
        if layers is None:
            return measurement
        count = len(decoder_blocks(subject.model))
        half = count // 2
        if not half:
            raise LutlabError("model.layers=1 cannot be scaled to all layers: give 2 or more")
        with _first_layers(subject.model, half):
            of_half = measure(self, subject)
        values = {
            metric: _scaled(metric, of_half.values[metric], value, (half, count, layers))
            for metric, value in measurement.values.items()
        }
        facts = {
            "layers_measured": [half, count],
            "values_measured": [dict(of_half.values), dict(measurement.values)],
            "scaled_to_layers": layers,
        }
        return dataclasses.replace(measurement, values=values, facts={**measurement.facts, **facts})

    return both


def _all_layers(subject: Subject) -> int | None:
    """Number of layers that the config of a cut model states; None where the model has them all."""
    spec = subject.run.model
    if spec.source != "synthetic" or spec.layers is None:
        return None
    config = type(subject.model.config)(**json.loads((folder_of(spec) / "config.json").read_text()))
    return config.num_hidden_layers if config.num_hidden_layers > spec.layers else None


@contextmanager
def _first_layers(model: PreTrainedModel, count: int) -> Iterator[None]:
    """The model has only its first blocks inside."""
    path, _, name = family_of(model.config).blocks.rpartition(".")
    owner, blocks = model.get_submodule(path), decoder_blocks(model)
    setattr(owner, name, blocks[:count])
    model.config.num_hidden_layers = count
    try:
        yield
    finally:
        setattr(owner, name, blocks)
        model.config.num_hidden_layers = len(blocks)


def _scaled(metric: str, of_half: float, value: float, layers: tuple[int, int, int]) -> float:
    """A rate is scaled as its inverse, the cost of one."""
    half, count, whole = layers
    inverse = metric.endswith("_per_s")
    low, high = (1 / of_half, 1 / value) if inverse else (of_half, value)
    if inverse and not high > low:
        raise LutlabError(
            f"{count} layers took no longer than {half}: the machine is too busy to scale this to {whole}"
        )
    cost = high + (whole - count) * (high - low) / (count - half)
    return 1 / cost if inverse else cost
