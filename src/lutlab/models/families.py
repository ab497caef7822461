"""The families that lutlab knows, and a model's blocks and linear layers by way of its family.

The linear layers of a family's `inputs` are quantized; `kept` and everything else (embeddings, norms, head) stay in
full precision, as in the papers.
A layer's weight is read as [N, K] = [out_features, in_features]: GPT-2's Conv1D stores [K, N] and is transposed first,
so that a group is always a run of *input* channels of one output.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from lutlab.base import registry
from lutlab.base.errors import LutlabError, arguments_of, nearest
from lutlab.base.lazy import PreTrainedConfig, PreTrainedModel, nn, torch, transformers
from lutlab.models.contract import (
    CLASSIFIER,
    CLASSIFIES,
    TASKS,
    Family,
    SharedInput,
    Sizes,
    declare,
    holds,
)


def _attention(*layers: str, **scaling: Any) -> SharedInput:
    return SharedInput("attention", layers, **scaling)


def _feed_forward(*layers: str, **scaling: Any) -> SharedInput:
    return SharedInput("feed_forward", layers, **scaling)


_BLOCK = (("", ()),)  # what a block reads is the residual stream
_HEADS = ("lm_head", "score")  # of the next token; of classes
_BEFORE = (("do_layer_norm_before", True),)  # 350m: a norm's output is the residual stream as well

declare(
    Family(
        model_types=("opt",),
        blocks="model.decoder.layers",
        inputs=(
            _attention(
                "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                scaled_by="self_attn_layer_norm", scaled_where=_BEFORE,
            ),
            _attention("self_attn.out_proj", scaled_by="self_attn.v_proj", adds_to=_BLOCK),
            _feed_forward("fc1", scaled_by="final_layer_norm", scaled_where=_BEFORE),
            _feed_forward(
                "fc2", scaled_by="fc1", scaled_where=(("activation_function", "relu"),),
                adds_to=(("final_layer_norm", _BEFORE), ("fc1", ())),
            ),
        ),
        kept=("model.decoder.project_in", "model.decoder.project_out", *_HEADS),  # 350m projects
        deviation="init_std",
        sizes=Sizes(feed_forward="ffn_dim", gated=False, tied=True, learned=2),
        graphs=True,
    )
)  # fmt: skip

_LLAMA = declare(
    Family(
        model_types=("llama", "mistral"),
        blocks="model.layers",
        inputs=(
            _attention(
                "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                scaled_by="input_layernorm",
            ),
            _attention("self_attn.o_proj", scaled_by="self_attn.v_proj", adds_to=_BLOCK),
            _feed_forward("mlp.gate_proj", "mlp.up_proj", scaled_by="post_attention_layernorm"),
            _feed_forward(
                "mlp.down_proj", scaled_by="mlp.up_proj",
                adds_to=(("post_attention_layernorm", ()),),
            ),
        ),
        kept=_HEADS,
        sizes=Sizes(),
        graphs=True,
    )
)  # fmt: skip

# Calibration calls every block with the arguments of the first: no window that slides in some blocks only.
declare(
    dataclasses.replace(
        _LLAMA, model_types=("qwen2", "qwen3"), where=(("use_sliding_window", False),)
    )
)

# GLM-4, and ChatGLM3 converted to it: two rotations a head, gate and up in one layer.
declare(
    dataclasses.replace(
        _LLAMA,
        model_types=("glm",),
        inputs=(
            *_LLAMA.inputs[:2],
            _feed_forward("mlp.gate_up_proj", scaled_by="post_attention_layernorm"),
            # its channels are half of gate_up_proj's
            _feed_forward("mlp.down_proj", adds_to=(("post_attention_layernorm", ()),)),
        ),
        sizes=None,
    )
)

declare(
    Family(
        model_types=("gpt2",),
        blocks="transformer.h",
        inputs=(
            _attention("attn.c_attn", scaled_by="ln_1"),
            _attention("attn.c_proj", adds_to=_BLOCK),  # its channels are a third of c_attn's
            _feed_forward("mlp.c_fc", scaled_by="ln_2"),
            _feed_forward("mlp.c_proj", adds_to=(("ln_2", ()),)),  # GELU lets no scale through
        ),
        kept=_HEADS,
        seqlen="n_positions",
        longest=1024,
        sizes=Sizes(
            "n_embd", "n_inner", "n_layer", "n_head", "n_positions", gated=False, tied=True, learned=0
        ),
        graphs=True,
    )
)  # fmt: skip

# Its causal table is cut by lengths that Python knows: no CUDA graph.
declare(
    Family(
        model_types=("gpt_neo",),
        blocks="transformer.h",
        inputs=(
            _attention(
                "attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj",
                scaled_by="ln_1",
            ),
            _attention(
                "attn.attention.out_proj", scaled_by="attn.attention.v_proj", adds_to=_BLOCK
            ),
            _feed_forward("mlp.c_fc", scaled_by="ln_2"),
            _feed_forward("mlp.c_proj", adds_to=(("ln_2", ()),)),
        ),
        kept=_HEADS,
    )
)  # fmt: skip

# The norms stand behind the sums, and what they give is the residual stream as well: no scale folds.
declare(
    Family(
        model_types=("bert",),
        blocks="bert.encoder.layer",
        inputs=(
            _attention("attention.self.query", "attention.self.key", "attention.self.value"),
            _attention(
                "attention.output.dense", scaled_by="attention.self.value", adds_to=_BLOCK
            ),
            _feed_forward("intermediate.dense"),
            _feed_forward("output.dense", adds_to=(("intermediate.dense", ()),)),
        ),
        kept=(
            "bert.pooler.dense", "classifier",
            "cls.predictions.transform.dense", "cls.predictions.decoder",
        ),
        heads=(
            ("BertForMaskedLM", "masked_lm"),
            ("BertForSequenceClassification", "sequence_classification"),
        ),
        longest=512,
        where=(("is_decoder", False),),
    )
)  # fmt: skip


def family_of(config: PreTrainedConfig) -> Family:
    """The family of a model. Raises LutlabError for an architecture without one, or a variant that it does not fit."""
    family = family_named(config.model_type)
    if not holds(family.where, config):
        values = {field: getattr(config, field) for field, _ in family.where}
        raise LutlabError(
            f"a '{config.model_type}' with {values} is not supported, only one with {dict(family.where)}: take another "
            "model, or declare a family of your own for it (docs/architecture.md)"
        )
    return family


def family_named(model_type: str) -> Family:
    """The family of `model_type` as config.json has it. Raises LutlabError for an architecture without one."""
    known = registry.classes("family")
    if model_type not in known:
        raise LutlabError(
            f"no family of models '{model_type}': {nearest(model_type, known)}; a family says where the linear layers "
            "are, docs/architecture.md how one is added"
        )
    return known[model_type]


def model_class(config: PreTrainedConfig) -> Any:
    """The class of transformers that makes and loads models of this config, by the task of the head that it names."""
    return getattr(
        transformers, TASKS[_task(family_of(config), _architectures(config.architectures))]
    )


def family_written(path: Path) -> Family:
    """The family of a config.json.

    Raises:
        LutlabError: no family has its model_type.
        OSError, ValueError, KeyError, TypeError: it is no JSON mapping with a model_type.
    """
    written = json.loads(path.read_text(encoding="utf-8"))
    model_type = written["model_type"]
    try:
        return family_named(model_type)
    except LutlabError as error:
        raise LutlabError(f"{path}: {error}") from error


def task_of_config(config: Mapping[str, Any]) -> str:
    """The task of a model by its config.json; empty where no family knows it, which loading it says."""
    family = registry.classes("family").get(config.get("model_type", ""))
    heads = _architectures(config.get("architectures"))
    if family is None or (family.heads and not set(heads) & set(dict(family.heads))):
        return ""
    return _task(family, heads)


def task_of(model: PreTrainedModel) -> str:
    """The task of a model, a key of TASKS: its family's, or that of its head.

    Raises:
        LutlabError: an architecture or a head that no family here knows.
    """
    return _task(family_of(model.config), [type(model).__name__])


def _architectures(written: object) -> Sequence[str]:
    """`architectures` of a config.json as it is written; raises LutlabError: it is no list of names."""
    if written is None:
        return ()
    if isinstance(written, list) and all(isinstance(name, str) for name in written):
        return written
    raise LutlabError(
        f"architectures in config.json is {written!r}, no list of names: the file is damaged; fetch it again"
    )


def _task(family: Family, architectures: Sequence[str]) -> str:
    """The task of a family's model with the first head of `architectures` that it knows."""
    if not family.heads:
        classifies = any(name.endswith(CLASSIFIER) for name in architectures)
        return CLASSIFIES if classifies else family.task
    known = dict(family.heads)
    for architecture in architectures:
        if architecture in known:
            return known[architecture]
    raise LutlabError(
        f"a '{family.model_types[0]}' with the head of {', '.join(architectures) or 'none'} is not supported, only "
        f"{', '.join(known)} (`architectures` in config.json): take a checkpoint with one of these"
    )


