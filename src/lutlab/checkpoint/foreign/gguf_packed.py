"""The quantized weights of a GGUF file as they are: unpacked once into a folder in the form that lutlab.save writes.

    x.gguf -> <cache>/gguf/<SHA-256 of the file, cut>-packed-<VERSION>/

Codes, scales and offsets are the file's (gguf/blocks.py); nothing is rounded again. Embeddings are dense, and so
is what the file has in floating point; an output head of its own is packed too. A layer of another type, whose values
are no steps of one size, has no form here: its file is refused, and can be read dense.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lutlab.base.errors import LutlabError
from lutlab.base.kept.files import write_sums
from lutlab.base.lazy import np, torch
from lutlab.checkpoint.transformers import FORMAT, METHOD
from lutlab.formats import pack
from lutlab.gguf import blocks as gguf_blocks
from lutlab.gguf import folder as gguf
from lutlab.gguf.config import Outline, outline_of
from lutlab.gguf.header import FLOATS
from lutlab.gguf.weights import as_stored, blocks_of
from lutlab.modules import QuantLinear


def unpacked(path: Path) -> Path:
    """The folder of a file's quantized weights; made where it is not there yet, of the same file only once.

    Raises:
        LutlabError: the file cannot be read, is damaged, holds a model that lutlab does not read from GGUF, or no
            quantized layer, or one of a type that has no packed form.
    """
    return gguf.kept(path, "packed", _unpack)


def stored_as(path: Path) -> dict[str, Any]:
    """Types of the blocks' linear layers in a file, with their numbers, and the bits that it has for each weight."""
    outline = outline_of(path)
    layers = [outline.header.tensors[n] for n in _linear(outline) if n.startswith("blk.")]
    weights = sum(layer.shape[0] * layer.shape[1] for layer in layers)
    bits = 8 * sum(layer.nbytes for layer in layers) / weights
    return {
        "quant_method": "gguf",
        "types": dict(Counter(layer.type for layer in layers)),
        "bits_in_file": bits,
    }


def _linear(outline: Outline) -> dict[str, str]:
    """GGUF's name of each matrix but the embedding -> path of its layer."""
    return {
        name: place.name.removesuffix(".weight")
        for name, place in outline.places.items()
        if len(place.shape) == 2 and name != "token_embd.weight"
    }


def _unpack(outline: Outline, folder: Path) -> None:
    tensors, linear = outline.header.tensors, _linear(outline)
    quantized = {n: layer for n, layer in linear.items() if tensors[n].type not in FLOATS}
    for name in quantized:
        if tensors[name].type not in gguf_blocks.TYPES:
            raise outline.header.refused(
                f"tensor {name} is of type {tensors[name].type}, whose values are not steps of one size from an "
                f"offset, and lutlab packs {', '.join(gguf_blocks.TYPES)}",
                "read the file in full precision (method=none, or any method that quantizes it anew)",
            )
    if not any(name.startswith("blk.") for name in quantized):
        raise outline.header.refused(
            "the linear layers of its blocks are not quantized",
            "read it in full precision, as with method=none",
        )
    layouts: dict[str, Any] = {}

    def stored() -> Iterator[tuple[str, torch.Tensor]]:
        for name, place in outline.places.items():
            if name not in quantized:
                yield place.name, as_stored(outline.header, name, place.heads)
                continue
            layer = _layer(outline, name)
            layouts[quantized[name]] = layer.layout()
            for buffer, tensor in layer.packed.buffers.items():
                if tensor is not None:
                    yield f"{quantized[name]}.{buffer}", tensor

    gguf.write_tensors(folder, stored())
    quantization = {"quant_method": METHOD, "format": FORMAT, "layers": layouts}
    gguf.write_json(folder / "config.json", {**outline.config, "quantization_config": quantization})
    write_sums(folder)


def _layer(outline: Outline, name: str) -> QuantLinear:
    """A quantized layer."""
    place, stored = outline.places[name], outline.header.tensors[name]
    data = np.array(blocks_of(outline.header, name, place.heads))
    try:
        packed = pack(gguf_blocks.unpacked(data, stored.type))
    except LutlabError as error:  # a scale that is none
        raise outline.header.refused(
            f"tensor {name}: {error}", "it is damaged, fetch it again"
        ) from error
    bias = name.removesuffix("weight") + "bias"
    return QuantLinear(packed, torch.empty(stored.shape[0]) if bias in outline.places else None)
