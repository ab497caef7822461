"""The kernel chosen for a packed weight, and the operation that torch sees."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.weights import bcq_tensor, relative_error, uniform_tensor
from tests.mixed_weights import mixed_tensor

from lutlab.base.errors import LutlabError
from lutlab.base.tensors import DenseTensor
from lutlab.formats import bcq, pack
from lutlab.kernels.codegen.isa import detect
from lutlab.kernels.cpu.bcq_gemv import PackedBCQRows
from lutlab.kernels.cpu.rows import rows_gemv
from lutlab.kernels.cpu.rows.rows_gemv import prefetch_bytes
from lutlab.kernels.cpu.uniform_gemv import PackedUniformRows
from lutlab.kernels.dispatch import Dequantized, prepare

N, K = 40, 72
WEIGHTS = {
    "planes": lambda: bcq.pack(bcq_tensor(N, K, 3, 16, offset="f32", ordered=True)),
    "uniform planes": lambda: pack(uniform_tensor(N, K, 3, 16)),
    "codes": lambda: pack(uniform_tensor(N, K, 4, 16, ordered=True)),
    "codes, float offset": lambda: pack(uniform_tensor(N, K, 5, 16, scale="f32", shift="f32")),
    "uniform planes, float offset": lambda: pack(uniform_tensor(N, K, 2, 16, shift="f16")),
    "mixed groups": lambda: pack(mixed_tensor(N, K, outliers=30)),
}
F32 = torch.float32
CODES = "uniform int24" if detect().name == "avx2" else "uniform convert"


def inputs(rows, dtype=torch.float32):
    return torch.randn(rows, K, generator=torch.Generator().manual_seed(5)).to(dtype)


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("rows", [1, 5, 800])
def test_multiplies_few_rows_and_many(kind, rows):
    packed = WEIGHTS[kind]()
    x = inputs(rows)
    chosen = prepare(packed, "cpu")
    y = chosen(x)
    few = not chosen.describe(rows, F32).startswith("dequantize every call (")
    assert few == (rows < rows_gemv.DENSE_ROWS)
    biased = chosen(x, torch.ones(N))
    assert torch.allclose(biased - 1, y, atol=1e-4)
    assert torch.equal(chosen.dense(), packed.dequantize())
    assert torch.equal(chosen.copy()(x), y)
    assert y.shape == (rows, N)
    assert relative_error(y, x, packed.dequantize()) < 1e-6


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float16, 1e-3), (torch.bfloat16, 8e-3)], ids=str
)
@pytest.mark.parametrize("rows", [2, 800])
def test_half_precision_stays_half_precision(dtype, limit, rows):
    packed = WEIGHTS["planes"]()
    x = inputs(rows, dtype)
    y = prepare(packed, "cpu")(x)
    assert y.dtype == dtype
    assert relative_error(y, x, packed.dequantize()) < limit


@pytest.mark.parametrize(
    ("kind", "layout", "variant"),
    [
        ("planes", (PackedBCQRows, 512, torch.float32), "bcq lut"),
        ("uniform planes", (PackedBCQRows, 512, torch.int16), "bcq lut"),
        ("uniform planes, float offset", (PackedBCQRows, 512, torch.float16), "bcq lut"),
        ("codes", (PackedUniformRows, 1024, torch.int16), CODES),
        ("codes, float offset", (PackedUniformRows, 1024, torch.float32), "uniform convert"),
    ],
)
def test_uniform_codes_take_the_faster_of_their_two_layouts(kind, layout, variant):
    chosen = prepare(WEIGHTS[kind](), "cpu")
    threads = torch.get_num_threads()
    rows = chosen.rows
    assert (type(rows), rows.panel_columns, rows.offset_dtype) == layout
    assert chosen.kernel.prefetch_bytes == prefetch_bytes(detect())
    assert chosen.describe(1, F32) == f"{variant}, {detect().name}, {threads} threads"
    assert chosen.describe(800, F32).startswith(f"dequantize every call ({variant}, ")


def test_binary_codes_stay_binary_even_where_they_are_uniform():
    binary = WEIGHTS["codes"]().to_bcq()
    chosen = prepare(binary, "cpu")
    assert chosen.describe(1, F32).startswith("bcq lut")
    assert chosen.packed.layout() == binary.layout()


@pytest.mark.parametrize("kind", WEIGHTS)
def test_torch_sees_one_operation_with_the_shape_it_says(kind):
    chosen = prepare(WEIGHTS[kind](), "cpu")
    graphs = []

    def look(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: chosen(x), backend=look, fullgraph=True)
    assert torch.equal(compiled(inputs(2)), chosen(inputs(2)))
    assert "packed_linear" in graphs[0].code
    torch.library.opcheck(
        torch.ops.lutlab.packed_linear.default,
        (inputs(2), None, chosen.number_tensor, N),
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.parametrize("kind", ["planes", "codes"])
def test_a_named_choice_of_tables_is_in_the_name_of_what_ran(kind):
    tensor = uniform_tensor(N, K, 4, 32)
    packed, x = pack(bcq_tensor(N, K, 4, 32) if kind == "planes" else tensor), inputs(1)
    exact = prepare(packed, "cpu")
    assert relative_error(exact(x), x, packed.dequantize()) < 1e-6
    if detect().name not in ("avx2", "avx512"):
        with pytest.raises(LutlabError, match=f"built for {detect().name}: take tables=exact"):
            prepare(packed, "cpu", op="bcq_gemv", tables="int16")
        return
    quick = prepare(packed, "cpu", op="bcq_gemv", tables="int16")
    assert quick.describe(1, F32).startswith(("bcq lut int16, avx512", "bcq lut int18, avx2"))
    assert 1e-6 < relative_error(quick(x), x, packed.dequantize()) < 1e-4
    assert not exact.describe(1, F32).startswith(("bcq lut int16", "bcq lut int18"))


def test_groups_that_share_a_word_have_tables_of_floats_only_and_the_name_says_so():
    assert prepare(WEIGHTS["planes"](), "cpu").describe(1, F32).startswith("bcq lut, ")


def test_unknown_tables_are_refused(monkeypatch):
    with pytest.raises(LutlabError, match=r"tables=int61.*int16"):
        prepare(WEIGHTS["planes"](), "cpu", op="bcq_gemv", tables="int61")
    monkeypatch.setenv("LUTLAB_ISA", "portable")
    with pytest.raises(LutlabError, match="kernels are built for portable"):
        prepare(WEIGHTS["planes"](), "cpu", op="bcq_gemv", tables="int16")


def test_a_group_size_without_a_kernel_is_dequantized_and_a_named_kernel_refuses_it():
    for tensor in (bcq_tensor(N, K, 3, 13), uniform_tensor(N, K, 4, 13)):
        packed = pack(tensor)
        chosen = prepare(packed, "cpu")
        assert isinstance(chosen, Dequantized)
        assert "g=13 is not a group size the CPU kernels take" in chosen.describe(1, F32)
        assert relative_error(chosen(inputs(2)), inputs(2), packed.dequantize()) < 1e-6
        with pytest.raises(LutlabError, match="bcq_gemv: g=13 is not a group size"):
            prepare(packed, "cpu", op="bcq_gemv")


def test_mistakes_in_asking_for_a_kernel():
    codes = WEIGHTS["codes"]()
    with pytest.raises(LutlabError, match="unknown kernel 'bcq_gemm': did you mean 'bcq_gemv'"):
        prepare(codes, "cpu", op="bcq_gemm")
    with pytest.raises(LutlabError, match="bcq_gemv has no option 'table': did you mean 'tables'"):
        prepare(codes, "cpu", op="bcq_gemv", table="int16")
    with pytest.raises(LutlabError, match="uniform_gemv has no option 'tables'"):
        prepare(codes, "cpu", op="uniform_gemv", tables="int16")
    with pytest.raises(LutlabError, match="uniform_gemv: q=3: codes of 1 to 3 bits are faster"):
        prepare(WEIGHTS["uniform planes"](), "cpu", op="uniform_gemv")
    with pytest.raises(LutlabError, match="bcq_gemv: it multiplies formats bcq and uniform"):
        prepare(pack(DenseTensor(torch.ones(4, 8))), "cpu", op="bcq_gemv")


def test_no_compiler_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("LUTLAB_CC", str(tmp_path / "none"))
    rows_gemv._library.cache_clear()
    assert "bcq_gemv: LUTLAB_CC" in prepare(WEIGHTS["planes"](), "cpu").describe(1, F32)
    with pytest.raises(LutlabError, match="bcq_gemv: LUTLAB_CC"):
        prepare(WEIGHTS["planes"](), "cpu", op="bcq_gemv")
