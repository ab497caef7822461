"""Sizes of a decoder from its config.json: the matrices of a layer, the head, the embeddings, a token of the cache.

The folder is one of conf/shapes, by its name, or any with a config.json. torch and transformers are not imported, so a
report may ask: models/shape.py builds the module instead, and a test holds the two against each other.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lutlab.base import registry
from lutlab.base.errors import LutlabError, nearest
from lutlab.base.sources import folder
from lutlab.models.contract import Sizes


@dataclass(frozen=True)
class Decoder:
    """Sizes of a decoder-only model.

    Attributes:
        name: name of the model: that of its folder, or of its file in conf/shapes.
        layers: number of layers, L.
        hidden: hidden size, d.
        heads: number of heads of attention, which tensor parallelism divides.
        vocabulary: number of tokens of the vocabulary, V; the head is [V, d].
        positions: tokens of the longest context.
        products: (N, K) of the products of a layer as an engine launches them, q/k/v as one, gate and up as one.
        cached: numbers that a layer caches of a token, keys and values.
        embedded: parameters of the embeddings that are not the head: of positions, and of tokens where not tied.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    positions: int
    products: tuple[tuple[int, int], ...]
    cached: int
    embedded: int

    @property
    def weights(self) -> int:
        """Linear weights of all layers."""
        return self.layers * sum(rows * columns for rows, columns in self.products)

    @property
    def head(self) -> int:
        """Weights of the head, V d."""
        return self.vocabulary * self.hidden


@functools.cache
def decoder(name: str) -> Decoder:
    """The sizes of a model by its name in conf/shapes, or its folder.

    Raises:
        LutlabError: no such folder, or its config.json is none of a decoder that is known here.
    """
    shapes = folder("conf") / "shapes"
    shipped = shapes / name / "config.json"
    path = shipped if shipped.is_file() else Path(name) / "config.json"
    if not path.is_file():
        names = [config.parent.name for config in shapes.glob("*/config.json")]
        raise LutlabError(
            f"no shape '{name}': {nearest(name, names)}; or give a folder with a config.json"
        )
    families = registry.classes("family")
    known = {type_: family.sizes for type_, family in families.items() if family.sizes}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return _decoder(Path(name).name, config, known[config["model_type"]])
    except KeyError as error:
        raise LutlabError(
            f"{path} says no {error}: expected model_type to be one of {', '.join(known)}, and the "
            "sizes of its layers"
        ) from error
    except (ValueError, TypeError) as error:
        raise LutlabError(
            f"{path} is damaged ({error}): expected JSON with whole numbers"
        ) from error


def _decoder(name: str, config: Mapping[str, Any], names: Sizes) -> Decoder:
    hidden, heads = int(config[names.hidden]), int(config[names.heads])
    # transformers: GPT-2's n_inner and a config's heads of keys may be left out
    inner = (config.get(names.feed_forward) or 4 * hidden) if names.feed_forward == "n_inner" else (
        config[names.feed_forward]
    )  # fmt: skip
    width = int(config.get("head_dim") or hidden // heads)
    keys = width * int(config.get("num_key_value_heads") or heads)
    vocabulary, positions = int(config["vocab_size"]), int(config[names.positions])
    tied = config.get("tie_word_embeddings", names.tied)
    learned = 0 if names.learned is None else positions + names.learned
    return Decoder(
        name=name,
        layers=int(config[names.layers]),
        hidden=hidden,
        heads=heads,
        vocabulary=vocabulary,
        positions=positions,
        products=(
            (width * heads + 2 * keys, hidden),
            (hidden, width * heads),
            ((1 + names.gated) * int(inner), hidden),
            (hidden, int(inner)),
        ),
        cached=2 * keys,
        embedded=hidden * (learned + (0 if tied else vocabulary)),
    )
