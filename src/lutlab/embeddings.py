"""The table of tokens in uniform codes, and an output head that is tied to it.

    lutlab.quantize(model, "rtn", q=4, embeddings=8)      q bits in groups of 32, symmetric: llama.cpp's Q8_0 at q=8

A small model is largely its vocabulary: of SmolLM2-135M, whose head is the table, it is a fifth of the weights. A model
stores the table once; a tied head multiplies by the same buffers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import PreTrainedModel
from lutlab.formats import pack
from lutlab.formats.contract import Format
from lutlab.models.families import task_of
from lutlab.modules import QuantLinear
from lutlab.quantizers.coefficients import quantized
from lutlab.quantizers.rtn import RTN

if TYPE_CHECKING:
    from lutlab.formats.uniform import PackedUniform

GROUP_SIZE = 32  # weights that share a scale, as in a block of Q8_0


class QuantEmbedding(QuantLinear):
    """A table of tokens whose rows are packed; drop-in for nn.Embedding.

    Args:
        packed: the table [V, K].
        bias: none has a table of tokens; the argument is QuantLinear's.
    """

    like: torch.Tensor

    def __init__(self, packed: Format, bias: torch.Tensor | None = None) -> None:
        super().__init__(packed, bias)
        self.register_buffer("like", torch.empty(0), persistent=False)  # it moves as the model does

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Rows [..., K] of ids [...] int64, in the model's dtype."""
        table = cast("PackedUniform", self.packed)  # alone is packed so that rows can be read
        rows = table.rows(ids.flatten()).dequantize().to(self.like.dtype)
        return rows.view(*ids.shape, self.in_features)


class TiedHead(QuantLinear):
    """An output head that multiplies by the packed table of tokens, which alone is stored."""

    def _save_to_state_dict(self, destination: dict, prefix: str, keep_vars: bool) -> None:
        """Write nothing: the table has the buffers."""

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        """Read nothing."""


def quantize_embeddings(model: PreTrainedModel, q: int) -> None:
    """Quantize the table of tokens and the output head, in place, to the nearest of 2^q levels in groups of 32.

    Args:
        model: causal language model in memory.
        q: bits a weight, 1 to 8.

    Raises:
        LutlabError: the model is for another task, or its table is quantized already; q out of range; a weight is not
            finite.
    """
    table, head = model.get_input_embeddings(), model.get_output_embeddings()
    if task_of(model) != "causal_lm" or not isinstance(table, nn.Embedding):
        raise LutlabError(
            f"embeddings={q}: the table of tokens of this {type(model).__name__} is quantized already, or it is no "
            "causal language model: drop embeddings"
        )
    tied = head.weight is table.weight
    embedding = QuantEmbedding(_packed("embeddings", table.weight, q))
    embedding.like = torch.empty(0, dtype=table.weight.dtype, device=table.weight.device)
    if not tied:
        model.set_output_embeddings(QuantLinear(_packed("head", head.weight, q), head.bias))
    model.set_input_embeddings(embedding)
    if tied:
        tie(model)


def _packed(name: str, weight: torch.Tensor, q: int) -> Format:
    return pack(
        quantized(RTN(symmetric=True), weight.detach().float(), q, GROUP_SIZE, name=name)[0]
    )


def begin_tie(model: PreTrainedModel) -> bool:
    """Take away a head that is tied to an empty packed table, so that files are not asked for it; whether it was."""
    tied = isinstance(model.get_input_embeddings(), QuantEmbedding) and bool(
        model.all_tied_weights_keys
    )
    if tied:
        model._tied_weights_keys = model.all_tied_weights_keys = {}
        model.set_output_embeddings(nn.Identity())
    return tied


def tie(model: PreTrainedModel) -> None:
    """Let the output head multiply by the packed table of tokens; transformers finds nothing that it would tie."""
    model._tied_weights_keys = model.all_tied_weights_keys = {}
    table = cast("QuantEmbedding", model.get_input_embeddings())  # as both callers left it
    model.set_output_embeddings(TiedHead(table.packed, None))


def is_tied(model: PreTrainedModel) -> bool:
    """Whether the output head is the table of tokens, packed or not."""
    head = model.get_output_embeddings()
    if isinstance(head, QuantLinear):
        return isinstance(head, TiedHead)
    return head.weight is getattr(model.get_input_embeddings(), "weight", None)
