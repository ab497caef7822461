"""Models in folders: loaded as a user would, and changed in one place."""

import json

import torch
from safetensors.torch import load_file, save_file
from tests.tiny_models import byte_tokenizer

from lutlab.base.specs import ModelSpec
from lutlab.models import load


def save(model, folder, **options):
    """With a tokenizer; returns the folder."""
    model.save_pretrained(folder, **options)
    byte_tokenizer().save_pretrained(folder)
    return folder


def spec(folder, source="folder", **fields):
    return ModelSpec("model", source, str(folder), **fields)


def loaded(folder, source="folder", seed=0, dtype=torch.float32, stream=False, **fields):
    return load.load_model(spec(folder, source, **fields), dtype, "cpu", seed, stream=stream)


def change_config(folder, name="config.json", **fields):
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def change_tensors(folder, change):
    """A function changes the dictionary of them."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, {"format": "pt"})


def change_weight(folder, name, change):
    change_tensors(folder, lambda tensors: tensors.update({name: change(tensors[name])}))


def write_shards(folder, tensors, numbers):
    """The i-th tensor in the shard of the i-th number, and their index."""
    names = [f"model-{int(number)}.safetensors" for number in numbers]
    index = dict(zip(tensors, names, strict=True))
    for shard in set(names):
        part = {name: tensor for name, tensor in tensors.items() if index[name] == shard}
        save_file(part, folder / shard, {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def flip(path, at=-1, bit=0):
    """Damage a file."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)
