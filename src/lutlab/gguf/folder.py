"""A GGUF file as a folder of transformers' files, unpacked once into the cache.

    x.gguf -> <cache>/gguf/<SHA-256, cut>-dense-<VERSION>/  config.json  model.safetensors  tokenizer.json  …

Weights are what `gguf.quants.dequantize` gives, to the last bit of float32; a tensor that float16 holds exactly takes
half of the place. Whatever reads folders, by blocks, by ranks or whole, then reads a GGUF file too. Its quantized
weights as they are: checkpoint/foreign/gguf_packed.py.

Every key of the architecture and every tensor must have a place in the model, or the file is refused: what a reader
leaves aside makes another model of it. Text is cut where llama.cpp cuts it. The chat template is a text in the folder;
nothing of the file runs.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lutlab.base.errors import LutlabError
from lutlab.base.kept import built
from lutlab.base.kept.files import sha256_of
from lutlab.base.kept.findings import cache_folder
from lutlab.base.lazy import np, torch
from lutlab.base.quiet import quiet
from lutlab.base.unread import unread
from lutlab.gguf import blocks as gguf_blocks
from lutlab.gguf.header import FLOATS, Elements, Header, read_header
from lutlab.gguf.names import OUTSIDE, PARTS, halves, heads_of
from lutlab.gguf.tokenizer import ends_of, read_tokenizer, special_ids

# Raised where another folder is unpacked; and, by kind of tokenizer, where its numbers change: these are in ids.
VERSION = 3
_NUMBERS = {"gpt2": 2, "llama": 3}
DENSE = "dense"
_SHARD_BYTES = 2**31  # of a safetensors file, and one tensor more
_CHUNK = 2**22  # weights dequantized at a time


@dataclass(frozen=True)
class _Architecture:
    """An architecture of GGUF as transformers has it.

    Attributes:
        model_type: transformers' name of it.
        parts: names of its parts that LLaMA has not, transformers' and GGUF's.
        biases: parts (GGUF's names) that always have a bias.
        interleaved: rows of q and k are in llama.cpp's order.
        config: further fields of its config.
    """

    model_type: str
    parts: tuple[tuple[str, str], ...] = ()
    biases: tuple[str, ...] = ()
    interleaved: bool = False
    config: tuple[tuple[str, Any], ...] = ()


_ATTENTION, _MLP = ("attn_q", "attn_k", "attn_v", "attn_output"), ("ffn_gate", "ffn_up", "ffn_down")
ARCHITECTURES = {
    "llama": _Architecture("llama", interleaved=True),
    "qwen2": _Architecture("qwen2", biases=_ATTENTION[:3], config=(("use_sliding_window", False),)),
    "qwen3": _Architecture(
        "qwen3",
        parts=(("self_attn.q_norm", "attn_q_norm"), ("self_attn.k_norm", "attn_k_norm")),
        config=(("use_sliding_window", False),),
    ),
}
# Keys of an architecture that the config is made of; others that change nothing, and the values at which that is so.
_READ = (
    "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
    "attention.head_count_kv", "attention.key_length", "attention.value_length",
    "attention.layer_norm_rms_epsilon", "rope.dimension_count", "rope.freq_base",
)  # fmt: skip
_NEUTRAL = {
    "vocab_size": None,
    "tensor_data_layout": None,
    "rope.scaling.original_context_length": None,
    "rope.scaling.finetuned": None,
    "rope.scaling.type": ("none", "linear"),
    "rope.scaling.factor": (0, 1),
    "rope.scale_linear": (1,),
    "attention.causal": (True,),
    "expert_count": (0,),
    "expert_used_count": (0,),
}
_FREQUENCIES = "rope_freqs.weight"
# Llama 3's own parameters, which a file has only in the factors made of them.
_LLAMA_3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a tensor of a file stands in transformers' model: its name, its shape, heads of a part that is rotated."""

    name: str
    shape: tuple[int, ...]
    heads: int | None = None


@dataclass(frozen=True)
class Outline:
    """The model of a file: header, config in config.json's form, GGUF's name of each tensor -> its place."""

    header: Header
    config: Mapping[str, Any]
    places: Mapping[str, Place]


def is_gguf(path: str | Path) -> bool:
    """Whether a path is a GGUF file by its name, and no folder."""
    return Path(path).suffix == ".gguf" and not Path(path).expanduser().is_dir()


def fingerprint(path: Path) -> str:
    """Identity of a file's weights and tokenizer: its SHA-256, and the version of the numbers that are unpacked of it.

    Raises:
        LutlabError: it cannot be read, or holds a model that lutlab does not read from GGUF.
    """
    kind = outline_of(path).header.keys.get("tokenizer.ggml.model")
    return f"gguf:{_sha256(path)}:{_NUMBERS.get(kind, VERSION)}"


def unpacked(path: Path) -> Path:
    """The folder of a file's model, in full precision; made where it is not there yet, of the same file only once.

    Raises:
        LutlabError: the file cannot be read, is damaged, or holds a model that lutlab does not read from GGUF.
    """
    return kept(path, DENSE, _unpack)


def kept(path: Path, kind: str, make: Callable[[Outline, Path], None]) -> Path:
    """A folder in the cache that is made of a file.

    Args:
        path: path of the GGUF file.
        kind: word for what the folder holds, a part of its name.
        make: function that writes config.json and safetensors into a folder with the tokenizer.

    Raises:
        LutlabError: the file cannot be read, is damaged, or holds a model that lutlab does not read from GGUF.
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


def _sha256(path: Path) -> str:
    return _digest(path, *_state(path))


@functools.lru_cache(maxsize=64)  # a plan, its rows and their evaluations all ask
def _digest(path: Path, *_: int) -> str:
    try:
        return sha256_of(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _state(path: Path) -> tuple[int, ...]:
    """Numbers that change with a file."""
    try:
        found = path.stat()
    except OSError as error:
        raise _unreadable(path, error) from error
    return found.st_ino, found.st_size, found.st_mtime_ns


def _unreadable(path: Path, error: OSError) -> LutlabError:
    return LutlabError(
        f"cannot read {path} ({error.strerror}): give a GGUF file (model=folder model.id=<path>.gguf)"
    )


# ---- what a file says of its model ----


def outline_of(path: Path) -> Outline:
    """The model of a file, no weight read.

    Raises:
        LutlabError: the file cannot be read or is damaged; its architecture, one of its keys or of its tensors is none
            that lutlab reads.
    """
    return _outline(path, *_state(path))


@functools.lru_cache(maxsize=64)
def _outline(path: Path, *_: int) -> Outline:
    header = read_header(path)
    if header.keys.get("split.count") not in (None, 0, 1):
        raise header.refused(
            f"it is one of {header.keys['split.count']} files of a model",
            "join them by llama.cpp (llama-gguf-split --merge)",
        )
    name = header.keys.get("general.architecture")
    if name not in ARCHITECTURES:
        raise header.refused(
            f"its architecture (general.architecture) is {name!r}, and lutlab reads {', '.join(ARCHITECTURES)}",
            "take the model's safetensors (model=hub or model=folder)",
        )
    architecture = ARCHITECTURES[name]
    config = _config(header, name, architecture)
    places = _places(header, architecture, config)
    for tensor, place in places.items():
        if tensor not in header.tensors:
            raise header.refused(f"it lacks the tensor {tensor}")
        if header.tensors[tensor].shape != place.shape:
            raise header.refused(
                f"tensor {tensor} is {list(header.tensors[tensor].shape)}, and its keys say {list(place.shape)}"
            )
    others = header.tensors.keys() - places.keys() - {_FREQUENCIES}
    if others:
        raise header.refused(
            f"it holds {len(others)} tensors that lutlab has no place for in a model of '{name}', first {min(others)}",
            "without them it would be another model; take its safetensors",
        )
    return Outline(header, config, places)


def _config(header: Header, name: str, architecture: _Architecture) -> dict[str, Any]:
    """The fields of config.json."""
    _check_keys(header, name)
    heads, hidden = (
        _whole(header, f"{name}.attention.head_count"),
        _whole(header, f"{name}.embedding_length"),
    )
    size = _whole(header, f"{name}.attention.key_length", hidden // heads)
    rotated = _whole(header, f"{name}.rope.dimension_count", size)
    if {rotated, _whole(header, f"{name}.attention.value_length", size)} != {size}:
        raise header.refused(
            f"of each head, of {size} numbers, {rotated} are rotated, or its values are of other sizes",
            "lutlab reads heads that are rotated whole; take the model's safetensors",
        )
    layers = _whole(header, f"{name}.block_count")
    if layers > len(header.tensors):
        raise header.refused(f"it announces {layers} blocks and has {len(header.tensors)} tensors")
    vocabulary = header.tensors.get("token_embd.weight")
    if vocabulary is None:
        raise header.refused("it lacks the tensor token_embd.weight")
    config = {
        "architectures": [transformers_class(architecture.model_type)],
        "model_type": architecture.model_type,
        "vocab_size": vocabulary.shape[0],
        "hidden_size": hidden,
        "intermediate_size": _whole(header, f"{name}.feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": _whole(header, f"{name}.attention.head_count_kv", heads),
        "head_dim": size,
        "hidden_act": "silu",
        "max_position_embeddings": _whole(header, f"{name}.context_length"),
        "rms_norm_eps": _number(header, f"{name}.attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope(header, _number(header, f"{name}.rope.freq_base", 10000.0), size),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "dtype": "float32",
        **dict(architecture.config),
    }
    if not architecture.biases:
        config["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
        config["mlp_bias"] = "blk.0.ffn_up.bias" in header.tensors
    return config | special_tokens(header)


def special_tokens(header: Header) -> dict[str, int | None]:
    """The fields of config.json that name tokens. Raises LutlabError: one is none of the vocabulary."""
    found = special_ids(header)
    return {f"{name}_token_id": found[name] for name in ("bos", "eos", "pad")}


def transformers_class(model_type: str) -> str:
    """The name of transformers' class of a decoder with its head: LlamaForCausalLM."""
    return f"{model_type.capitalize()}ForCausalLM"


def _check_keys(header: Header, name: str) -> None:
    """Refuse a key of the architecture that would change the model and is not read."""
    keys = {
        key.removeprefix(f"{name}."): value
        for key, value in header.keys.items()
        if key.startswith(f"{name}.")
    }
    for key, value in unread(keys, _READ, _NEUTRAL).items():
        raise header.refused(
            f"lutlab does not read its key {name}.{key} ({value!r})",
            "without it the model would be another one; take its safetensors",
        )


def _whole(header: Header, key: str, default: int | None = None) -> int:
    """A key's whole number of at least 1."""
    found = header.keys.get(key, default)
    if type(found) is int and found >= 1:
        return found
    if isinstance(found, Elements):
        raise header.refused(
            f"{key} is a list, one number a block",
            "lutlab reads models whose blocks are alike; take its safetensors",
        )
    raise header.refused(
        f"it lacks {key}" if found is None else f"{key} is {found!r}, no positive integer"
    )


def _number(header: Header, key: str, default: float | None = None) -> float:
    """A key's positive number."""
    found = header.keys.get(key, default)
    if isinstance(found, float) and 0 < found < float("inf"):
        return found
    raise header.refused(
        f"it lacks {key}" if found is None else f"{key} is {found!r}, no positive number"
    )


def _rope(header: Header, base: float, size: int) -> dict[str, Any]:
    """How positions are rotated; factors of the frequencies, where a file has them, are Llama 3's or refused."""
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": base}
    if _FREQUENCIES not in header.tensors:
        return found
    factors = as_stored(header, _FREQUENCIES).double()
    found |= {"rope_type": "llama3", "factor": float(factors.max()), **_LLAMA_3}
    wavelength = 2 * torch.pi * base ** (torch.arange(0, size, 2, dtype=torch.float64) / size)
    smooth = _LLAMA_3["original_max_position_embeddings"] / wavelength - _LLAMA_3["low_freq_factor"]
    smooth = (smooth / (_LLAMA_3["high_freq_factor"] - _LLAMA_3["low_freq_factor"])).clamp(0, 1)
    expected = 1 / ((1 - smooth) / found["factor"] + smooth)
    if factors.shape != expected.shape or not torch.allclose(factors, expected, rtol=1e-5, atol=0):
        raise header.refused(
            f"its factors of frequencies ({_FREQUENCIES}) are not Llama 3's",
            "take the model's safetensors",
        )
    return found


def _places(
    header: Header, architecture: _Architecture, config: Mapping[str, Any]
) -> dict[str, Place]:
    """GGUF's name -> place of every tensor that the model has."""
    sizes = SimpleNamespace(**config)
    hidden, size = sizes.hidden_size, sizes.head_dim
    rows = {
        "attn_q": sizes.num_attention_heads * size,
        "attn_k": sizes.num_key_value_heads * size,
        "attn_v": sizes.num_key_value_heads * size,
        "attn_output": hidden,
        "ffn_gate": sizes.intermediate_size,
        "ffn_up": sizes.intermediate_size,
        "ffn_down": hidden,
    }
    columns = {"attn_output": rows["attn_q"], "ffn_down": sizes.intermediate_size}
    biases = architecture.biases
    biases += _ATTENTION * config.get("attention_bias", False) + _MLP * config.get(
        "mlp_bias", False
    )
    found = {}
    for ours, theirs in OUTSIDE.items():
        if theirs != "output" or not sizes.tie_word_embeddings:
            shape = (hidden,) if "norm" in theirs else (sizes.vocab_size, hidden)
            found[f"{theirs}.weight"] = Place(f"{ours}.weight", shape)
    for index in range(sizes.num_hidden_layers):
        for ours, part in (*PARTS.items(), *architecture.parts):
            here, there = f"model.layers.{index}.{ours}", f"blk.{index}.{part}"
            if part not in rows:
                shape = (size,) if part in dict(architecture.parts).values() else (hidden,)
                found[f"{there}.weight"] = Place(f"{here}.weight", shape)
                continue
            heads = heads_of(sizes, part) if architecture.interleaved else None
            shape = (rows[part], columns.get(part, hidden))
            found[f"{there}.weight"] = Place(f"{here}.weight", shape, heads)
            if part in biases:
                found[f"{there}.bias"] = Place(f"{here}.bias", shape[:1], heads)
    return found


# ---- weights ----


def blocks_of(header: Header, name: str, heads: int | None = None) -> np.ndarray:
    """The bytes of a tensor's rows, [N, bytes] uint8; those of q and k, by their heads, in transformers' order."""
    stored = header.tensors[name]
    rows = stored.shape[0]
    found = np.memmap(header.path, np.uint8, "r", stored.offset, (rows, stored.nbytes // rows))
    return found if heads is None else halves(found, heads)


def as_stored(header: Header, name: str, heads: int | None = None) -> torch.Tensor:
    """A tensor in float32, or in a narrower dtype of the file's or float16 that holds it exactly.

    Raises:
        LutlabError: the package gguf cannot dequantize its type, or a number is none.
    """
    stored, data = header.tensors[name], blocks_of(header, name, heads)
    if stored.type in FLOATS:
        found = torch.frombuffer(
            bytearray(data.tobytes()), dtype=getattr(torch, FLOATS[stored.type])
        )
        found = found.view(stored.shape)
    else:
        found = torch.empty(stored.shape)
        step = max(1, _CHUNK // stored.shape[-1])
        for first in range(0, len(data), step):
            found[first : first + step] = _dequantized(header, name, data[first : first + step])
    if not torch.isfinite(found).all():
        raise header.refused(
            f"tensor {name} holds NaN or infinite values", "it is damaged, fetch it again"
        )
    half = found.half()
    return half if found.dtype == torch.float32 and torch.equal(half.float(), found) else found


def _dequantized(header: Header, name: str, data: np.ndarray) -> torch.Tensor:
    from gguf import GGMLQuantizationType, quants

    stored = header.tensors[name]
    if stored.type in ("Q1_0", "Q2_0"):  # which the package does not dequantize
        return gguf_blocks.values(np.array(data), stored.type)
    try:
        with np.errstate(all="ignore"):
            return torch.from_numpy(quants.dequantize(data, GGMLQuantizationType(stored.number)))
    except NotImplementedError as error:
        raise header.refused(
            f"tensor {name} is of type {stored.type}, which the package gguf does not dequantize",
            "update gguf (pip install -U gguf), or take the model's safetensors",
        ) from error


# ---- the folder ----


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
    held: dict[str, torch.Tensor] = {}

    def put() -> None:
        save_file(held, folder / _shard(len(shards)), metadata={"format": "pt"})
        shards.append(list(held))
        held.clear()

    for name, tensor in tensors:
        held[name] = tensor.contiguous()
        if sum(one.nbytes for one in held.values()) >= _SHARD_BYTES:
            put()
    if held:
        put()
    if len(shards) == 1:
        (folder / _shard(0)).rename(folder / "model.safetensors")
        return
    places = {name: _shard(index) for index, names in enumerate(shards) for name in names}
    index = json.dumps({"metadata": {}, "weight_map": places}, indent=2)
    (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")


def _shard(index: int) -> str:
    return f"model-{index + 1:05d}.safetensors"
