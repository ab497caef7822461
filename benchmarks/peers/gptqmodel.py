"""GPTQModel: `GPTQModel.load` and `quantize`. Grids of the weights as compensated so far, float16 scales.

`gptq` is GPTQ at the settings of ours: asymmetric, damping 0.01, whole blocks at a time, no order. `gptq as shipped`
is what its QuantizeConfig sets by itself: symmetric, groups reordered by activation without an index to store, damping
0.05, layer by layer; `asymmetric` the same with zero points.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from lutlab.base.lazy import torch
from lutlab.base.registry import register
from lutlab.peers.contract import Block, QuantizesModels, RunsGPTQ, Tensors

_PLAIN = {
    "sym": False,
    "desc_act": False,
    "act_group_aware": False,
    "damp_percent": 0.01,
    "true_sequential": False,
}
WAYS = {
    "gptq": _PLAIN,
    "gptq as shipped": {},
    "gptq as shipped asymmetric": {"sym": False},
}


@register("peer", "gptqmodel")
class GPTQModel(QuantizesModels, RunsGPTQ):
    """See the top of this file."""

    modules = ("gptqmodel",)
    install = "gptqmodel"
    ways = WAYS
    gradient = False

    @staticmethod
    def quantize(
        folder: str, options: Mapping[str, Any], q: int, g: int, ids: torch.Tensor
    ) -> Tensors:
        """See QuantizesModels."""
        # It asks for two workers and finds one on machines of two cores.
        os.environ.setdefault("GPTQMODEL_CPU_WORKERS", "2")
        from gptqmodel import GPTQModel, QuantizeConfig
        from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module

        config = QuantizeConfig(
            bits=q, group_size=g, offload_to_disk=False, device="cpu", **options
        )
        loaded = GPTQModel.load(folder, config, dtype=torch.float32)
        # One dict a window: a tensor of them would be taken for one sample.
        rows = [{"input_ids": row, "attention_mask": [1] * len(row)} for row in ids.tolist()]
        loaded.quantize(rows, batch_size=1)
        dense = {name: value.detach() for name, value in loaded.model.state_dict().items()}
        for name, layer in loaded.model.named_modules():
            if hasattr(layer, "qweight"):
                # Format 1 holds zero points less one, and dequantizes them as they are.
                if layer.qzero_format() == 1:
                    convert_gptq_v1_to_v2_format_module(layer, q, layer.pack_dtype)
                dense[f"{name}.weight"] = layer.dequantize_weight().detach().t()
        return dense

    @staticmethod
    def gptq(block: Block, time: Callable[[str, Callable[[], Any]], Any]) -> Tensors:
        """See RunsGPTQ: its class for one layer; every layer accumulates its own H, timed once an input."""
        from gptqmodel.quantization import QuantizeConfig
        from gptqmodel.quantization.gptq import GPTQ

        config = QuantizeConfig(
            bits=block.q, group_size=block.g, sym=False, desc_act=False, damp_percent=0.01
        )

        def tasks_of(name: str, layers: tuple[str, ...]) -> dict[str, Any]:
            tasks, x = {}, block.inputs[name]
            for layer in layers:
                linear = torch.nn.Linear(x.shape[1], len(block.weights[layer]), bias=False)
                linear.weight.data.copy_(block.weights[layer])
                task = tasks[layer] = GPTQ(linear, config)
                task.quantizer.configure(perchannel=True)
                for index, batch in enumerate(x.split(block.batch)):
                    task.add_batch(batch[None], None, batch_index=index)
            return tasks

        def accumulate() -> dict[str, Any]:
            found = {}
            for name, layers in block.readers.items():
                found |= tasks_of(name, layers[:1])
            return found

        tasks = time("accumulate", accumulate)
        for name, layers in block.readers.items():
            tasks |= tasks_of(name, layers[1:])
        found = time("gptqmodel", lambda: {n: task.quantize()[0] for n, task in tasks.items()})
        return {name: weight.float() for name, weight in found.items()}
