"""A folder of every project that lutlab reads, with the same weights dense beside it, and changes to both."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tests.checkpoint import naive_layouts as naive
from tests.checkpoint.test_foreign import rewrite, written
from tests.models.architectures import randomized, token_ids
from tests.tiny_models import byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

import lutlab
from lutlab.base.kept.files import write_sums
from lutlab.checkpoint.transformers import quantized_layers

CONFIG = {
    "vocab_size": 260, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
V1 = {"quant_method": "gptq", "checkpoint_format": "gptq", "bits": 4, "group_size": 32, "sym": True}
# Reader -> the quantization config of its folder; None: another place, or a writer of ours says it.
READERS: dict[str, dict[str, Any] | None] = {
    "own": None,
    "gptq": V1 | {"checkpoint_format": "gptq_v2"},
    "auto-round": {"quant_method": "auto-round", "packing_format": "auto_round", "sym": True},
    "efficientqat": None,
    "awq": {"quant_method": "awq", "version": "gemm", "zero_point": False, "group_size": 32},
    "pack-quantized": None,
    "int-quantized": None,
    "bpdq": naive.BPDQ | {"meta": {"bpdq": {"msbits": 3}}},
    "anybcq": None,
}
BINARY = ("bpdq", "anybcq")


def quantized(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = randomized(LlamaForCausalLM(LlamaConfig(**CONFIG)))
    if name in BINARY:
        return lutlab.quantize(model, "bcq", 3, 32, offset=True)
    bits = 3 if name == "efficientqat" else 4
    return lutlab.quantize(model, "rtn", bits, 32, symmetric=True)


def dense_of(model: PreTrainedModel) -> PreTrainedModel:
    """The same model of plain layers with the dequantized weights."""
    dense = LlamaForCausalLM(LlamaConfig(**CONFIG)).eval()
    state = {k: v for k, v in model.state_dict().items() if k in dense.state_dict()}
    layers = quantized_layers(model).items()
    state |= {f"{name}.weight": layer.packed.dequantize() for name, layer in layers}
    dense.load_state_dict(state)
    return dense


def write_all(root: Path) -> None:
    """Of each reader a folder, and `<reader>-dense` with the same weights."""
    for name, config in READERS.items():
        model, folder = quantized(name), root / name
        if name == "own":
            lutlab.save(model, folder, byte_tokenizer())
        elif name.endswith("-quantized"):
            lutlab.export_compressed_tensors(model, folder, byte_tokenizer(), name)
        else:
            layout = {"efficientqat": "tens"}.get(name, name)
            written(model, folder, layout, config or {"quant_method": "-"})
        if name == "efficientqat":
            rewrite(folder, None)
        if name == "anybcq":
            said = {"seed_precision": 2, "parent_precision": 3, "group_size": 32}
            rewrite(folder, None, anybcq=said)
        dense_of(model).save_pretrained(root / f"{name}-dense")
        byte_tokenizer().save_pretrained(root / f"{name}-dense")


Change = Callable[[dict[str, Any], dict[str, Any], dict[str, torch.Tensor]], None]
LAYERS = [
    f"model.layers.{i}.{part}_proj"
    for i in range(2)
    for part in (*(f"self_attn.{p}" for p in "qkvo"), "mlp.gate", "mlp.up", "mlp.down")
]
ROWS = {"k_proj": 32, "v_proj": 32, "gate_proj": 96, "up_proj": 96}


def biases(value: float) -> Change:
    """A bias on every projection, of which the config says nothing."""

    def change(config: dict, generation: dict, tensors: dict) -> None:
        for name in LAYERS:
            rows = ROWS.get(name.rpartition(".")[2], 64)
            tensors[f"{name}.bias"] = torch.arange(rows).sub(20).mul(value)

    return change


def setting(**keys: Any) -> Change:
    """Keys of config.json."""
    return lambda config, generation, tensors: config.update(keys)


def generating(**keys: Any) -> Change:
    """Keys of generation_config.json."""
    return lambda config, generation, tensors: generation.update(keys)


def adding(name: str, like: str = "model.norm.weight") -> Change:
    """A tensor more."""

    def change(config: dict, generation: dict, tensors: dict) -> None:
        tensors[name] = tensors[like].clone()

    return change


def dropping(name: str) -> Change:
    return lambda config, generation, tensors: tensors.pop(name)


def casting(name: str, dtype: torch.dtype) -> Change:
    def change(config: dict, generation: dict, tensors: dict) -> None:
        tensors[name] = tensors[name].to(dtype)

    return change


def tied(equal: bool) -> Change:
    """A tied head that is in the file, too."""

    def change(config: dict, generation: dict, tensors: dict) -> None:
        config["tie_word_embeddings"] = True
        if equal:
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    return change


def changed(source: Path, folder: Path, change: Change) -> Path:
    shutil.copytree(source, folder)
    paths = (folder / "config.json", folder / "generation_config.json")
    config, generation = (json.loads(path.read_text()) for path in paths)
    tensors = load_file(folder / "model.safetensors")
    change(config, generation, tensors)
    for path, values in zip(paths, (config, generation), strict=True):
        path.write_text(json.dumps(values))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_sums(folder)
    return folder


def logits(model: PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(token_ids()).logits.float()
