"""Decoders as plain data for the C step: where a family's modules are, norms, rotations, activation, windows.

The linear layers of a block are the family's (models/families.py: queries, keys, values; what follows attention; what
widens; what narrows). A `Decoder` says the rest of a family, once, by paths of modules and names of config fields.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from lutlab.base.lazy import PreTrainedConfig

# transformers' names of activations -> those of kernels/cpu/step/rows.h
ACTIVATIONS = {
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
# Frequencies that depend on how long a text has become, beyond the context that the model was first trained with.
GROWING_ROPES = ("dynamic", "longrope")


@dataclass(frozen=True)
class Decoder:
    """A family, beside its linear layers: paths of modules in a block, or in the body, and names of config fields."""

    body: str  # path of the module that holds embeddings and the last norm
    tokens: str  # path in it of the table of tokens
    attention: str  # path in a block of the attention, which knows head_dim and, where `scaled`, its scaling
    norms: tuple[str, str]  # paths in a block of the norms of attention and feed-forward
    last_norm: str  # path in the body; that module may be None
    rms: bool  # RMSNorm, else LayerNorm
    activation: str  # config field
    gated: bool = False  # the widening layers give gate and up, either two layers or halves of one
    kv_heads: str = "num_attention_heads"  # config field
    positions: str = ""  # path in the body of a table of positions; empty: rotations
    positions_from: int = 0  # row of the table for position 0
    rotary: str = ""  # path in the body of the module that gives cosines and sines
    neighbours: bool = False  # rotated pairs are neighbours, else halves of the head apart
    head_norms: tuple[str, ...] = ()  # paths in the attention of norms of each query and key
    scaled: bool = True  # query times key is scaled by attention.scaling, else by nothing
    norm_first: str = ""  # config field: whether norms come before sub-layers; empty: they do
    # paths in the body between embeddings and blocks, blocks and head; those modules may be None
    projections: tuple[str, ...] = ()
    window: str = ""  # config field of how many tokens a block sees; empty: all
    window_where: str = ""  # config field, "local" for blocks with a window; empty: all have it


_LLAMA = Decoder(
    body="model",
    tokens="embed_tokens",
    attention="self_attn",
    norms=("input_layernorm", "post_attention_layernorm"),
    last_norm="norm",
    rms=True,
    activation="hidden_act",
    gated=True,
    kv_heads="num_key_value_heads",
    rotary="rotary_emb",
)
_GPT2 = Decoder(
    body="transformer",
    tokens="wte",
    attention="attn",
    norms=("ln_1", "ln_2"),
    last_norm="ln_f",
    rms=False,
    activation="activation_function",
    positions="wpe",
)
_OPT = Decoder(
    body="model.decoder",
    tokens="embed_tokens",
    attention="self_attn",
    norms=("self_attn_layer_norm", "final_layer_norm"),
    last_norm="final_layer_norm",
    rms=False,
    activation="activation_function",
    positions="embed_positions",
    positions_from=2,
    norm_first="do_layer_norm_before",
    projections=("project_in", "project_out"),
)
_NEO: dict[str, Any] = {"attention": "attn.attention", "scaled": False}
DECODERS = {
    "opt": _OPT,
    "llama": _LLAMA,
    "mistral": replace(_LLAMA, window="sliding_window"),
    "qwen2": _LLAMA,
    "qwen3": replace(_LLAMA, head_norms=("q_norm", "k_norm")),
    "glm": replace(_LLAMA, neighbours=True),
    "gpt2": _GPT2,
    "gpt_neo": replace(_GPT2, **_NEO, window="window_size", window_where="attention_layers"),
}


def obstacle(config: PreTrainedConfig) -> str:
    """Reason for the C step's not taking a model of this config; empty where it does."""
    decoder = DECODERS.get(config.model_type)
    if decoder is None:
        return f"nobody has said how a '{config.model_type}' decodes (generate/architecture.py)"
    name = getattr(config, decoder.activation)
    if name not in ACTIVATIONS:
        return f"its activation {name} is none of {', '.join(ACTIVATIONS)}"
    if getattr(config, "add_cross_attention", False):  # a field of GPT-2 alone
        return "it attends to an encoder too"
    if decoder.rotary:
        rope = config.rope_parameters
        trained = rope.get("original_max_position_embeddings") or config.max_position_embeddings
        if rope["rope_type"] in GROWING_ROPES and config.max_position_embeddings > trained:
            return f"its rotations ({rope['rope_type']}) change once a text is longer than {trained} tokens"
    return ""