def evaluation_seqlen(config: PreTrainedConfig) -> int:
    """Window length in tokens: the model's context, at most 2048 (LLaMA) or 1024 (GPT-2), as GPTQ evaluates."""
    family = family_of(config)
    return min(getattr(config, family.seqlen), family.longest)


def decoder_blocks(model: PreTrainedModel) -> nn.ModuleList:
    """The decoder blocks of a model, in forward order. Raises LutlabError for a model without its family's head."""
    path = family_of(model.config).blocks
    try:
        return cast("nn.ModuleList", model.get_submodule(path))  # as a family says
    except AttributeError as error:
        raise LutlabError(
            f"a {type(model).__name__} has no blocks at {path}: load it with its head, as AutoModelForCausalLM does"
        ) from error


def forward_with_cache(model: PreTrainedModel, cache: Any, **inputs: Any) -> Any:
    """The output of a decoder's forward pass that reads a cache of keys and values, and adds its tokens to it.

    transformers calls the argument `cache`, before 5.24 `past_key_values`; models with code of their own keep either.
    """
    name = "cache" if "cache" in _arguments(type(model).forward) else "past_key_values"
    return model(**{name: cache}, use_cache=True, **inputs)


@functools.cache
def _arguments(forward: Callable[..., Any]) -> frozenset[str]:
    return frozenset(arguments_of(forward))


