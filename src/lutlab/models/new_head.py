"""A new head for classes, drawn by a seed, on a causal language model: what a paper fine-tunes on a task begins so.

    logits [B, 3] = h W^T,  h [B, D] the last hidden state of the last token that is no padding,  W [3, D] ~ N(0, s^2)

s is the deviation by which the architecture initialises its weights. The classes are those of MNLI, in GLUE's order.
transformers finds the last token by the padding's id, so that config and tokenizer must agree on one; a tokenizer
without one (LLaMA's) pads with its end of text, which no pair holds.
"""

from __future__ import annotations

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, torch
from lutlab.base.specs import MNLI_LABELS, ModelSpec
from lutlab.models.contract import CLASSIFIES
from lutlab.models.families import family_of

HEADS = ("score", "classifier")  # transformers' names: of decoders, of BERT


def head_of(model: PreTrainedModel) -> str:
    """The path of a classifier's last layer."""
    return next(name for name in HEADS if hasattr(model, name))


def check(spec: ModelSpec, *, stream: bool) -> None:
    """Refuse a `model.task` that has no place for a new head.

    Raises:
        LutlabError: an unknown task, weights that are drawn or not in memory.
    """
    if spec.task != CLASSIFIES:
        raise LutlabError(
            f"model.task={spec.task}: give {CLASSIFIES}, or null for the checkpoint's own"
        )
    if spec.source == "synthetic" or stream:
        option = "stream=true" if stream else f"model.source={spec.source}"
        raise LutlabError(
            f"model.task={spec.task} puts a head on a checkpoint that is loaded whole: drop {option}"
        )


def declare(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Say in a config that the model classifies, and by which token it pads.

    Raises:
        LutlabError: the model has other heads than a decoder's, or there is no token to pad with.
    """
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES as CLASSES,
    )

    if family_of(config).heads:
        raise LutlabError(
            f"model.task={CLASSIFIES} puts a new head on a causal language model, and '{config.model_type}' is "
            "none: take a checkpoint that was fine-tuned, and drop model.task"
        )
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise LutlabError(
                "the tokenizer has neither a padding token nor an end of text: pairs of several lengths cannot "
                "share a batch; give its tokenizer_config.json a pad_token"
            )
        tokenizer.pad_token = tokenizer.eos_token
    config.pad_token_id = tokenizer.pad_token_id
    config.architectures = [CLASSES[config.model_type]]
    config.id2label = dict(enumerate(MNLI_LABELS))
    config.label2id = {name: index for index, name in config.id2label.items()}


def draw(model: PreTrainedModel, seed: int) -> set[str]:
    """Draw the head's weight, the same on every machine; the names of the weights drawn."""
    name = head_of(model)
    weight = model.get_parameter(f"{name}.weight")
    deviation = getattr(model.config, family_of(model.config).deviation)
    numbers = torch.randn(weight.shape, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        weight.copy_(numbers * deviation)
    return {f"{name}.weight"}
