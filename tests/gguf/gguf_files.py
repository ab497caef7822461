"""GGUF files of tiny models, by the package gguf's own writer, names and quantizers; and blocks of random bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.models.architectures import SHARED, randomized
from tests.tiny_models import byte_tokenizer
from transformers import LlamaConfig, PreTrainedModel, Qwen2Config, Qwen3Config

import gguf
from gguf import GGMLQuantizationType as Type
from gguf import quants
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
    found = random.integers(0, 256, (rows, columns // weights, width), dtype=np.uint8)
    for place in SCALES[kind]:
        scales = (random.standard_normal(found.shape[:2]) * scale).astype(np.float16)
        found[:, :, place : place + 2] = scales[..., None].view(np.uint8)
    return found.reshape(rows, -1)


def write(
    path: Path,
    model: PreTrainedModel,
    kind_of: Callable[[str], str] = lambda name: "F32",
    tokenizer: bool = True,
    **keys: Any,
) -> Path:
    """A file of a model; kind_of: transformers' name of a matrix -> its type; keys: added, or set instead."""
    config = model.config
    arch = config.model_type
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if arch == "qwen3":
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if tokenizer:
        add_tokenizer(writer, keys.pop("pre", "gpt-2"), keys.pop("template", TEMPLATE))
    for key, value in keys.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        add.get(type(value), writer.add_string)(key.replace("__", "."), value)
    number = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        here, _, suffix = name.rpartition(".")
        values = tensor.numpy()
        if arch == "llama" and here.endswith(("q_proj", "k_proj")):
            heads = config.num_attention_heads if "q_proj" in here else config.num_key_value_heads
            values = permuted(values, heads)
        kind = kind_of(name) if values.ndim == 2 else "F32"
        add_tensor(writer, f"{names.get_name(here)}.{suffix}", values, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def permuted(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows as llama.cpp's converter orders them, one by one."""
    size = len(values) // heads
    rows = [
        h * size + i for h in range(heads) for j in range(size // 2) for i in (j, size // 2 + j)
    ]
    return values[rows]


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
    made = byte_tokenizer()
    vocabulary = sorted(made.get_vocab(), key=made.get_vocab().get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocabulary)
    writer.add_token_types([3] + [1] * (len(vocabulary) - 1))
    writer.add_token_merges(["t h", "Ġ a", "Ġ e"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_chat_template(template)
