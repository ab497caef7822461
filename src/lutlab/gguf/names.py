"""What GGUF calls the parts of a LLaMA model, and in which order it has the rows of q and k.

llama.cpp rotates neighbours of a head, transformers its first half with its second: GGUF's rows 0, 1, 2, 3, … of a head
of 2n are transformers' 0, n, 1, n + 1, … Codes, scales and zero points of a row go with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from lutlab.base.lazy import PreTrainedModel, nn, np, torch

_Array = TypeVar("_Array", "torch.Tensor", "np.ndarray")

# LLaMA's own name of a block's part -> GGUF's, behind `blk.<index>.`
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# The same outside of the blocks; a model with a tied head has no `output`.
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def parts(model: PreTrainedModel) -> Iterator[tuple[str, str, nn.Module, int | None]]:
    """GGUF's name, our path, module, and heads (of q and k) of every part that has a weight."""
    config = model.config
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for ours, theirs in OUTSIDE.items():
        yield f"{theirs}.weight", ours, model.get_submodule(ours), None
    for index in range(config.num_hidden_layers):
        for ours, theirs in PARTS.items():
            path, name = f"model.layers.{index}.{ours}", f"blk.{index}.{theirs}.weight"
            yield name, path, model.get_submodule(path), heads.get(theirs)


def interleaved(rows: _Array, heads: int) -> _Array:
    """Rows [N, …] of q or k in GGUF's order."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def halves(rows: _Array, heads: int) -> _Array:
    """Rows [N, …] of q or k in transformers' order: the inverse of interleaved."""
    return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
