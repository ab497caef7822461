"""Places of the decoder blocks and of their linear layers: a declarative map, one entry a `config.model_type`.

The linear layers of `inputs` are quantized; `kept` and everything else (embeddings, norms, head) stay in full
precision, as in the papers.
A layer's weight is read as [N, K] = [out_features, in_features]: GPT-2's Conv1D stores [K, N] and is transposed first,
so that a group is always a run of *input* channels of one output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lutlab.errors import LutlabError, nearest

if TYPE_CHECKING:
    import torch
    from torch import nn
    from transformers import PreTrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class SharedInput:
    """Linear layers of a block that read the same input, so that one Hessian serves them all.

    Attributes:
        kind: the sub-layer they belong to: `attention` or `feed_forward` (LUT-GEMM Fig. 13).
        layers: their paths inside the block.
        scaled_by: path of the module whose output channels are this input's channels, with nothing between them that
            a scale per channel does not pass through (a norm; v_proj through the attention's weights; fc1 through
            ReLU; up_proj through the gate's product). None where there is none.
    """

    kind: str
    layers: tuple[str, ...]
    scaled_by: str | None = None


@dataclass(frozen=True)
class Family:
    """One architecture. `seqlen` is the evaluation window of the GPTQ protocol: a config field, at most `longest`.

    blocks: path of the decoder's ModuleList; inputs: the linear layers of a block, in the order of the forward pass;
    kept: linear layers outside the blocks, which the papers keep in full precision (some models lack them).
    """

    blocks: str
    inputs: tuple[SharedInput, ...]
    kept: tuple[str, ...] = ()
    seqlen: str = "max_position_embeddings"
    longest: int = 2048

    @property
    def linears(self) -> tuple[str, ...]:
        """Paths of all linear layers inside a block, in the order of the forward pass."""
        return tuple(layer for shared in self.inputs for layer in shared.layers)


def _attention(*layers: str, scaled_by: str | None = None) -> SharedInput:
    return SharedInput("attention", layers, scaled_by)


def _feed_forward(*layers: str, scaled_by: str | None = None) -> SharedInput:
    return SharedInput("feed_forward", layers, scaled_by)


FAMILIES = {
    "opt": Family(
        blocks="model.decoder.layers",
        inputs=(
            _attention(
                "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                scaled_by="self_attn_layer_norm",
            ),
            _attention("self_attn.out_proj", scaled_by="self_attn.v_proj"),
            _feed_forward("fc1", scaled_by="final_layer_norm"),
            _feed_forward("fc2", scaled_by="fc1"),
        ),
        kept=("model.decoder.project_in", "model.decoder.project_out", "lm_head"),  # 350m projects
    ),
    "llama": Family(
        blocks="model.layers",
        inputs=(
            _attention(
                "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                scaled_by="input_layernorm",
            ),
            _attention("self_attn.o_proj", scaled_by="self_attn.v_proj"),
            _feed_forward("mlp.gate_proj", "mlp.up_proj", scaled_by="post_attention_layernorm"),
            _feed_forward("mlp.down_proj", scaled_by="mlp.up_proj"),
        ),
        kept=("lm_head",),
    ),
    "gpt2": Family(
        blocks="transformer.h",
        inputs=(
            _attention("attn.c_attn", scaled_by="ln_1"),
            _attention("attn.c_proj"),  # its channels are a third of c_attn's
            _feed_forward("mlp.c_fc", scaled_by="ln_2"),
            _feed_forward("mlp.c_proj"),  # GELU lets no scale through
        ),
        kept=("lm_head",),
        seqlen="n_positions",
        longest=1024,
    ),
    "gpt_neo": Family(
        blocks="transformer.h",
        inputs=(
            _attention(
                "attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj",
                scaled_by="ln_1",
            ),
            _attention("attn.attention.out_proj", scaled_by="attn.attention.v_proj"),
            _feed_forward("mlp.c_fc", scaled_by="ln_2"),
            _feed_forward("mlp.c_proj"),
        ),
        kept=("lm_head",),
    ),
}  # fmt: skip


def family_of(config: PreTrainedConfig) -> Family:
    """The family of a model. Raises LutlabError for an architecture that the map lacks."""
    return family_named(config.model_type)


def family_named(model_type: str) -> Family:
    """The family of `model_type` as config.json has it. Raises LutlabError as family_of."""
    if model_type not in FAMILIES:
        raise LutlabError(
            f"no map of the linear layers of '{model_type}': {nearest(model_type, FAMILIES)}; "
            "add an entry to models/families.py"
        )
    return FAMILIES[model_type]


def evaluation_seqlen(config: PreTrainedConfig) -> int:
    """Window length in tokens: the model's context, at most 2048 (LLaMA) or 1024 (GPT-2), as GPTQ evaluates."""
    family = family_of(config)
    return min(getattr(config, family.seqlen), family.longest)


def decoder_blocks(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder blocks of a model, in forward order."""
    return model.get_submodule(family_of(model.config).blocks)


def kinds(config: PreTrainedConfig) -> dict[str, str]:
    """Path of every linear layer that is quantized -> its kind of sub-layer, in forward order."""
    family = family_of(config)
    return {
        f"{family.blocks}.{index}.{layer}": shared.kind
        for index in range(config.num_hidden_layers)
        for shared in family.inputs
        for layer in shared.layers
    }


def linear_layers(model: PreTrainedModel) -> Iterator[tuple[str, nn.Module]]:
    """Yield (path, module) of every linear layer that is quantized, block by block in forward order."""
    family = family_of(model.config)
    for index, block in enumerate(model.get_submodule(family.blocks)):
        for name in family.linears:
            yield f"{family.blocks}.{index}.{name}", block.get_submodule(name)


def weight_of(module: nn.Module) -> torch.Tensor:
    """The weight of a linear layer as [N, K], a view: Conv1D's [K, N] is transposed."""
    from transformers.pytorch_utils import Conv1D

    return module.weight.detach().T if isinstance(module, Conv1D) else module.weight.detach()
