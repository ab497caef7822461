"""Linear layers of a block that read the same input as one product, where their weights can be joined."""

from __future__ import annotations

from itertools import accumulate, pairwise

from lutlab.errors import LutlabError
from lutlab.formats.joined import joined
from lutlab.kernels.dispatch import Dequantized, prepare
from lutlab.kernels.joined import RowsOf, Whole
from lutlab.lazy import PreTrainedModel, torch
from lutlab.models.families import decoder_blocks, family_of
from lutlab.modules import QuantLinear


def fuse(model: PreTrainedModel, rows: int, dtype: torch.dtype) -> list[str]:
    """Let q, k and v, and gate and up, of every block multiply in one launch; the layers stay what they are.

    Their weights are held once, by the joined one; `packed`, `state_dict` and `.to()` give each layer its own again.

    Args:
        model: quantized; of what is not, nothing is joined.
        rows: rows of x to be ready for.
        dtype: dtype of x.

    Returns:
        Why some quantized layers are not joined, each reason once.
    """
    reasons: dict[str, None] = {}
    shared = [one.layers for one in family_of(model.config).inputs if len(one.layers) > 1]
    for block in decoder_blocks(model):
        for names in shared:
            layers = [block.get_submodule(name) for name in names]
            if all(isinstance(layer, QuantLinear) for layer in layers):
                try:
                    _join(layers, rows, dtype)
                except LutlabError as error:
                    reasons[str(error)] = None
    return list(reasons)


def _join(layers: list[QuantLinear], rows: int, dtype: torch.dtype) -> None:
    """Give layers one product. Raises LutlabError: their weights cannot be joined, or no kernel takes the whole."""
    if all(isinstance(layer.execution, RowsOf) for layer in layers):
        return
    whole = joined([layer.packed for layer in layers])
    device = next(b.device for b in whole.buffers.values() if b is not None)
    execution = prepare(whole, device, rows, dtype)
    if isinstance(execution, Dequantized):
        raise LutlabError(f"no kernel: {execution.why}")
    ends = accumulate((layer.out_features for layer in layers), initial=0)
    together = Whole(execution, tuple(range(*span) for span in pairwise(ends)))
    for layer, part in zip(layers, together.parts(), strict=True):
        layer.adopt(part)
