"""A QuantLinear holds its weight once: as it is stored before the first product, as its kernel wants it after."""

import gc

import pytest
import torch
from tests.kernels.checks import inputs

from lutlab.api import quantize_tensor
from lutlab.modules import QuantLinear

# q, g, method; real layers: sizes that blocks of 32 rows and words of 32 columns divide
WITHIN = [
    (2, 128, "bcq"), (3, 32, "bcq"), (3, 128, "bcq"), (4, 128, "bcq"), (4, -1, "bcq"),
    (4, 32, "rtn"), (4, 128, "rtn"), (3, 64, "rtn"), (3, -1, "rtn"), (2, 128, "rtn"), (8, 128, "rtn"),
]  # fmt: skip


# The kernel's layout has zero points of 16 bits, and a byte for codes of 5 to 7 bits (docs/inside.md).
BEYOND = [(2, 32, 1.18), (3, 32, 1.12), (5, 128, 8 / 5), (6, 128, 8 / 6 + 0.01), (7, 128, 8 / 7 + 0.01)]  # fmt: skip


def size(tensors):
    """Bytes of all memory of these."""
    storages = [tensor.untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def live(*modules):
    """Bytes of all tensors that layers hold, biases left out."""
    held = [b for module in modules for b in module._buffers.values() if b is not None]
    for module in modules:
        held += module._execution.buffers if module._execution is not None else []
    return size(held)


@pytest.mark.parametrize(("q", "g", "method"), WITHIN)
def test_a_layer_holds_its_weight_once(q, g, method):
    weights = inputs(1024, 1024), inputs(1536, 1024)
    layers = [QuantLinear(quantize_tensor(w, method=method, q=q, g=g), None) for w in weights]
    stored = sum(layer.packed.bits_stored for layer in layers) // 8
    assert live(*layers) == stored
    for _ in range(2):
        for layer in layers:
            layer(inputs(1, 1024))
        assert live(*layers) <= 1.1 * stored
    for layer in layers:
        layer.to(torch.float16)
    assert live(*layers) == stored


@pytest.mark.parametrize(("q", "g", "limit"), BEYOND)
def test_where_a_layer_holds_more_it_is_as_much_as_is_said(q, g, limit):
    layer = QuantLinear(quantize_tensor(inputs(1024, 1024), method="rtn", q=q, g=g), None)
    stored = layer.packed.bits_stored / 8
    layer.prepare()
    assert 1.1 * stored < live(layer) <= limit * stored


def test_what_a_layer_lets_go_of_is_freed():
    """All tensors of the process, and not what the layer says of itself."""

    def every_tensor():
        return size(t for t in gc.get_objects() if type(t) is torch.Tensor and not t.is_meta)

    packed = quantize_tensor(torch.randn(1024, 1024), method="bcq", q=3, g=128)
    stored = packed.bits_stored // 8
    module = QuantLinear(packed, None)
    del packed
    gc.collect()
    before = every_tensor()
    module(torch.ones(1, 1024))
    gc.collect()
    assert every_tensor() - before <= 0.1 * stored
