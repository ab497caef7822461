"""Run by a Python that has gptqmodel: dequantize the layers of in.safetensors by its own code to out.safetensors."""

import json
import sys
from pathlib import Path

import torch
from gptqmodel.nn_modules.qlinear.torch import TorchLinear
from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm
from gptqmodel.utils.model import convert_gptq_v1_to_v2_format_module
from safetensors.torch import load_file, save_file


def dequantized(case, tensors):
    """W [K, N] float16."""
    q, g = case["q"], case["g"]
    if case["layout"] == "awq":
        size = case["columns"] if g == -1 else g
        return dequantize_gemm(tensors["qweight"], tensors["qzeros"], tensors["scales"], q, size)
    module = TorchLinear(
        bits=q, group_size=g, sym=False, desc_act=case["layout"] == "order", in_features=case["columns"],
        out_features=case["rows"], bias=False, pack_dtype=torch.int32, dtype=torch.float16,
    )  # fmt: skip
    module.load_state_dict(tensors, strict=True)
    if case["layout"] == "gptqmodel":
        convert_gptq_v1_to_v2_format_module(module, q, torch.int32)
    module.qzero_format(2)
    module.post_init()
    return module.dequantize_weight()


folder = Path(sys.argv[1])
stored, weights = load_file(folder / "in.safetensors"), {}
for name, case in json.loads((folder / "cases.json").read_text()).items():
    keys = {key: key.removeprefix(f"{name}.") for key in stored if key.startswith(f"{name}.")}
    tensors = {short: stored[key].clone() for key, short in keys.items()}
    weights[name] = dequantized(case, tensors).contiguous()
save_file(weights, folder / "out.safetensors")
