"""What other projects' quantization configs say: a key is read, leaves the numbers as they are, or is refused by name.

    READ[method]      keys that decide how the tensors are read
    NEUTRAL[method]   keys that say how the weights were found or where they ran: key -> the values at which that is so,
                      None: all
    any other         refused, unless it says nothing (None, False, empty)

Where a key and the tensors say the same thing (bits, group_size, lm_head, modules_to_not_convert, ignore), the tensors
decide. GPTQModel's `rotation` and `activation`, AutoRound's act_bits below 16 and EoRA's `adapter` change the numbers
of packed weights that look like any other: they are why an unknown key is not passed over.

Keys as AutoGPTQ 0.7.1, GPTQModel 7.7, AutoAWQ 0.2.9, AutoRound 0.16, compressed-tensors 0.20 and transformers 5.23
write them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lutlab.base.errors import LutlabError
from lutlab.base.unread import unread

Values = tuple[Any, ...] | None
_NOTHING: tuple[Any, ...] = (None, False, "", [], {})

_GPTQ = (
    "quant_method", "method", "bits", "group_size", "sym", "desc_act", "checkpoint_format", "format", "dynamic", "meta",
    "is_marlin_format", "pack_dtype", "lm_head", "model_file_base_name",
)  # fmt: skip
_COMPRESSED = (
    "quant_method", "format", "config_groups", "ignore", "kv_cache_scheme", "sparsity_config", "transform_config",
)  # fmt: skip
_SEARCH = (  # of AutoRound's codes
    "amp", "batch_size", "enable_minmax_tuning", "enable_norm_bias_tuning", "enable_quanted_input", "iters", "lr",
    "gradient_accumulate_steps", "low_gpu_mem_usage", "minmax_lr", "nsamples", "seqlen", "scale_dtype", "dataset",
    "supported_types", "autoround_version", "provider", "block_name_to_quantize", "to_quant_block_names",
    "quant_block_list", "static_attention_granularity", "static_kv_granularity", "not_use_best_mse", "seed",
    "quant_lm_head", "modules_in_block_to_quantize", "true_sequential", "damp_percent",
)  # fmt: skip
_FULL = (None, 16, 32)  # bits of activations that are not quantized
_ACTIVATIONS: dict[str, Values] = {
    "act_bits": _FULL, "act_data_type": None, "act_group_size": None, "act_sym": None, "act_dynamic": None,
    "data_type": ("int",),
}  # fmt: skip

_PROCESS = (  # of GPTQ, and where the model ran
    "damp_auto_increment", "static_groups", "mse", "model_name_or_path", "tokenizer", "use_exllama", "use_exllama_v2",
    "use_cuda_fp16", "disable_exllama", "exllama_config", "max_input_length", "cache_block_outputs", "backend",
    "module_name_preceding_first_block", "pad_token_id", "model_seqlen", "act_group_aware", "parallel_packing",
    "pack_impl", "offload_to_disk", "offload_to_disk_path",
)  # fmt: skip

READ: Mapping[str, tuple[str, ...]] = {
    "gptq": _GPTQ,
    "bpdq": (*_GPTQ, "bpdq"),
    "awq": ("quant_method", "method", "bits", "w_bit", "group_size", "q_group_size", "zero_point", "version", "format",
            "checkpoint_format", "backend", "modules_to_not_convert", "pack_dtype"),
    "auto-round": ("quant_method", "bits", "group_size", "sym", "packing_format", "backend", "extra_config",
                   *_COMPRESSED),
    "compressed-tensors": _COMPRESSED,
    "anybcq": ("quant_method", "seed_precision", "parent_precision", "group_size"),
}  # fmt: skip
NEUTRAL: Mapping[str, Mapping[str, Values]] = {
    "gptq": _ACTIVATIONS | dict.fromkeys((*_SEARCH, *_PROCESS)),
    "awq": _ACTIVATIONS | dict.fromkeys((
        *_SEARCH, *_PROCESS, "do_fuse", "modules_to_fuse", "fuse_max_seq_len", "sym", "meta", "desc_act", "lm_head",
    )),
    "auto-round": _ACTIVATIONS | dict.fromkeys(_SEARCH),
    "compressed-tensors": dict.fromkeys((
        "quantization_status", "global_compression_ratio", "version", "dequantize", "run_compressed",
    )),
    "anybcq": {},
}  # fmt: skip
# Of what a compressed-tensors group says of its weights: the tensors' shapes tell group, channel or one scale.
WEIGHTS_READ = ("num_bits", "type", "symmetric", "group_size", "strategy", "actorder")
WEIGHTS_NEUTRAL: Mapping[str, Values] = {
    "dynamic": _NOTHING, "observer": None, "observer_kwargs": None, "scale_dtype": None, "zp_dtype": None,
}  # fmt: skip


def check_keys(method: str, config: Mapping[str, Any]) -> None:
    """Refuse a quantization config, of a method of READ, with a key that may change the numbers and is not read."""
    neutral = NEUTRAL["gptq" if method == "bpdq" else method]
    _refuse(f"the {method} checkpoint's config", unread(config, READ[method], neutral, _NOTHING))
    overrides = config.get("dynamic") if method in ("gptq", "bpdq") else config.get("extra_config")
    for layer, override in (overrides or {}).items():
        if isinstance(override, Mapping):
            _refuse(
                f"the {method} checkpoint's config for {layer}",
                unread(override, READ[method], neutral, _NOTHING),
            )
    for name, group in (config.get("config_groups") or {}).items():
        _refuse(
            f"{name} of the checkpoint's config",
            unread(group["weights"], WEIGHTS_READ, WEIGHTS_NEUTRAL, _NOTHING),
        )


def _refuse(where: str, keys: Mapping[str, Any]) -> None:
    for key, value in keys.items():
        raise LutlabError(
            f"{where} says {key}={value!r}, which lutlab does not read and which may change its numbers: quantize "
            "without it; if it only says how the weights were found, remove the key from config.json"
        )
