"""Keys and values of a model in slots of fixed place: the cache of a step that is the same for every token.

keys, values of a layer   [B, heads, length, d]; slot t of row b holds row b's token t, so that rows of any lengths
stand beside each other, and any row can be rewound
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Layers = Sequence[tuple[torch.Tensor, torch.Tensor]]  # keys and values of each, [B, heads, T, d]


class Slots:
    """Keys and values of all layers, in the place of transformers' Cache: all that attention asks of it in a step.

    Attributes:
        kept: keys and values of each layer, [B, heads, length, d] each.
        position: [B] int64, the slot that a row writes next.
        bucket: slots that attention reads.
    """

    def __init__(self, like: Layers, batch: int, length: int) -> None:
        """like: keys and values of each layer, [1, heads, any, d]."""
        self.kept = [
            # zeros: what a mask hides is multiplied by 0 all the same, and memory may hold NaN
            tuple(t.new_zeros(batch, t.shape[1], length, t.shape[3]) for t in layer)
            for layer in like
        ]
        self.position = torch.zeros(batch, dtype=torch.int64, device=self.kept[0][0].device)
        self.bucket = length

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the token's [B, heads, 1, d] into its slots, and return the bucket."""
        for kept, new in zip(self.kept[layer], (keys, values), strict=True):
            kept.scatter_(2, self.position.view(-1, 1, 1, 1).expand_as(new), new)
        kept_keys, kept_values = self.kept[layer]
        return kept_keys[:, :, : self.bucket], kept_values[:, :, : self.bucket]

    def get_seq_length(self, layer: int = 0) -> int:
        """Nothing is derived of it where positions and mask are given."""
        return 0

    def mask(self, window: int | None, dtype: torch.dtype) -> torch.Tensor:
        """[B, 1, 1, bucket]: 0 for slots that a row's token sees, the least number of a dtype for the others."""
        slot, now = torch.arange(self.bucket, device=self.position.device), self.position[:, None]
        seen = slot <= now
        if window is not None:
            seen &= slot > now - window
        hidden = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
        return hidden.masked_fill_(~seen, torch.finfo(dtype).min)[:, None, None]

    @property
    def nbytes(self) -> int:
        """Bytes of all slots."""
        return sum(t.nbytes for layer in self.kept for t in layer)
