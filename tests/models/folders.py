"""Models in folders: loaded as a user would, and changed in one place."""

import json

import torch
from safetensors.torch import load_file, save_file

from lutlab.base.specs import ModelSpec
from lutlab.models import load


def spec(folder, source="folder", **fields):
    return ModelSpec("model", source, str(folder), **fields)


def loaded(folder, source="folder", seed=0, dtype=torch.float32, **fields):
    return load.load_model(spec(folder, source, **fields), dtype, "cpu", seed)


def change_config(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def change_weight(folder, name, change):
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = change(tensors[name])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
