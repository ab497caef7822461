"""Sizes from shapes alone are those of what is packed, for every method; a budget below the least is refused."""

import pytest
import torch
from tests.models.architectures import make, uniform

from lutlab.base import registry
from lutlab.base.errors import LutlabError
from lutlab.base.tensors import CalibStats
from lutlab.compress.driver import quantize_model
from lutlab.compress.sizes import check_budget, stored_bits
from lutlab.formats import pack
from lutlab.models.families import linear_layers, weight_of
from lutlab.quantizers.contract import Calibrated, make_method

# Those by code of others are in tests/quantizers/test_ggml.py.
METHODS = [
    name for name, cls in registry.classes("method").items() if cls.quantizes and not cls.libraries
]
SHAPES = [(32, 640), (70, 200), (33, 100), (64, 416), (16, 1000)]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("q", "g", "own"), [(2, -1, 0), (3, 32, 1), (4, 20, 2)])
def test_sizes_are_those_of_packed_weights(name, q, g, own):
    method = make_method(name)
    for rows, columns in SHAPES[own : own + 3 : 2]:
        weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
        prepared = ()
        if isinstance(method, Calibrated):
            prepared = (method.prepare(CalibStats(torch.eye(columns), torch.ones(columns), 1)),)
        packed = pack(method.quantize(weight, q, g, *prepared))
        if name == "group_widths":
            # A weight decides on 3 or 4 bits, up to the words that streams are filled to.
            found = stored_bits(method, q, g, rows, columns)
            assert abs(found - packed.bits_stored) <= 32 * (3 * rows + 8), (rows, columns)
            continue
        assert stored_bits(method, q, g, rows, columns) == packed.bits_stored, (rows, columns)


def test_a_budget_is_refused_below_the_least_and_only_there():
    model, method, candidates = make("opt"), make_method("rtn"), [(2, -1), (4, 8)]
    shapes = {name: tuple(weight_of(module).shape) for name, module in linear_layers(model)}
    stats = quantize_model(model, method, uniform(model, 2, -1))
    least = sum(one.bits_stored for one in stats) / sum(n * k for n, k in shapes.values())
    check_budget(least, shapes, method, candidates)
    with pytest.raises(LutlabError, match=f"the candidates give, {least:.4g} bits a weight"):
        check_budget(least - 1e-3, shapes, method, candidates)
    first = next(iter(shapes))
    with pytest.raises(LutlabError, match="below the smallest size"):
        check_budget(least, shapes, method, candidates, skip=[first])


@pytest.mark.parametrize("q", [2.2, 2.5])
def test_sizes_of_the_papers_shares_with_outliers(q):
    method = make_method("mixed_2_4_16", outliers=0.005)
    for rows, columns in SHAPES:
        weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))
        stats = CalibStats(torch.eye(columns), torch.ones(columns), 1)
        packed = pack(method.quantize(weight, q, 16, method.prepare(stats)))
        assert stored_bits(method, q, 16, rows, columns) == packed.bits_stored, (rows, columns)
