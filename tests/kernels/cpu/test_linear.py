"""The kernel chosen for a packed weight, and the operation that torch sees."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.checks import inputs, one_operation, refused, relative_error
from tests.kernels.weights import (
    bcq_tensor,
    second_order_tensor,
    uniform_second_order_tensor,
    uniform_tensor,
)
from tests.mixed_weights import mixed_tensor

from lutlab.base.tensors import DenseTensor
from lutlab.formats import bcq, pack
from lutlab.kernels.codegen.isa import detect, halved
from lutlab.kernels.cpu.bcq_gemv import PackedBCQRows
from lutlab.kernels.cpu.rows import rows_gemv
from lutlab.kernels.cpu.rows.rows_gemv import PREFETCH_BYTES
from lutlab.kernels.cpu.uniform_gemv import PackedUniformRows
from lutlab.kernels.dispatch import Dequantized, prepare

N, K = 40, 72
WEIGHTS = {
    "planes": lambda: bcq.pack(bcq_tensor(N, K, 3, 16, offset="f32", ordered=True)),
    "second order": lambda: pack(second_order_tensor(N, K, 3, 16, ordered=True)),
    "uniform second order": lambda: pack(uniform_second_order_tensor(N, K, 4, 16, ordered=True)),
    "uniform planes": lambda: pack(uniform_tensor(N, K, 3, 16)),
    "codes": lambda: pack(uniform_tensor(N, K, 4, 16, ordered=True)),
    "codes, float offset": lambda: pack(uniform_tensor(N, K, 5, 16, scale="f32", shift="f32")),
    "uniform planes, float offset": lambda: pack(uniform_tensor(N, K, 2, 16, shift="f16")),
    "mixed groups": lambda: pack(mixed_tensor(N, K, outliers=30)),
}
F32 = torch.float32
CODES_ISA = detect(slow="avx512" if halved() else "")
CODES = "uniform int24" if CODES_ISA.name == "avx2" else "uniform convert"


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("rows", [1, 5, 800])
def test_multiplies_few_rows_and_many(kind, rows):
    packed, x = WEIGHTS[kind](), inputs(rows, K)
    chosen = prepare(packed, "cpu")
    y = chosen(x)
    few = not chosen.describe(rows, F32).startswith("dequantize every call (")
    assert few == (rows < rows_gemv.DENSE_ROWS)
    torch.testing.assert_close(chosen(x, torch.ones(N)) - 1, y, rtol=1e-5, atol=1e-4)
    assert torch.equal(chosen.dense(), packed.dequantize())
    assert torch.equal(chosen.copy()(x), y)
    assert y.shape == (rows, N)
    assert relative_error(y, x, packed.dequantize()) < 1e-6


@pytest.mark.parametrize(("kind", "layout", "variant"), [
    ("planes", (PackedBCQRows, 512, torch.float32), "bcq lut"),
    ("uniform planes", (PackedBCQRows, 512, torch.int16), "bcq lut"),
    ("uniform planes, float offset", (PackedBCQRows, 512, torch.float16), "bcq lut"),
    ("codes", (PackedUniformRows, 1024, torch.int16), CODES),
    ("codes, float offset", (PackedUniformRows, 1024, torch.float32), "uniform convert"),
])  # fmt: skip
def test_uniform_codes_take_the_faster_of_their_two_layouts(kind, layout, variant):
    on = CODES_ISA if kind == "codes" else detect()
    chosen = prepare(WEIGHTS[kind](), "cpu")
    threads, rows = torch.get_num_threads(), chosen.rows
    assert (type(rows), rows.panel_columns, rows.offset_dtype) == layout
    assert chosen.kernel.prefetch_bytes == PREFETCH_BYTES.get(on.name, PREFETCH_BYTES[""])
    assert chosen.describe(1, F32) == f"{variant}, {on.name}, {threads} threads"
    assert chosen.describe(800, F32).startswith(f"dequantize every call ({variant}, ")


def test_binary_codes_stay_binary_even_where_they_are_uniform():
    binary = WEIGHTS["codes"]().to_bcq()
    chosen = prepare(binary, "cpu")
    assert chosen.describe(1, F32).startswith("bcq lut")
    assert chosen.packed.layout() == binary.layout()


@pytest.mark.parametrize("kind", WEIGHTS)
def test_torch_sees_one_operation_with_the_shape_it_says(kind):
    chosen, x = prepare(WEIGHTS[kind](), "cpu"), inputs(2, K)
    operation = torch.ops.lutlab.packed_linear.default
    one_operation(chosen, x, operation, x, None, chosen.number_tensor, N)


@pytest.mark.parametrize("kind", ["planes", "codes"])
def test_a_named_choice_of_tables_is_in_the_name_of_what_ran(kind, monkeypatch):
    tensor = bcq_tensor(N, K, 4, 32) if kind == "planes" else uniform_tensor(N, K, 4, 32)
    packed, x = pack(tensor), inputs(1, K)
    exact, how = prepare(packed, "cpu"), {"op": "bcq_gemv", "tables": "int16"}
    assert relative_error(exact(x), x, packed.dequantize()) < 1e-6
    assert not exact.describe(1, F32).startswith(("bcq lut int16", "bcq lut int18"))
    if detect().name in ("avx2", "avx512"):
        quick = prepare(packed, "cpu", **how)
        assert quick.describe(1, F32).startswith(("bcq lut int16, avx512", "bcq lut int18, avx2"))
        assert 1e-6 < relative_error(quick(x), x, packed.dequantize()) < 1e-4
    monkeypatch.setenv("LUTLAB_ISA", "portable")
    refused("kernels are built for portable: take tables=exact", prepare, packed, "cpu", **how)


@pytest.mark.parametrize(("message", "kind", "op", "options"), [
    ("unknown kernel 'bcq_gemm': did you mean 'bcq_gemv'", "codes", "bcq_gemm", {}),
    ("bcq_gemv has no option 'table': did you mean 'tables'", "codes", "bcq_gemv", {"table": "int16"}),
    ("uniform_gemv has no option 'tables'", "codes", "uniform_gemv", {"tables": "int16"}),
    ("uniform_gemv: q=3: codes of 1 to 3 bits are faster", "uniform planes", "uniform_gemv", {}),
    ("bcq_gemv: it multiplies formats bcq and uniform, of first and second order", "dense", "bcq_gemv", {}),
    ("tables=int61.*int16", "planes", "bcq_gemv", {"tables": "int61"}),
])  # fmt: skip
def test_mistakes_in_asking_for_a_kernel(message, kind, op, options):
    packed = pack(DenseTensor(torch.ones(4, 8))) if kind == "dense" else WEIGHTS[kind]()
    refused(message, prepare, packed, "cpu", op=op, **options)


def test_a_group_size_without_a_kernel_is_dequantized_and_a_named_kernel_refuses_it():
    for tensor in (bcq_tensor(N, K, 3, 13), uniform_tensor(N, K, 4, 13)):
        packed, x = pack(tensor), inputs(2, K)
        chosen = prepare(packed, "cpu")
        assert isinstance(chosen, Dequantized)
        assert "g=13 is not a group size the CPU kernels take" in chosen.describe(1, F32)
        assert relative_error(chosen(x), x, packed.dequantize()) < 1e-6
        refused("bcq_gemv: g=13 is not a group size", prepare, packed, "cpu", op="bcq_gemv")


def test_no_compiler_is_said(no_compiler):
    packed = WEIGHTS["planes"]()
    assert "bcq_gemv: LUTLAB_CC" in prepare(packed, "cpu").describe(1, F32)
    refused("bcq_gemv: LUTLAB_CC", prepare, packed, "cpu", op="bcq_gemv")
