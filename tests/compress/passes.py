"""Random models, quantized; and what their layers read in whole forward passes, by hooks and no block driver."""

import torch
from tests.models.architectures import make, uniform

from lutlab.compress.driver import quantize_model
from lutlab.models.families import linear_layers, weight_of
from lutlab.modules import QuantLinear


def quantized(name, method, windows=None, q=3, g=16, **stores):
    """A model of all layers at one width, and their statistics."""
    model = make(name)
    return model, quantize_model(model, method, uniform(model, q, g), windows, **stores)


def weights_of(model):
    """Layer -> its weight [N, K], as it multiplies."""
    return {
        name: layer.packed.dequantize() if isinstance(layer, QuantLinear) else weight_of(layer)
        for name, layer in linear_layers(model)
    }


@torch.no_grad()
def inputs_of(model, windows, paths, batch=1):
    """Path -> inputs of a module, a tensor [M, K] a batch; batches of one window are without its padding."""
    named = windows if isinstance(windows, dict) else {"input_ids": windows}
    mask = named.get("attention_mask", torch.ones_like(named["input_ids"])).bool()
    seen = {path: [] for path in paths}
    hooks = [
        model.get_submodule(path).register_forward_pre_hook(
            lambda _, x, to=to: to.append(x[0].flatten(0, -2))
        )
        for path, to in seen.items()
    ]
    for rows in torch.arange(len(mask)).split(batch):
        columns = mask[rows[0]] if batch == 1 else slice(None)
        model(**{name: value[rows][:, columns] for name, value in named.items()}, use_cache=False)
    for hook in hooks:
        hook.remove()
    return seen
