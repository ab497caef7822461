"""What tests of kernels ask: inputs, the error of a product, refusals in words, what torch.compile sees."""

from __future__ import annotations

import pytest
import torch

from lutlab.base.errors import LutlabError

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32


def inputs(m, columns, dtype=F32, seed=1, outliers=False):
    """Gaussian x [m, columns]."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(m, columns, generator=generator)
    if outliers:
        x[torch.rand(m, columns, generator=generator) < 0.001] *= 100
        x[:, columns // 2] *= 100
    return x.to(dtype)


def relative_error(y, x, weight):
    """|y - x W^T| / |x W^T|, the product in float64."""
    expected = x.double() @ weight.double().t()
    return ((y.double() - expected).norm() / expected.norm()).item()


def refused(message, call, *arguments, **options):
    with pytest.raises(LutlabError, match=message):
        call(*arguments, **options)


def compiled(function):
    """The function by torch.compile, and the list to which its graphs come."""
    graphs = []

    def look(graph, _):
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()  # which compiles a function for so many objects, and no more
    return torch.compile(function, backend=look, fullgraph=True), graphs


def check_operation(operation, *arguments):
    """It changes nothing, and its output has the shape and type that torch.compile takes it for."""
    torch.library.opcheck(operation, arguments, test_utils=("test_schema", "test_faketensor"))


def one_operation(multiply, x, operation, *arguments):
    """For torch.compile a product is one operation, which has these arguments."""
    function, graphs = compiled(lambda x: multiply(x))
    assert torch.equal(function(x), multiply(x))
    assert "packed_linear" in graphs[0].code
    check_operation(operation, *arguments)


def assert_same(back, stored, *names):
    """Fields that have come back, all where none is named, are what was stored: tensors to the last bit."""
    for name in names or vars(stored):
        there, here = getattr(back, name), getattr(stored, name)
        if isinstance(here, torch.Tensor):
            assert (there.dtype, torch.equal(there, here)) == (here.dtype, True), name
        else:
            assert there == here, name
