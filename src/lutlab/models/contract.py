"""Contract of a family: where an architecture keeps its blocks and linear layers, and which modules carry a scale.

A family is a `Family` declared for the model types it fits, as config.json has them:

    declare(Family(model_types=("opt",), blocks="model.decoder.layers", inputs=(SharedInput(...), ...)))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lutlab.base.lazy import PreTrainedConfig
from lutlab.base.registry import register

KINDS = ("attention", "feed_forward")  # of sub-layers, LUT-GEMM Fig. 13
# task -> transformers' class that makes and loads its models
TASKS = {
    "causal_lm": "AutoModelForCausalLM",
    "masked_lm": "AutoModelForMaskedLM",
    "sequence_classification": "AutoModelForSequenceClassification",
}
# The task of a decoder whose class ends so: transformers puts the same head on each, over the last token of a text.
CLASSIFIES, CLASSIFIER = "sequence_classification", "ForSequenceClassification"
Where = tuple[tuple[str, Any], ...]  # config fields and the values that they must have


def holds(where: Where, config: PreTrainedConfig) -> bool:
    """Whether a config's fields have the values of a condition. A config without the field is an AttributeError."""
    return all(getattr(config, field) == value for field, value in where)


@dataclass(frozen=True)
class SharedInput:
    """Linear layers of a block that read the same input, so that one Hessian serves them all.

    Attributes:
        kind: the sub-layer they belong to: one of KINDS.
        layers: their paths inside the block.
        scaled_by: path of the module whose output channels are this input's channels, with nothing between them that
            a scale per channel does not pass through (a norm; v_proj through the attention's weights; fc1 through
            ReLU; up_proj through the gate's product), and whose output nothing else reads. None where there is none.
        scaled_where: condition on the config under which `scaled_by` holds.
        adds_to: places where the outputs are added to the residual stream: pairs of a module whose input is the stream
            in front of that sum (an empty path: the block), and a condition on the config; the first that holds counts.
            Empty where outputs go elsewhere.
    """

    kind: str
    layers: tuple[str, ...]
    scaled_by: str | None = None
    scaled_where: Where = ()
    adds_to: tuple[tuple[str, Where], ...] = ()

    @property
    def attended(self) -> bool:
        """Whether keys and values are made of it, which every later token reads."""
        return self.kind == "attention" and not self.adds_to


@dataclass(frozen=True)
class Sizes:
    """Fields of a decoder's config.json that have its sizes, and what transformers takes where one is left out."""

    hidden: str = "hidden_size"
    feed_forward: str = "intermediate_size"
    layers: str = "num_hidden_layers"
    heads: str = "num_attention_heads"
    positions: str = "max_position_embeddings"
    gated: bool = True  # gate and up of [f, d] each
    tied: bool = False  # the head is the embedding of tokens
    learned: int | None = None  # rows beyond `positions` of a table of positions; None: rotary


@dataclass(frozen=True)
class Family:
    """One architecture: where its blocks and linear layers are.

    Attributes:
        model_types: `config.model_type` of the architecture, then of those that are laid out alike.
        blocks: path of the decoder's ModuleList.
        inputs: the linear layers of a block, in the order of the forward pass.
        kept: linear layers outside the blocks, which the papers keep in full precision (some models lack them).
        task: a key of TASKS, of all models of the family that `heads` does not tell apart; without `heads` those that
            transformers calls …ForSequenceClassification classify.
        heads: pairs of an entry of `config.architectures` and its task, where one body carries several heads (BERT);
            a model of another head is refused then.
        deviation: the config field of the deviation of random weights, as transformers initialises them.
        seqlen: the config field of the context; the evaluation window of the GPTQ protocol, at most `longest`.
        where: condition on the config under which all of this holds; other models of the same type are refused.
        sizes: fields by which the latency of such a decoder is predicted (predict/shapes.py); None: it is not.
        graphs: whether CUDA graphs decode it (generate/graph.py): its attention takes a mask unchanged, and a step
            makes no number on the host, with which no graph could be replayed a token later.

    Raises:
        ValueError: an unknown task or kind, a layer named twice, or a module that would carry the scales of two
            inputs: where one norm feeds attention and feed-forward alike (Phi), a scale for one changes the other.
    """

    model_types: tuple[str, ...]
    blocks: str
    inputs: tuple[SharedInput, ...]
    kept: tuple[str, ...] = ()
    task: str = "causal_lm"
    heads: tuple[tuple[str, str], ...] = ()
    deviation: str = "initializer_range"
    seqlen: str = "max_position_embeddings"
    longest: int = 2048
    where: Where = ()
    sizes: Sizes | None = None
    graphs: bool = False

    def __post_init__(self) -> None:
        name = self.model_types[0]
        for task in (self.task, *(task for _, task in self.heads)):
            if task not in TASKS:
                raise ValueError(f"family {name}: task '{task}' is none of {', '.join(TASKS)}")
        if kinds := {shared.kind for shared in self.inputs}.difference(KINDS):
            raise ValueError(f"family {name}: kind '{min(kinds)}' is none of {', '.join(KINDS)}")
        if twice := _repeated(self.linears):
            raise ValueError(f"family {name}: {twice} is named twice among the linear layers")
        if twice := _repeated([s.scaled_by for s in self.inputs if s.scaled_by]):
            raise ValueError(
                f"family {name}: {twice} makes the input of two groups of layers, so a scale for one would change the "
                "other; leave out scaled_by for both"
            )

    @property
    def linears(self) -> tuple[str, ...]:
        """Paths of all linear layers inside a block, in the order of the forward pass."""
        return tuple(layer for shared in self.inputs for layer in shared.layers)


def _repeated(names: tuple[str, ...] | list[str]) -> str | None:
    return next((name for name in names if names.count(name) > 1), None)


def declare(family: Family) -> Family:
    """Register a family under each of its model types.

    Raises:
        ValueError: a model type has a family already.
    """
    for model_type in family.model_types:
        register("family", model_type)(family)
    return family
