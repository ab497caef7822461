"""Decoders as plain data for the C step: where a family's modules are, norms, rotations, activation, windows.

The linear layers of a block are the family's (models/families.py: queries, keys, values; what follows attention; what
widens; what narrows). A `Decoder` says the rest of a family, once, by paths of modules and names of config fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lutlab.lazy import PreTrainedConfig

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
    """A family, beside its linear layers.

    Attributes:
        body: path of the module that holds embeddings and the last norm.
        tokens: path in it of the table of tokens.
        attention: path in a block of the attention, which knows head_dim and, where `scaled`, its scaling.
        norms: paths in a block of the norms of attention and feed-forward.
        last_norm: path in the body; that module may be None.
        rms: RMSNorm, else LayerNorm.
        gated: the widening layers give gate and up, either two layers or halves of one.
        activation: config field.
        kv_heads: config field.
        positions: path in the body of a table of positions; empty: rotations.
        positions_from: row of the table for position 0.
        rotary: path in the body of the module that gives cosines and sines.
        neighbours: rotated pairs are neighbours, else halves of the head apart.
        head_norms: paths in the attention of norms of each query and key.
        scaled: the product of query and key is scaled by attention.scaling, else by nothing.
        norm_first: config field that says whether norms come before sub-layers; empty: they do.
        projections: paths in the body between embeddings and blocks, blocks and head; those modules may be None.
        window: config field of how many tokens a block sees; empty: all.
        window_where: config field that has "local" for blocks with a window; empty: all have it.
    """

    body: str
    tokens: str
    attention: str
    norms: tuple[str, str]
    last_norm: str
    rms: bool
    activation: str
    gated: bool = False
    kv_heads: str = "num_attention_heads"
    positions: str = ""
    positions_from: int = 0
    rotary: str = ""
    neighbours: bool = False
    head_norms: tuple[str, ...] = ()
    scaled: bool = True
    norm_first: str = ""
    projections: tuple[str, ...] = ()
    window: str = ""
    window_where: str = ""


def _llama(**more: Any) -> Decoder:
    return Decoder(
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
        **more,
    )


def _gpt(attention: str, **more: Any) -> Decoder:
    return Decoder(
        body="transformer",
        tokens="wte",
        attention=attention,
        norms=("ln_1", "ln_2"),
        last_norm="ln_f",
        rms=False,
        activation="activation_function",
        positions="wpe",
        **more,
    )


DECODERS = {
    "opt": Decoder(
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
    ),
    "llama": _llama(),
    "mistral": _llama(window="sliding_window"),
    "qwen2": _llama(),
    "qwen3": _llama(head_norms=("q_norm", "k_norm")),
    "glm": _llama(neighbours=True),
    "gpt2": _gpt("attn"),
    "gpt_neo": _gpt(
        "attn.attention", scaled=False, window="window_size", window_where="attention_layers"
    ),
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
