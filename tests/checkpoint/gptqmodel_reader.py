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
stored = load_file(folder / "in.safetensors")
found = {}
for name, case in json.loads((folder / "cases.json").read_text()).items():
    own = {
        k.removeprefix(f"{name}."): t.clone() for k, t in stored.items() if k.startswith(f"{name}.")
    }
    found[name] = dequantized(case, own).contiguous()
save_file(found, folder / "out.safetensors")
