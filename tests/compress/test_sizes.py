"""Sizes from shapes alone are those of what is packed, for every method; a budget below the least is refused."""

import pytest
import torch
from tests.compress.passes import quantized
from tests.quantizers.weights import drawn, quantize

from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.compress.sizes import check_budget, stored_bits
from lutlab.formats import pack
from lutlab.quantizers.contract import make_method

# Those by code of others are in tests/quantizers/test_ggml.py.
METHODS = [
    name for name, cls in registry.classes("method").items() if cls.quantizes and not cls.libraries
]
SHAPES = [(32, 640), (70, 200), (33, 100), (64, 416), (16, 1000)]
WIDTHS = [(2, -1, SHAPES[:3:2]), (3, 32, SHAPES[1:4:2]), (4, 20, SHAPES[2::2])]


@pytest.mark.parametrize(("name", "options", "q", "g", "shapes"), [
    *((name, {}, *width) for name in METHODS for width in WIDTHS),
    *(("mixed_2_4_16", {"outliers": 0.005}, q, 16, SHAPES) for q in (2.2, 2.5)),  # the paper's shares
])  # fmt: skip
def test_sizes_are_those_of_packed_weights(name, options, q, g, shapes):
    method = make_method(name, **options)
    for rows, columns in shapes:
        packed = pack(quantize(method, drawn(rows, columns, seed=1), q, g, torch.eye(columns)))
        short = stored_bits(method, q, g, rows, columns) - packed.bits_stored
        # A weight of group_widths decides on 3 or 4 bits, up to the words that streams are filled to.
        slack = 32 * (3 * rows + 8) if name == "group_widths" else 0
        assert abs(short) <= slack, (rows, columns)


def test_a_budget_is_refused_below_the_least_and_only_there():
    method, candidates = make_method("rtn"), [(2, -1), (4, 8)]
    _, stats = quantized("opt", method, q=2, g=-1)
    shapes = {layer.name: (layer.out_features, layer.in_features) for layer in stats}
    least = sum(layer.bits_stored for layer in stats) / sum(n * k for n, k in shapes.values())
    check_budget(least, shapes, method, candidates)
    with pytest.raises(LutlabError, match=f"the candidates give, {least:.4g} bits a weight"):
        check_budget(least - 1e-3, shapes, method, candidates)
    with pytest.raises(LutlabError, match="below the smallest size"):
        check_budget(least, shapes, method, candidates, skip=[stats[0].name])