def with_positions(
    model: PreTrainedModel, inputs: Mapping[str, torch.Tensor]
) -> Mapping[str, torch.Tensor]:
    """Inputs of a forward pass in which padding before a token does not count among its positions.

    Architectures with learned positions (GPT-2, GPT-Neo, BERT) would count it; transformers' generate does not.

    Args:
        model: a model of a known family.
        inputs: input_ids, attention_mask, … [B, S] int64.

    Returns:
        The inputs, with position_ids [B, S] int64 where padding stands before a token and the architecture takes them.
    """
    mask = inputs.get("attention_mask")
    if mask is None or "position_ids" in inputs:
        return inputs
    if "position_ids" not in _arguments(type(model).forward):
        return inputs
    tokens = mask.bool()
    positions = (tokens.cumsum(-1) - 1).clamp(min=0)
    places = torch.arange(mask.shape[1], device=mask.device).expand_as(mask)
    if torch.equal(positions[tokens], places[tokens]):
        return inputs
    return {**inputs, "position_ids": positions}


def ends_of_text(model: PreTrainedModel) -> set[int]:
    """Tokens that end a text, as transformers' generate ends it."""
    ends = (model.generation_config or model.config).eos_token_id
    if ends is None:
        return set()
    return set(ends) if isinstance(ends, list) else {ends}


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
    for index, block in enumerate(decoder_blocks(model)):
        for name in family.linears:
            yield f"{family.blocks}.{index}.{name}", block.get_submodule(name)


def stream_of(config: PreTrainedConfig, shared: SharedInput) -> str | None:
    """Path inside a block of the module that reads the stream which layers add to (SharedInput); None: to none."""
    return next((path for path, where in shared.adds_to if holds(where, config)), None)


def weight_of(module: nn.Module) -> torch.Tensor:
    """The weight of a linear layer as [N, K], a view: Conv1D's [K, N] is transposed."""
    from transformers.pytorch_utils import Conv1D

    weight = cast("torch.Tensor", module.weight).detach()  # a module's attribute may be a module
    return weight.T if isinstance(module, Conv1D) else weight


def size_of(module: nn.Module) -> tuple[int, int]:
    """(N, K) of a linear layer."""
    rows, columns = weight_of(module).shape
    return rows, columns
