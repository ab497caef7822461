"""The papers' kernel in C: any mu, l and t_h give the product, and Eq. 2 counts what a naive run of it does."""

from __future__ import annotations

import itertools

import pytest
import torch

from lutlab.base.errors import LutlabError
from lutlab.base.specs import ProductRun
from lutlab.base.tensors import BCQTensor
from lutlab.formats import pack
from lutlab.formats.contract import Format
from lutlab.kernels.cpu.paper_gemv import PaperGemv
from lutlab.kernels.cpu.paper_tables import additions, check
from lutlab.kernels.dispatch import prepare
from lutlab.measure import products
from lutlab.measure.products import relative_error

SHAPES = [
    (96, 80, 3, 16, True),
    (100, 75, 2, 32, False),
    (65, 130, 4, -1, True),
    (300, 999, 1, 48, False),
]


def weight(rows: int, columns: int, q: int, g: int, offset: bool) -> Format:
    generator = torch.Generator().manual_seed(rows)
    groups = 1 if g == -1 else -(-columns // g)
    codes = torch.randint(0, 2**q, (rows, columns), generator=generator, dtype=torch.uint8)
    alpha = 0.5 + torch.rand(q, rows, groups, generator=generator)
    shift = torch.randn(rows, groups, generator=generator).half() if offset else None
    return pack(BCQTensor(codes, alpha.half(), shift, q, g))


def test_the_papers_example_of_a_table_is_what_is_looked_up() -> None:
    """LUT-GEMM v3 Table 1, mu = 3: the value of key b'100 is +x1 - x2 - x3. A row of W a key, in one plane."""
    keys = list(itertools.product((0, 1), repeat=3))
    codes = torch.tensor(keys, dtype=torch.uint8)
    packed = pack(BCQTensor(codes, torch.ones(1, 8, 1).half(), None, 1, -1))
    x = torch.tensor([[1.0, 10.0, 100.0]])
    values = prepare(packed, "cpu", op="paper_gemv", knobs={"mu": 3, "luts": 1})(x)
    assert values.tolist() == [[-111.0, 89.0, -91.0, 109.0, -109.0, 91.0, -89.0, 111.0]]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("luts", "rows"), [(1, 64), (3, 7), (8, 2048)])
def test_any_knobs_give_the_product(shape: tuple, luts: int, rows: int) -> None:
    packed = weight(*shape)
    dense = packed.dequantize()
    for mu, tokens in itertools.product((1, 3, 5, 8, 12), (1, 3)):
        x = torch.randn(tokens, shape[1], generator=torch.Generator().manual_seed(mu))
        execution = prepare(
            packed, "cpu", op="paper_gemv", knobs={"mu": mu, "luts": luts, "rows": rows}
        )
        assert relative_error(execution(x), x, dense) < 2e-6
        assert f"paper luts={luts} mu={mu} rows={rows}, " in execution.describe(tokens, x.dtype)


def test_the_papers_knobs_are_exact_to_what_float32_sums_allow() -> None:
    packed = weight(512, 4096, 3, 128, False)
    x = torch.randn(1, 4096, generator=torch.Generator().manual_seed(0))
    assert relative_error(prepare(packed, "cpu", op="paper_gemv")(x), x, packed.dequantize()) < 3e-7


def test_overflow_and_order_are_as_in_torch() -> None:
    packed = weight(*SHAPES[0])
    x = torch.full((2, 80), 3e38)
    x[1] = 1.0
    product = prepare(packed, "cpu", op="paper_gemv")(x)
    assert torch.equal(product.isfinite(), (x @ packed.dequantize().t()).isfinite())
    assert relative_error(product[1:], x[1:], packed.dequantize()) < 1e-6


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"threads": 64}, "threads is a knob of the GPU's kernel: on a CPU kernel=paper has mu, luts, rows"),
        ({"mu": 13}, "mu=13: give a whole number of 1 to 12"),
        ({"rows": 0}, "rows=0: give a whole number of 1 or more"),
        ({"mu": 12, "luts": 128}, "128 tables of mu=12 take 2097152 bytes"),
    ],
)  # fmt: skip
def test_knobs_that_it_has_not_are_refused(knobs: dict[str, int], message: str) -> None:
    with pytest.raises(LutlabError, match=message):
        check(knobs)


def test_it_multiplies_binary_codes_on_a_cpu() -> None:
    dense = PaperGemv().takes(pack(weight(*SHAPES[0]).unpack()), torch.device("cuda"))
    assert dense == "it multiplies binary codes on a CPU"
    with pytest.raises(LutlabError, match="kernel=paper multiplies binary codes: set method=bcq"):
        products.obstacle(ProductRun(((96, 80, 1),), "rtn", 3, 16, kernel="paper"))


@pytest.mark.parametrize(("rows", "columns", "q", "g", "mu", "block"), [
    (100, 80, 3, 16, 3, 32), (64, 75, 2, 32, 8, 2048), (65, 130, 4, -1, 5, 16),
])  # fmt: skip
def test_additions_are_those_of_the_algorithm(rows, columns, q, g, mu, block) -> None:
    built = read = 0
    length = columns if g == -1 else g
    for _ in range(0, rows, block):  # its rows share the tables
        for first in range(0, columns, length):
            for _ in range(first, min(first + length, columns), mu):
                built += 2**mu
    for _row, _plane, first in itertools.product(range(rows), range(q), range(0, columns, length)):
        read += len(range(first, min(first + length, columns), mu))
    assert additions((rows, columns), q, g, {"mu": mu, "rows": block}) == (built, read)


def test_eq_2_of_the_paper_saves_q_over_mu() -> None:
    """m n / (m n q / mu) = 8 / 3 at q = 3, mu = 8, less what the tables cost: 2.6 (ICLR section 4.1)."""
    built, read = additions((12288, 12288), 3, 128, {})
    assert 12288**2 / read == pytest.approx(8 / 3)
    assert round(12288**2 / (built + read), 1) == 2.6
