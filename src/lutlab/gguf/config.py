"""What a GGUF file says of its model: its config in config.json's form, and the place of each tensor.

Every key of the architecture and every tensor must have a place in the model, or the file is refused: what a reader
leaves aside makes another model of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lutlab.base.lazy import torch
from lutlab.base.unread import unread
from lutlab.gguf.header import Elements, Header, once_a_file, read_header
from lutlab.gguf.names import OUTSIDE, PARTS
from lutlab.gguf.tokenizer import special_ids
from lutlab.gguf.weights import as_stored


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


@once_a_file
def outline_of(path: Path) -> Outline:
    """The model of a file, no weight read.

    Raises:
        LutlabError: the file cannot be read or is damaged; its architecture, one of its keys or of its tensors is none
            that lutlab reads.
    """
    header = read_header(path)
    if header.keys.get("split.count") not in (None, 0, 1):
        raise header.refused(
            f"it is one of {header.keys['split.count']} files of a model",
            "join them by llama.cpp (llama-gguf-split --merge)",
        )
    name = header.keys.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise header.refused(
            f"its architecture (general.architecture) is {name!r}, and lutlab reads {', '.join(ARCHITECTURES)}",
            "take the model's safetensors (model=hub or model=folder)",
        )
    architecture = ARCHITECTURES[name]
    config = _config(header, name, architecture)
    places = _places(architecture, config)
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
    heads = _whole(header, f"{name}.attention.head_count")
    hidden = _whole(header, f"{name}.embedding_length")
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
        "architectures": [f"{architecture.model_type.capitalize()}ForCausalLM"],
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
    ids = special_ids(header)
    return {f"{name}_token_id": ids[name] for name in ("bos", "eos", "pad")}


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
    value = header.keys.get(key, default)
    if type(value) is int and value >= 1:
        return value
    if isinstance(value, Elements):
        raise header.refused(
            f"{key} is a list, one number a block",
            "lutlab reads models whose blocks are alike; take its safetensors",
        )
    raise header.refused(
        f"it lacks {key}" if value is None else f"{key} is {value!r}, no positive integer"
    )


def _number(header: Header, key: str, default: float | None = None) -> float:
    """A key's positive number."""
    value = header.keys.get(key, default)
    if isinstance(value, float) and 0 < value < float("inf"):
        return value
    raise header.refused(
        f"it lacks {key}" if value is None else f"{key} is {value!r}, no positive number"
    )


def _rope(header: Header, base: float, size: int) -> dict[str, Any]:
    """How positions are rotated; factors of the frequencies, where a file has them, are Llama 3's or refused."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": base}
    if _FREQUENCIES not in header.tensors:
        return rope
    factors = as_stored(header, _FREQUENCIES).double()
    rope |= {"rope_type": "llama3", "factor": float(factors.max()), **_LLAMA_3}
    wavelength = 2 * torch.pi * base ** (torch.arange(0, size, 2, dtype=torch.float64) / size)
    smooth = _LLAMA_3["original_max_position_embeddings"] / wavelength - _LLAMA_3["low_freq_factor"]
    smooth = (smooth / (_LLAMA_3["high_freq_factor"] - _LLAMA_3["low_freq_factor"])).clamp(0, 1)
    expected = 1 / ((1 - smooth) / rope["factor"] + smooth)
    if factors.shape != expected.shape or not torch.allclose(factors, expected, rtol=1e-5, atol=0):
        raise header.refused(
            f"its factors of frequencies ({_FREQUENCIES}) are not Llama 3's",
            "take the model's safetensors",
        )
    return rope


def _places(architecture: _Architecture, config: Mapping[str, Any]) -> dict[str, Place]:
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
    heads = {"attn_q": sizes.num_attention_heads, "attn_k": sizes.num_key_value_heads}
    biases = architecture.biases
    biases += _ATTENTION * config.get("attention_bias", False) + _MLP * config.get(
        "mlp_bias", False
    )
    places = {}
    for ours, theirs in OUTSIDE.items():
        if theirs != "output" or not sizes.tie_word_embeddings:
            shape = (hidden,) if "norm" in theirs else (sizes.vocab_size, hidden)
            places[f"{theirs}.weight"] = Place(f"{ours}.weight", shape)
    for index in range(sizes.num_hidden_layers):
        for ours, part in (*PARTS.items(), *architecture.parts):
            path, name = f"model.layers.{index}.{ours}", f"blk.{index}.{part}"
            if part not in rows:
                shape = (size,) if part in dict(architecture.parts).values() else (hidden,)
                places[f"{name}.weight"] = Place(f"{path}.weight", shape)
                continue
            rotated = heads.get(part) if architecture.interleaved else None
            shape = (rows[part], columns.get(part, hidden))
            places[f"{name}.weight"] = Place(f"{path}.weight", shape, rotated)
            if part in biases:
                places[f"{name}.bias"] = Place(f"{path}.bias", shape[:1], rotated)
    return places
