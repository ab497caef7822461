"""GGUF files of tiny models, by the package gguf's own writer, names and quantizers; and blocks of random bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.models.architectures import SHARED, randomized
from tests.tiny_models import byte_tokenizer
from transformers import LlamaConfig, PreTrainedModel, Qwen2Config, Qwen3Config

import gguf
from gguf import GGMLQuantizationType as Type
from gguf import quants
from lutlab.gguf import folder
from lutlab.models.families import model_class

# K types have blocks of 256; no two sizes are equal.
SIZES = SHARED | {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
CONFIGS = {
    "llama": lambda: LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama-biases": lambda: LlamaConfig(**SIZES, attention_bias=True, rope_theta=5e5),
    "qwen2": lambda: Qwen2Config(**SIZES),
    "qwen3": lambda: Qwen3Config(**SIZES, head_dim=128),
}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
# Bytes of each type's block at which a float16 scale lies.
SCALES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "TQ1_0": (52,), "TQ2_0": (64,), "Q1_0": (0,), "Q2_0": (0,),
    "IQ4_NL": (0,),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    """Another one than the kernels' own, for conftest.py."""
    monkeypatch.setattr(folder, "cache_folder", lambda name: tmp_path / "cache" / name)


def make(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    return randomized(model_class(CONFIGS[name]()).from_config(CONFIGS[name]())).float()


def block(kind: str) -> tuple[int, int]:
    """Weights and bytes of a type's block."""
    return (64, 18) if kind == "Q2_0" else gguf.GGML_QUANT_SIZES[Type[kind]]


def random_blocks(kind: str, rows: int, columns: int, scale: float = 0.02) -> np.ndarray:
    """[rows, bytes] of any bits, with finite scales: of K types there is no encoder in the package."""
    weights, width = block(kind)
    random = np.random.default_rng(rows)
    blocks = random.integers(0, 256, (rows, columns // weights, width), dtype=np.uint8)
    for place in SCALES[kind]:
        scales = (random.standard_normal(blocks.shape[:2]) * scale).astype(np.float16)
        blocks[:, :, place : place + 2] = scales[..., None].view(np.uint8)
    return blocks.reshape(rows, -1)


def decoded(row: np.ndarray, kind: str) -> tuple[list[int], list[tuple[float, ...]]]:
    """Codes as stored, and d and m, where the type has one, of each block of a row of bytes, by ggml-quants.c."""
    weights, size = block(kind)
    codes, scales = [], []
    for data in map(bytes, np.asarray(row).reshape(-1, size)):
        places, high = "<ee" if kind.endswith("_1") else "<e", 0
        scales.append(struct.unpack_from(places, data))
        data = data[struct.calcsize(places) :]
        if kind.startswith("Q5"):
            high, data = int.from_bytes(data[:4], "little"), data[4:]
        if kind == "Q8_0":
            codes += struct.unpack("32b", data)
        elif kind in ("Q1_0", "Q2_0"):
            bits = int(kind[1])
            codes += [data[j * bits // 8] >> j * bits % 8 & 2**bits - 1 for j in range(weights)]
        else:
            lows = (data[j % 16] >> 4 * (j // 16) & 15 for j in range(weights))
            codes += [low | (high >> j & 1) << 4 for j, low in enumerate(lows)]
    return codes, scales


def dequantized(data: np.ndarray, kind: str) -> np.ndarray:
    """Weights of Q1_0 or Q2_0, which the package does not dequantize."""
    rows = []
    for codes, scales in (decoded(row, kind) for row in data):
        levels = np.array(codes) * 2 - 1 if kind == "Q1_0" else np.array(codes) - 1
        rows.append((levels.reshape(len(scales), -1) * np.array(scales)).ravel())
    return np.array(rows, dtype=np.float32)


def write(path: Path, model: PreTrainedModel, kind_of: Callable[[str], str] = lambda name: "F32",
          tokenizer: bool = True, **keys: Any) -> Path:  # fmt: skip
    """A file of a model; kind_of: transformers' name of a matrix -> its type; keys: added, or set instead."""
    config = model.config
    arch, heads, pairs = config.model_type, config.num_attention_heads, config.num_key_value_heads
    writer = gguf.GGUFWriter(path, arch)
    _add(
        writer, block_count=config.num_hidden_layers, context_length=config.max_position_embeddings,
        embedding_length=config.hidden_size, feed_forward_length=config.intermediate_size, head_count=heads,
        head_count_kv=pairs, layer_norm_rms_eps=config.rms_norm_eps,
        rope_freq_base=config.rope_parameters["rope_theta"],
    )  # fmt: skip
    if arch == "qwen3":
        _add(writer, key_length=config.head_dim, value_length=config.head_dim)
    if tokenizer:
        add_tokenizer(writer, keys.pop("pre", "gpt-2"), keys.pop("template", TEMPLATE))
    add_keys(writer, keys)
    number = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        here, _, suffix = name.rpartition(".")
        values = tensor.numpy()
        if arch == "llama" and here.endswith(("q_proj", "k_proj")):
            values = permuted(values, heads if "q_proj" in here else pairs)
        kind = kind_of(name) if values.ndim == 2 else "F32"
        add_tensor(writer, f"{names.get_name(here) or here}.{suffix}", values, kind)
    return finish(writer, path)


def _add(writer: gguf.GGUFWriter, **fields: Any) -> None:
    for name, value in fields.items():
        getattr(writer, f"add_{name}")(value)


def add_keys(writer: gguf.GGUFWriter, keys: Mapping[str, Any]) -> None:
    kinds = {bool: "bool", int: "uint32", float: "float32", str: "string"}
    for key, value in keys.items():
        getattr(writer, f"add_{kinds[type(value)]}")(key.replace("__", "."), value)


def finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows as llama.cpp's converter orders them, one by one."""
    half = len(values) // heads // 2
    pairs = ((2 * h * half + j, (2 * h + 1) * half + j) for h in range(heads) for j in range(half))
    return values[[row for pair in pairs for row in pair]]


def add_tensor(writer: gguf.GGUFWriter, name: str, values: np.ndarray, kind: str) -> None:
    if kind in ("F32", "F16"):
        writer.add_tensor(name, values.astype(np.float16 if kind == "F16" else np.float32))
        return
    try:
        data = quants.quantize(values, Type[kind])
    except (NotImplementedError, KeyError):
        data = random_blocks(kind, *values.shape)
    writer.add_tensor(name, data, raw_dtype=Type[kind])


def add_tokenizer(writer: gguf.GGUFWriter, pre: str, template: str) -> None:
    """The byte-level tokenizer of the tests."""
    ids = byte_tokenizer().get_vocab()
    _add(
        writer, tokenizer_model="gpt2", tokenizer_pre=pre, token_list=sorted(ids, key=ids.get),
        token_types=[3] + [1] * (len(ids) - 1), token_merges=["t h", "Ġ a", "Ġ e"], bos_token_id=0, eos_token_id=0,
        add_bos_token=True, chat_template=template,
    )  # fmt: skip
