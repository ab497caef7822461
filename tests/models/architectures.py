"""A random model of every architecture, a few kilobytes each; no two sizes are equal, so that no axis hides another."""

from __future__ import annotations

import copy

import torch
import transformers
from transformers import PreTrainedConfig, PreTrainedModel

from lutlab.base.groups import Width
from lutlab.checkpoint.transformers import quantized_layers
from lutlab.compress.widths import widths
from lutlab.models.families import kinds, model_class

VOCABULARY = 260  # of tests.tiny_models.byte_tokenizer
SHARED = {"vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
OPT = SHARED | {
    "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
LLAMA = SHARED | {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64,
}  # fmt: skip
BERT = LLAMA | {"num_attention_heads": 2}
ROPE_3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip

ENCODERS = ("bert", "bert-classifier")
CONFIGS = {
    "opt": lambda: transformers.OPTConfig(**OPT, word_embed_proj_dim=32),
    "opt-350m": lambda: transformers.OPTConfig(**OPT, word_embed_proj_dim=16, do_layer_norm_before=False),
    "llama-1": lambda: transformers.LlamaConfig(**LLAMA),
    "llama-2": lambda: transformers.LlamaConfig(**LLAMA, num_key_value_heads=2, rms_norm_eps=1e-5),
    "llama-3": lambda: transformers.LlamaConfig(**LLAMA, num_key_value_heads=1, rope_parameters=ROPE_3),
    "mistral": lambda: transformers.MistralConfig(**LLAMA, num_key_value_heads=2, sliding_window=8),
    "qwen2": lambda: transformers.Qwen2Config(**LLAMA, num_key_value_heads=4),
    "qwen3": lambda: transformers.Qwen3Config(**LLAMA, num_key_value_heads=2, head_dim=16),
    "bert": lambda: transformers.BertConfig(**BERT, architectures=["BertForMaskedLM"]),
    "bert-classifier": lambda: transformers.BertConfig(
        **BERT, num_labels=3, architectures=["BertForSequenceClassification"]),
    "glm": lambda: transformers.GlmConfig(**LLAMA, num_key_value_heads=1, head_dim=8),
    "gpt2": lambda: transformers.GPT2Config(**SHARED, n_embd=32, n_inner=48, n_layer=2, n_head=2, n_positions=64),
    "gpt-neo": lambda: transformers.GPTNeoConfig(
        **SHARED, hidden_size=32, intermediate_size=48, num_layers=2, num_heads=2, window_size=4,
        max_position_embeddings=64, attention_types=[[["global", "local"], 1]]),
}  # fmt: skip
# Between them all that families differ in: projections, shared keys, a window, Conv1D, an encoder.
DIFFERENT = ("opt-350m", "llama-3", "gpt-neo", "gpt2", "bert-classifier")
CAUSAL = tuple(name for name in CONFIGS if name not in ENCODERS)


def make(name: str) -> PreTrainedModel:
    """The model in evaluation mode, every parameter random: biases and norms that are 0 and 1 would hide mistakes."""
    torch.manual_seed(0)
    return randomized(model_class(config(name)).from_config(config(name)))


def config(name: str) -> PreTrainedConfig:
    return CONFIGS[name]()


def randomized(model: PreTrainedModel) -> PreTrainedModel:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model.eval()


def token_ids(rows: int = 2, length: int = 16) -> torch.Tensor:
    return torch.randint(VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def logits(model: PreTrainedModel, ids: torch.Tensor | None = None) -> torch.Tensor:
    return model.eval()(token_ids() if ids is None else ids).logits


def dequantized(model: PreTrainedModel) -> PreTrainedModel:
    """A copy with torch's layers in place of the quantized ones."""
    model = copy.deepcopy(model)
    for name, layer in quantized_layers(model).items():
        dense = torch.nn.Linear(layer.in_features, layer.out_features, bias=False)
        dense.weight, dense.bias = torch.nn.Parameter(layer.packed.dequantize()), layer.bias
        model.set_submodule(name, dense)
    return model


def uniform(model: PreTrainedModel, q: int, g: int) -> dict[str, Width]:
    """The same width for every layer that is quantized."""
    return widths(kinds(model.config), q, g)
