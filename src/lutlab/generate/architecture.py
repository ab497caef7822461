"""A decoder as plain data for the C step: sizes, paths of its modules, norms, rotations, activation, windows.

    architecture_of(model) -> Architecture

The linear layers of a block are the family's (models/families.py: queries, keys, values; what follows attention; what
widens; what narrows). A `Decoder` says the rest of a family, once, by paths of modules and names of config fields.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lutlab.errors import LutlabError
from lutlab.lazy import PreTrainedConfig, PreTrainedModel
from lutlab.models.families import family_of

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


@dataclass(frozen=True)
class Block:
    """Paths of a block's modules, in the model; scale of its attention, and tokens that it sees (None: all)."""

    attention: tuple[str, ...]  # one layer that gives queries, keys and values, or three
    out: str
    up: tuple[str, ...]
    down: str
    norms: tuple[str, str]
    head_norms: tuple[str, ...]
    scale: float
    window: int | None


@dataclass(frozen=True)
class Architecture:
    """A decoder: sizes of it, and paths of its modules in the model; an empty path: it has none."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    rms: bool
    norm_first: bool
    activation: str  # a value of ACTIVATIONS
    gated: bool
    tokens: str
    positions: str
    positions_from: int
    rotary: str
    neighbours: bool
    project_in: str
    project_out: str
    last_norm: str
    blocks: tuple[Block, ...]


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


def architecture_of(model: PreTrainedModel) -> Architecture:
    """The model as plain data.

    Raises:
        LutlabError: it is of a family whose decoder nobody has described.
    """
    config, family = model.config, family_of(model.config)
    decoder = DECODERS.get(config.model_type)
    if decoder is None:
        raise LutlabError(obstacle(config))
    prefix = f"{decoder.body}."
    body = model.get_submodule(decoder.body)
    projections = [_present(body, prefix, path) for path in decoder.projections] or ["", ""]
    attention = model.get_submodule(f"{family.blocks}.0.{decoder.attention}")
    return Architecture(
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=getattr(config, decoder.kv_heads),
        head_dim=attention.head_dim,
        vocabulary=config.vocab_size,
        rms=decoder.rms,
        norm_first=not decoder.norm_first or getattr(config, decoder.norm_first),
        activation=ACTIVATIONS[getattr(config, decoder.activation)],
        gated=decoder.gated,
        tokens=prefix + decoder.tokens,
        positions=prefix + decoder.positions if decoder.positions else "",
        positions_from=decoder.positions_from,
        rotary=prefix + decoder.rotary if decoder.rotary else "",
        neighbours=decoder.neighbours,
        project_in=projections[0],
        project_out=projections[1],
        last_norm=_present(body, prefix, decoder.last_norm),
        blocks=tuple(_block(model, decoder, i) for i in range(config.num_hidden_layers)),
    )


def _present(body: Any, prefix: str, path: str) -> str:
    """The path in the model of a module that a body may have as None."""
    return "" if getattr(body, path) is None else prefix + path


def _block(model: PreTrainedModel, decoder: Decoder, index: int) -> Block:
    config, family = model.config, family_of(model.config)
    prefix = f"{family.blocks}.{index}."
    attention, out, up, down = (tuple(prefix + p for p in s.layers) for s in family.inputs)
    own = model.get_submodule(prefix + decoder.attention)
    window = getattr(config, decoder.window) if decoder.window else None
    if decoder.window_where and getattr(config, decoder.window_where)[index] != "local":
        window = None
    return Block(
        attention=attention,
        out=out[0],
        up=up,
        down=down[0],
        norms=tuple(prefix + path for path in decoder.norms),
        head_norms=tuple(f"{prefix}{decoder.attention}.{path}" for path in decoder.head_norms),
        scale=own.scaling if decoder.scaled else 1.0,
        window=window,
    )
