"""llm-compressor: `oneshot`. Asymmetric grids, damping 0.01 of the mean diagonal, whole blocks at a time.

Its GPTQ knows only grids of the original weights (our static_groups); its AWQ does not clip, and has no mapping for
OPT: it is given the AWQ repository's. Scales are of the model's type, float32 here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lutlab.base.errors import LutlabError
from lutlab.base.lazy import torch, transformers
from lutlab.base.registry import register
from lutlab.peers.contract import Block, QuantizesModels, RunsGPTQ, Tensors

WAYS = {
    "rtn": {"modifier": "rtn"},
    "gptq": {"modifier": "gptq", "actorder": None},
    "gptq actorder=static": {"modifier": "gptq", "actorder": "static"},
    "awq": {"modifier": "awq"},
}


@register("peer", "llmcompressor")
class LLMCompressor(QuantizesModels, RunsGPTQ):
    """See the top of this file."""

    modules = ("llmcompressor",)
    install = "llmcompressor"
    ways = WAYS
    gradient = False

    @staticmethod
    def quantize(
        folder: str, options: Mapping[str, Any], q: int, g: int, ids: torch.Tensor
    ) -> Tensors:
        """See QuantizesModels."""
        from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
        from compressed_tensors.quantization.lifecycle.forward import fake_quantize
        from datasets import Dataset
        from llmcompressor import oneshot
        from llmcompressor.modifiers.gptq import GPTQModifier
        from llmcompressor.modifiers.quantization import QuantizationModifier
        from llmcompressor.modifiers.transform.awq import AWQMapping, AWQModifier

        # 0.14 pins memory without asking whether there is an accelerator, which raises where there is none.
        if not torch.accelerator.is_available():
            torch.Tensor.pin_memory = lambda tensor, *_: tensor
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, trust_remote_code=False, dtype=torch.float32
        )
        grid = QuantizationArgs(num_bits=q, group_size=g, symmetric=False, strategy="group")
        scheme = {
            "config_groups": {"all": QuantizationScheme(targets=["Linear"], weights=grid)},
            "ignore": ["lm_head"],
        }
        mappings = None
        if model.config.model_type == "opt":
            mappings = [
                AWQMapping("re:.*self_attn_layer_norm$", [f"re:.*{x}_proj$" for x in "qkv"]),
                AWQMapping("re:.*v_proj$", ["re:.*out_proj$"]),
                AWQMapping("re:.*layers.*final_layer_norm$", ["re:.*fc1$"]),
                AWQMapping("re:.*fc1$", ["re:.*fc2$"]),
            ]
        recipe = {
            "rtn": lambda: [QuantizationModifier(**scheme)],
            "gptq": lambda: [
                GPTQModifier(**scheme, dampening_frac=0.01, actorder=options["actorder"])
            ],
            "awq": lambda: [AWQModifier(mappings=mappings), QuantizationModifier(**scheme)],
        }[options["modifier"]]()
        ones = torch.ones_like(ids)
        rows = Dataset.from_dict({"input_ids": ids.tolist(), "attention_mask": ones.tolist()})
        oneshot(
            model=model,
            recipe=recipe,
            num_calibration_samples=len(ids),
            max_seq_length=ids.shape[1],
            shuffle_calibration_samples=False,
            **({} if options["modifier"] == "rtn" else {"dataset": rows}),
        )
        dense = {name: value.detach() for name, value in model.state_dict().items()}
        for name, layer in model.named_modules():
            if hasattr(layer, "weight_scale"):
                dense[f"{name}.weight"] = fake_quantize(
                    layer.weight.detach(), layer.weight_scale, layer.weight_zero_point, grid
                )
        return dense

    @staticmethod
    def gptq(block: Block, time: Callable[[str, Callable[[], Any]], Any]) -> Tensors:
        """See RunsGPTQ: its pure functions, without its lifecycle; grids of the original weights (its only way)."""
        from compressed_tensors.quantization import QuantizationArgs
        from compressed_tensors.quantization.utils import calculate_qparams
        from llmcompressor.modifiers.gptq.gptq_quantize import quantize_weight
        from llmcompressor.modifiers.gptq.helpers import accumulate_hessian

        options = QuantizationArgs(
            num_bits=block.q, group_size=block.g, symmetric=False, strategy="group"
        )

        def accumulate() -> Tensors:
            found = {}
            for name, x in block.inputs.items():
                module = torch.nn.Linear(x.shape[1], 1, bias=False)
                hessian, count = torch.zeros(x.shape[1], x.shape[1]), torch.zeros(())
                for batch in x.split(block.batch):
                    hessian, count = accumulate_hessian(batch, module, hessian, count)
                found[name] = hessian.div_(count)
            return found

        def solve() -> Tensors:
            dense = {}
            for name, layers in block.readers.items():
                for layer in layers:
                    w = block.weights[layer].clone()
                    cut = w.view(len(w), -1, block.g)
                    scale, zero = calculate_qparams(cut.amin(-1), cut.amax(-1), options)
                    hessian = hessians[name].clone()[None]
                    found, _, fell_back = quantize_weight(
                        w[None], hessian, scale[None], zero[None], None, options
                    )
                    if fell_back.any():
                        raise LutlabError(
                            f"{layer}: llm-compressor fell back to rounding, its H is singular: draw more inputs"
                        )
                    dense[layer] = found[0]
            return dense

        hessians = time("accumulate", accumulate)
        return time("llmcompressor", solve)
