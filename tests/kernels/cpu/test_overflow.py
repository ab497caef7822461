"""Where a kernel overflows and the dense product does not, a row is the dense product's, and no other row changes."""

import pytest
import torch
from tests.kernels.checks import inputs
from tests.kernels.weights import bcq_tensor, uniform_tensor
from tests.mixed_weights import mixed_tensor

from lutlab.formats import bcq, pack
from lutlab.kernels import ran
from lutlab.kernels.cpu.qigen import qigen_gemv
from lutlab.kernels.dispatch import prepare

N, K = 40, 512
QIGEN = {"qigen": (4, 32), "qigen, shared units": (3, 16), "qigen, one group": (3, -1)}
WEIGHTS = {
    "planes": lambda: bcq.pack(bcq_tensor(N, K, 3, 32, offset="f32", ordered=True)),
    "uniform planes": lambda: pack(uniform_tensor(N, K, 3, 8)),
    "codes": lambda: pack(uniform_tensor(N, K, 8, 128, ordered=True)),
    "mixed groups": lambda: pack(mixed_tensor(N, K, outliers=30)),
}


def product(kind):
    """x -> y of a kernel, and its dense weight."""
    if kind in QIGEN:
        packed = qigen_gemv.prepare(uniform_tensor(N, K, *QIGEN[kind], ordered=True))
        return lambda x: qigen_gemv.gemv(x, packed), packed.dequantize()
    packed = WEIGHTS[kind]()
    return prepare(packed, "cpu"), packed.dequantize()


@pytest.mark.parametrize(("kind", "dtype", "tolerance"), [
    *((kind, torch.float32, 1e-5) for kind in (*WEIGHTS, "qigen")),
    *((kind, torch.bfloat16, 2e-2) for kind in WEIGHTS),
])  # fmt: skip
def test_a_row_that_overflows_is_the_dense_product(kind, dtype, tolerance):
    multiply, dense = product(kind)
    x = inputs(6, K, dtype)
    clean = multiply(x)
    ran.take()
    for size in (1e35, 3e36, 1e37, 1e38):
        large = x.clone()
        large[1] *= size
        y = multiply(large)
        expected = torch.nn.functional.linear(large, dense.to(dtype))
        assert torch.equal(y[1].isfinite(), expected[1].isfinite())
        finite = expected[1].isfinite()
        error = (y[1] - expected[1])[finite].double().norm()
        assert error <= tolerance * expected[1][finite].double().norm()
        others = [0, 2, 3, 4, 5]
        assert torch.equal(y[others], clean[others])
    if kind in WEIGHTS:
        assert any("dequantize for rows that overflow" in name for name in ran.take())


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("kind", [*WEIGHTS, *QIGEN])
def test_what_is_not_finite_in_x_is_in_y_as_the_dense_product_has_it(kind, bad):
    multiply, dense = product(kind)
    x = inputs(3, K)
    clean = multiply(x)
    x[1, K - 1] = bad
    y = multiply(x)
    expected = torch.nn.functional.linear(x, dense)
    torch.testing.assert_close(y[1], expected[1], rtol=0, atol=0, equal_nan=True)
    assert not y[1].isfinite().any()
    assert torch.equal(y[::2], clean[::2])
