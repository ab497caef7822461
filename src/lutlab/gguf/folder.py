"""A GGUF file as a folder of transformers' files, unpacked once into the cache.

    x.gguf -> <cache>/gguf/<SHA-256, cut>-dense-<VERSION>/  config.json  model.safetensors  tokenizer.json  …

Weights are what `gguf.quants.dequantize` gives, to the last bit of float32; a tensor that float16 holds exactly takes
half of the place. Whatever reads folders, by blocks, by ranks or whole, then reads a GGUF file too. Its quantized
weights as they are: checkpoint/foreign/gguf_packed.py.

Text is cut where llama.cpp cuts it. The chat template is a text in the folder; nothing of the file runs.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from lutlab.base.kept import built
from lutlab.base.kept.files import sha256_of
from lutlab.base.kept.findings import cache_folder
from lutlab.base.lazy import torch
from lutlab.base.quiet import quiet
from lutlab.gguf.config import Outline, outline_of, special_tokens
from lutlab.gguf.header import once_a_file
from lutlab.gguf.tokenizer import ends_of, read_tokenizer
from lutlab.gguf.weights import as_stored

# Raised where another folder is unpacked; and, by kind of tokenizer, where its numbers change: these are in ids.
VERSION = 3
_NUMBERS: Mapping[object, int] = {"gpt2": 2, "llama": 3}
_SHARD_BYTES = 2**31  # of a safetensors file, and one tensor more


def is_gguf(path: str | Path) -> bool:
    """Whether a path is a GGUF file by its name, and no folder."""
    return Path(path).suffix == ".gguf" and not Path(path).expanduser().is_dir()


def fingerprint(path: Path) -> str:
    """Identity of a file's weights and tokenizer: its SHA-256, and the version of the numbers that are unpacked of it;
    errors as of outline_of.
    """
    kind = outline_of(path).header.keys.get("tokenizer.ggml.model")
    return f"gguf:{_sha256(path)}:{_NUMBERS.get(kind, VERSION)}"


def unpacked(path: Path) -> Path:
    """The folder of a file's model, in full precision; made where it is not there yet, of the same file only once.

    Raises:
        LutlabError: the file cannot be read, is damaged, or holds a model that lutlab does not read from GGUF.
    """
    return kept(path, "dense", _unpack)


def kept(path: Path, kind: str, make: Callable[[Outline, Path], None]) -> Path:
    """A folder in the cache that is made of a file; errors as of outline_of.

    Args:
        path: path of the GGUF file.
        kind: word for what the folder holds, a part of its name.
        make: function that writes config.json and safetensors into a folder with the tokenizer.
    """
    name = f"{_sha256(path)[:32]}-{kind}-{VERSION}"
    return _taken(cache_folder("gguf"), name, path, make)


@functools.lru_cache(maxsize=64)  # whose files are hashed: once a process
def _taken(cache: Path, name: str, path: Path, make: Callable[[Outline, Path], None]) -> Path:
    def fill(folder: Path) -> Mapping[str, Any]:
        outline = outline_of(path)
        with quiet():
            read_tokenizer(outline.header, outline.config["vocab_size"]).save_pretrained(folder)
            generation = {**special_tokens(outline.header), "eos_token_id": ends_of(outline.header)}
            write_json(folder / "generation_config.json", generation)
            make(outline, folder)
        return {"file": path.name}

    return built.take(cache, name, fill)[0]


@once_a_file
def _sha256(path: Path) -> str:
    return sha256_of(path)


def _unpack(outline: Outline, folder: Path) -> None:
    """Fill a folder with the model in full precision."""
    write_json(folder / "config.json", outline.config)
    write_tensors(
        folder,
        ((p.name, as_stored(outline.header, name, p.heads)) for name, p in outline.places.items()),
    )


def write_json(path: Path, fields: Mapping[str, Any]) -> None:
    """Write a file of a folder as transformers does."""
    path.write_text(json.dumps(fields, indent=2) + "\n", encoding="utf-8")


def write_tensors(folder: Path, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Write tensors by their names, one shard of them in memory at a time."""
    from safetensors.torch import save_file

    shards: list[list[str]] = []
    waiting: dict[str, torch.Tensor] = {}

    def put() -> None:
        save_file(waiting, folder / _shard(len(shards)), metadata={"format": "pt"})
        shards.append(list(waiting))
        waiting.clear()

    for name, tensor in tensors:
        waiting[name] = tensor.contiguous()
        if sum(tensor.nbytes for tensor in waiting.values()) >= _SHARD_BYTES:
            put()
    if waiting:
        put()
    if len(shards) == 1:
        (folder / _shard(0)).rename(folder / "model.safetensors")
        return
    places = {name: _shard(index) for index, names in enumerate(shards) for name in names}
    index = json.dumps({"metadata": {}, "weight_map": places}, indent=2)
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")


def _shard(index: int) -> str:
    return f"model-{index + 1:05d}.safetensors"
