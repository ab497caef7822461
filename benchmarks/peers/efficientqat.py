"""EfficientQAT: Block-AP trains weights, scales and zero points block by block, E2E-QP then the scales end to end.

Its repository has no package: name its folder in a .pth file of the environment. `published` has the epochs and rates
of its scripts for LLaMA-2-7B, which there see 4096 windows of 2048 tokens; `longer` has four times the epochs and ten
times the rates, chosen by us, since 128 short windows are few steps and the models small. Where its code asks for CUDA
it is given float32 on the CPU: in mixed precision, `.half()`, `.cuda()`, and the kernels that unpack integers. The loop
of E2E-QP is a trainer's there, and written out here. It knows LLaMA only.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import subprocess
import sys
import types
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lutlab.base.lazy import torch, transformers
from lutlab.base.registry import register
from lutlab.peers.contract import QuantizesModels, Tensors

PUBLISHED = {"epochs": 2, "quant_lr": 1e-4, "weight_lr": {2: 2e-5, 3: 1e-5, 4: 1e-5}}
E2E = {"e2e_epochs": 1, "e2e_lr": {2: 2e-5, 3: 1e-5, 4: 1e-5}, "e2e_batch": 32}
LONGER = {"epochs": 8, "quant_lr": 1e-3, "weight_lr": {2: 2e-4, 3: 1e-4, 4: 1e-4}}
LONGER_E2E = {"e2e_epochs": 8, "e2e_lr": {2: 2e-4, 3: 1e-4, 4: 1e-4}, "e2e_batch": 4}
WAYS = {
    "block-ap, published": {**PUBLISHED, "e2e_epochs": 0},
    "block-ap, e2e-qp, published": {**PUBLISHED, **E2E},
    "block-ap, e2e-qp, longer": {**LONGER, **LONGER_E2E},
}


def unpacked(
    words: torch.Tensor, bits: int, maxq: int, rows: int, columns: int, dim: int
) -> torch.Tensor:
    """Codes [rows, columns] of int32 words, each of which holds 32 // bits of them along dim."""
    shifts = torch.arange(32 // bits, dtype=torch.int32) * bits
    if dim == 0:
        codes = (words[:, None, :] >> shifts[:, None]).flatten(0, 1)
    else:
        codes = (words[:, :, None] >> shifts).flatten(1, 2)
    return (codes & maxq)[:rows, :columns].float()


def stand_ins() -> None:
    """What its modules find in the place of CUDA; before they are imported."""
    kernels = types.ModuleType("quantize.triton_utils.kernels")
    kernels.dequant_dim0 = lambda *given: unpacked(*given, dim=0)
    kernels.dequant_dim1 = lambda *given: unpacked(*given, dim=1)
    sys.modules[kernels.__name__] = kernels
    torch.cuda.amp.autocast = contextlib.nullcontext
    torch.nn.Module.half = torch.nn.Module.float
    torch.Tensor.cuda = lambda tensor, *_: tensor


def train_scales(
    model: torch.nn.Module,
    scales: list[torch.nn.Parameter],
    options: Mapping[str, Any],
    q: int,
    ids: torch.Tensor,
) -> None:
    """E2E-QP: AdamW, cosine after a warm-up of 3 %, gradients clipped to 0.3, next-token loss."""
    model.train()
    steps = options["e2e_epochs"] * max(1, len(ids) // options["e2e_batch"])
    optimizer = torch.optim.AdamW(scales, lr=options["e2e_lr"][q], weight_decay=0.0)
    schedule = transformers.get_cosine_schedule_with_warmup(optimizer, -(-3 * steps // 100), steps)
    torch.manual_seed(42)  # its scripts' data_seed
    for _ in range(options["e2e_epochs"]):
        for batch in ids[torch.randperm(len(ids))].split(options["e2e_batch"]):
            for part in batch.split(4):
                loss = model(input_ids=part, labels=part, use_cache=False).loss
                (loss * len(part) / len(batch)).backward()
            torch.nn.utils.clip_grad_norm_(scales, 0.3)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()


@register("peer", "efficientqat")
class EfficientQAT(QuantizesModels):
    """See the top of this file."""

    modules = ("quantize",)
    ways = WAYS
    gradient = True

    @classmethod
    def lacking(cls) -> str:
        """See Peer."""
        if find_spec("quantize"):
            return ""
        return "no EfficientQAT here: write its folder into a .pth file of the environment"

    @classmethod
    def version(cls) -> str:
        """Commit of the folder that its package `quantize` lies in."""
        folder = str(Path(find_spec("quantize").origin).parents[1])
        command = ["git", "-C", folder, "rev-parse", "--short=8", "HEAD"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    @staticmethod
    def quantize(
        folder: str, options: Mapping[str, Any], q: int, g: int, ids: torch.Tensor
    ) -> Tensors:
        """See QuantizesModels."""
        stand_ins()
        from quantize import block_ap
        from quantize.int_linear_real import QuantLinear

        plain = block_ap.BlockTrainDataset
        block_ap.BlockTrainDataset = lambda size, seqlen, hidden, batch, dtype, **rest: plain(
            size, seqlen, hidden, batch, torch.float32, **rest
        )
        torch.manual_seed(2)  # its own default
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, trust_remote_code=False, torch_dtype=torch.float32
        )
        model.requires_grad_(False)
        windows = [(row[None], row[None]) for row in ids]
        settings = argparse.Namespace(
            wbits=q,
            group_size=g,
            train_size=len(ids),
            val_size=2,  # looked at and not acted on, as early_stop is 0
            training_seqlen=ids.shape[1],
            batch_size=2,
            epochs=options["epochs"],
            quant_lr=options["quant_lr"],
            weight_lr=options["weight_lr"][q],
            min_lr_factor=20,
            wd=0,
            early_stop=0,
            off_load_to_disk=False,
            real_quant=True,
        )
        try:
            block_ap.block_ap(model, settings, windows, windows[:2], logging.getLogger("block_ap"))
        finally:
            block_ap.BlockTrainDataset = plain
        layers = {name: m for name, m in model.named_modules() if isinstance(m, QuantLinear)}
        for layer in layers.values():
            layer.scales = torch.nn.Parameter(layer.scales.float())
        if options["e2e_epochs"]:
            train_scales(model, [layer.scales for layer in layers.values()], options, q, ids)
        dense = dict(model.state_dict())
        for name, layer in layers.items():
            layer.use_fake_quantization(transpose=True)
            dense[f"{name}.weight"] = layer.weight
        return dense
