"""A folder of every project that lutlab reads, with the same weights dense beside it, and changes to both."""

import dataclasses
import json
import shutil

import torch
from tests.checkpoint import naive_layouts as naive
from tests.models.architectures import randomized
from tests.models.folders import change_tensors, save
from tests.tiny_models import byte_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM

import lutlab
from lutlab.base.kept.files import write_sums
from lutlab.checkpoint.foreign.reading import layout_of
from lutlab.checkpoint.saving import save_as
from lutlab.checkpoint.transformers import quantized_layers
from lutlab.formats import pack
from lutlab.models.families import linear_layers
from lutlab.modules import QuantLinear

CONFIG = {
    "vocab_size": 260, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
WIDE = {
    "vocab_size": 264, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
V1 = {"quant_method": "gptq", "checkpoint_format": "gptq", "bits": 4, "group_size": 32, "sym": True}
NOWHERE = {"quant_method": "-"}  # in no quantization_config, as the project writes it
# Reader -> the quantization config of its folder; None: a writer of ours says it.
READERS = {
    "own": None,
    "gptq": V1 | {"checkpoint_format": "gptq_v2"},
    "auto-round": {"quant_method": "auto-round", "packing_format": "auto_round", "sym": True},
    "efficientqat": NOWHERE,
    "awq": {"quant_method": "awq", "version": "gemm", "zero_point": False, "group_size": 32},
    "pack-quantized": None, "int-quantized": None,
    "bpdq": naive.BPDQ | {"meta": {"bpdq": {"msbits": 3}}}, "anybcq": NOWHERE,
}  # fmt: skip


def plain(**changed):
    """A LLaMA whose sizes fill whole words at every q; k_proj and v_proj are smaller than q_proj."""
    torch.manual_seed(0)
    return randomized(LlamaForCausalLM(LlamaConfig(**CONFIG | changed)))


def wide(**changed):
    """A LLaMA whose rows every type of GGUF divides; q_proj has twice the heads of k_proj."""
    return plain(**WIDE | changed)


def quantized(name):
    if name in naive.BINARY:
        return lutlab.quantize(plain(), "bcq", 3, 32, offset=True)
    return lutlab.quantize(plain(), "rtn", 3 if name == "efficientqat" else 4, 32, symmetric=True)


def change_layer(model, name, order=None, **fields):
    """Other fields of a layer's tensor, or its channels in another order, as act_order leaves them."""
    layer = model.get_submodule(name)
    packed = pack(dataclasses.replace(layer.packed.unpack(), **fields)) if fields else layer.packed
    packed = packed if order is None else dataclasses.replace(packed, order=order.int())
    model.set_submodule(name, QuantLinear(packed, layer.bias))


def read(config, tensors, rows, columns):
    return pack(layout_of(config).read(tensors, rows, columns))


def tensors_of(tensors, layer):
    """Those of a layer, by their names in it."""
    names = [name for name in tensors if name.startswith(f"{layer}.")]
    return {name.removeprefix(f"{layer}."): tensors[name] for name in names}


def written(ours, folder, layout, config):
    """A model of ours in another project's layout."""
    layout = "tens" if layout == "efficientqat" else layout
    layers = quantized_layers(ours).items()
    tensors = {name: naive.layer(layout, layer.packed.unpack()) for name, layer in layers}
    save_as(ours, folder, byte_tokenizer(), config, tensors)
    if layout == "anybcq":
        rewrite(folder, None, anybcq={"seed_precision": 2, "parent_precision": 3, "group_size": 32})
    elif config is NOWHERE:
        rewrite(folder, None)


def write_all(root):
    """Of each reader a folder, and `<reader>-dense` with the same weights."""
    for name, config in READERS.items():
        model, dense, folder = quantized(name), plain(), root / name
        if name == "own":
            lutlab.save(model, folder, byte_tokenizer())
        elif config is None:
            lutlab.export_compressed_tensors(model, folder, byte_tokenizer(), name)
        else:
            written(model, folder, name, config)
        for path, layer in quantized_layers(model).items():
            dense.get_submodule(path).weight.data = layer.packed.dequantize()
        save(dense, root / f"{name}-dense")


def config_of(folder):
    return json.loads((folder / "config.json").read_text())["quantization_config"]


def rewrite(folder, quantization, **others):
    """Another quantization_config in config.json; None: none. Others are other keys."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"quantization_config": quantization} | others
    if quantization is None:
        del config["quantization_config"]
    path.write_text(json.dumps(config))
    write_sums(folder)


def setting(**keys):
    """A change of config.json, generation_config.json and tensors."""
    return lambda config, generation, tensors: config.update(keys)


def generating(**keys):
    return lambda config, generation, tensors: generation.update(keys)


def adding(name, like="model.norm.weight"):
    return lambda config, generation, tensors: tensors.update({name: tensors[like].clone()})


def dropping(name):
    return lambda config, generation, tensors: tensors.pop(name)


def casting(name, dtype):
    return lambda config, generation, tensors: tensors.update({name: tensors[name].to(dtype)})


def biases(value):
    """A bias on every projection, of which the config says nothing."""
    rows = {f"{name}.bias": layer.out_features for name, layer in linear_layers(plain())}
    drawn = {name: torch.arange(count).sub(20).mul(value) for name, count in rows.items()}
    return lambda config, generation, tensors: tensors.update(drawn)


def tied(equal):
    """A tied head that is in the file, too."""

    def change(config, generation, tensors):
        config["tie_word_embeddings"] = True
        if equal:
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    return change


def changed(source, folder, change):
    shutil.copytree(source, folder)
    paths = (folder / "config.json", folder / "generation_config.json")
    config, generation = (json.loads(path.read_text()) for path in paths)
    change_tensors(folder, lambda tensors: change(config, generation, tensors))
    for path, values in zip(paths, (config, generation), strict=True):
        path.write_text(json.dumps(values))
    write_sums(folder)
    return folder
