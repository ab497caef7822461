"""GPTQModel: `GPTQModel.load` and `quantize`. Grids of the weights as compensated so far, float16 scales.

`gptq` is GPTQ at the settings of ours: asymmetric, damping 0.01, whole blocks at a time, no order. `gptq as shipped`
is what its QuantizeConfig sets by itself: symmetric, groups reordered by activation without an index to store, damping
0.05, layer by layer; `asymmetric` the same with zero points.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import torch
from accuracy_peers import Way, serve

_PLAIN = {
    "sym": False,
    "desc_act": False,
    "act_group_aware": False,
    "damp_percent": 0.01,
    "true_sequential": False,
}
WAYS = {
    "gptq": Way(_PLAIN),
    "gptq as shipped": Way(),
    "gptq as shipped asymmetric": Way({"sym": False}),
}


def quantize(
    folder: str, options: Mapping[str, Any], q: int, g: int, ids: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Quantize on ids [samples, S]; give the state dict."""
    # It asks for two workers and finds one on machines of two cores.
    os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")
    from gptqmodel import GPTQModel, QuantizeConfig
    from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module

    config = QuantizeConfig(bits=q, group_size=g, offload_to_disk=False, device="cpu", **options)
    loaded = GPTQModel.load(folder, config, dtype=torch.float32)
    # One dict a window: a tensor of them would be taken for one sample.
    rows = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in ids.tolist()]
    loaded.quantize(rows, batch_size=1)
    dense = {name: value.detach() for name, value in loaded.model.state_dict().items()}
    for name, layer in loaded.model.named_modules():
        if hasattr(layer, "qweight"):
            if (
                layer.qzero_format() == 1
            ):  # it holds zero points less one, and dequantizes them as they are
                convert_gptq_v1_to_v2_format_module(layer, q, layer.pack_dtype)
            dense[f"{name}.weight"] = layer.dequantize_weight().detach().t()
    return dense


if __name__ == "__main__":
    serve(WAYS, quantize, version("gptqmodel"))
