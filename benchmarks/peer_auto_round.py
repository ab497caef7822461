"""AutoRound: rounding and ranges of a block tuned by signed gradients against its full-precision outputs.

`auto-round` is its default recipe (200 steps), `best` its `auto-round-best` (1000 steps), `best alg_ext` what its
documentation recommends at 2 bits. Symmetric, as its schemes W2A16 to W4A16 are, with float16 scales; `asymmetric`
has zero points.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch
from accuracy_peers import Way, serve

_BEST = {"iters": 1000}
WAYS = {
    "auto-round": Way({"iters": 200, "sym": True}, gradient=True),
    "auto-round asymmetric": Way({"iters": 200, "sym": False}, gradient=True),
    "auto-round-best": Way({**_BEST, "sym": True}, gradient=True),
    "auto-round-best asymmetric": Way({**_BEST, "sym": False}, gradient=True),
    "auto-round-best alg_ext": Way({**_BEST, "sym": True, "enable_alg_ext": True}, gradient=True),
}


def quantize(
    folder: str, options: Mapping[str, Any], q: int, g: int, ids: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Quantize on ids [samples, S]; give the state dict."""
    from auto_round import AutoRound
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    rows = [{"input_ids": row[None], "attention_mask": torch.ones_like(row)[None]} for row in ids]
    rounding = AutoRound(
        model,
        tokenizer=AutoTokenizer.from_pretrained(folder),
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


if __name__ == "__main__":
    serve(WAYS, quantize, version("auto-round"))
