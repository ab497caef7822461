"""Where the decoder blocks and their linear layers are: a declarative map, one entry a `config.model_type`.

`linears` are quantized; `kept` and everything else (embeddings, norms, head) stay in full precision, as in the papers.
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
class Family:
    """One architecture. `seqlen` is the evaluation window of the GPTQ protocol: a config field, at most `longest`.

    blocks: path of the decoder's ModuleList; linears: inside a block, in the order of the forward pass;
    kept: linear layers outside the blocks, which the papers keep in full precision (some models lack them).
    """

    blocks: str
    linears: tuple[str, ...]
    kept: tuple[str, ...] = ()
    seqlen: str = "max_position_embeddings"
    longest: int = 2048


FAMILIES = {
    "opt": Family(
        blocks="model.decoder.layers",
        linears=(
            "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.out_proj",
            "fc1", "fc2",
        ),
        kept=("model.decoder.project_in", "model.decoder.project_out", "lm_head"),  # 350m projects
    ),
    "llama": Family(
        blocks="model.layers",
        linears=(
            "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
            "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
        ),
        kept=("lm_head",),
    ),
    "gpt2": Family(
        blocks="transformer.h",
        linears=("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"),
        kept=("lm_head",),
        seqlen="n_positions",
        longest=1024,
    ),
    "gpt_neo": Family(
        blocks="transformer.h",
        linears=(
            "attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj",
            "attn.attention.out_proj", "mlp.c_fc", "mlp.c_proj",
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
