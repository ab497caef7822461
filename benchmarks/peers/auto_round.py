"""AutoRound: rounding and ranges of a block tuned by signed gradients against its full-precision outputs.

`auto-round` is its default recipe (200 steps), `best` its `auto-round-best` (1000 steps), `best alg_ext` what its
documentation recommends at 2 bits. Symmetric, as its schemes W2A16 to W4A16 are, with float16 scales; `asymmetric`
has zero points.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lutlab.base.lazy import torch, transformers
from lutlab.base.registry import register
from lutlab.peers.contract import QuantizesModels, Tensors

_BEST = {"iters": 1000}
WAYS = {
    "auto-round": {"iters": 200, "sym": True},
    "auto-round asymmetric": {"iters": 200, "sym": False},
    "auto-round-best": {**_BEST, "sym": True},
    "auto-round-best asymmetric": {**_BEST, "sym": False},
    "auto-round-best alg_ext": {**_BEST, "sym": True, "enable_alg_ext": True},
}


@register("peer", "auto_round")
class AutoRound(QuantizesModels):
    """See the top of this file."""

    modules = ("auto_round",)
    install = "auto-round"
    ways = WAYS
    gradient = True

    @staticmethod
    def quantize(
        folder: str, options: Mapping[str, Any], q: int, g: int, ids: torch.Tensor
    ) -> Tensors:
        """See QuantizesModels."""
        from auto_round import AutoRound

        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, trust_remote_code=False, dtype=torch.float32
        )
        rows = [
            {"input_ids": row[None], "attention_mask": torch.ones_like(row)[None]} for row in ids
        ]
        rounding = AutoRound(
            model,
            tokenizer=transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False),
            bits=q,
            group_size=g,
            dataset=rows,
            nsamples=len(ids),
            seqlen=ids.shape[1],
            batch_size=8,
            device_map="cpu",
            amp=False,
            enable_torch_compile=False,
            seed=0,
            **options,
        )
        model, _ = rounding.quantize()
        return dict(model.state_dict())
