"""The kernel chosen for a packed weight, and the operation that torch sees."""

from __future__ import annotations

import pytest
import torch
from tests.kernels.weights import bcq_tensor, relative_error, uniform_tensor

from lutlab.errors import LutlabError
from lutlab.formats import bcq
from lutlab.kernels.codegen.compiler import NoCompiler
from lutlab.kernels.codegen.isa import detect
from lutlab.kernels.cpu import linear
from lutlab.kernels.cpu.linear import cpu_linear
from lutlab.kernels.cpu.rows_gemv import prefetch_bytes

N, K = 40, 72
WEIGHTS = {
    "planes": lambda: bcq.pack(bcq_tensor(N, K, 3, 16, offset="f32", ordered=True)),
    "uniform planes": lambda: bcq.pack(bcq.from_uniform(uniform_tensor(N, K, 3, 16))),
    "codes": lambda: bcq.pack(bcq.from_uniform(uniform_tensor(N, K, 4, 16, ordered=True))),
}


def inputs(rows, dtype=torch.float32):
    return torch.randn(rows, K, generator=torch.Generator().manual_seed(5)).to(dtype)


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("rows", [1, 5, 800])
def test_multiplies_few_rows_and_many(kind, rows):
    packed = WEIGHTS[kind]()
    x = inputs(rows)
    chosen = cpu_linear(packed)
    y = chosen(x)
    assert chosen.few(x) == (rows < chosen.kernel.dense_rows)
    assert y.shape == (rows, N)
    assert relative_error(y, x, packed.dequantize()) < 1e-6


@pytest.mark.parametrize(
    ("dtype", "limit"), [(torch.float16, 1e-3), (torch.bfloat16, 8e-3)], ids=str
)
@pytest.mark.parametrize("rows", [2, 800])
def test_half_precision_stays_half_precision(dtype, limit, rows):
    packed = WEIGHTS["planes"]()
    x = inputs(rows, dtype)
    y = cpu_linear(packed)(x)
    assert y.dtype == dtype
    assert relative_error(y, x, packed.dequantize()) < limit


@pytest.mark.parametrize(
    ("kind", "layout", "variant"),
    [
        ("planes", "planes 40 72 3 16 512 float16 float32 4 exact {}", "bcq lut"),
        ("uniform planes", "planes 40 72 3 16 512 float16 int16 4 exact {}", "bcq lut"),
        ("codes", "fields 40 72 4 16 1024 float16 None 4 exact {}", "uniform convert"),
    ],
)
def test_uniform_codes_take_the_faster_of_their_two_layouts(kind, layout, variant):
    chosen = cpu_linear(WEIGHTS[kind]())
    threads = torch.get_num_threads()
    assert chosen.layout == layout.format(prefetch_bytes(detect()))
    assert chosen.describe(few=True) == f"{variant}, {detect().name}, {threads} threads"
    assert chosen.describe(few=False).startswith(f"dequantize every call ({variant}, ")


@pytest.mark.parametrize("kind", WEIGHTS)
def test_torch_sees_one_operation_with_the_shape_it_says(kind):
    chosen = cpu_linear(WEIGHTS[kind]())
    graphs = []

    def look(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: chosen(x), backend=look, fullgraph=True)
    assert torch.equal(compiled(inputs(2)), chosen(inputs(2)))
    assert "rows_gemv" in graphs[0].code
    torch.library.opcheck(
        torch.ops.lutlab.rows_gemv.default,
        (inputs(2), chosen.packed.stream, chosen.channels, chosen.layout),
        test_utils=("test_schema", "test_faketensor"),
    )


@pytest.mark.parametrize("kind", ["planes", "codes"])
def test_a_named_choice_of_tables_is_in_the_name_of_what_ran(kind):
    tensor = uniform_tensor(N, K, 4, 32)
    plain = bcq_tensor(N, K, 4, 32) if kind == "planes" else bcq.from_uniform(tensor)
    packed, x = bcq.pack(plain), inputs(1)
    exact = cpu_linear(packed)
    assert relative_error(exact(x), x, packed.dequantize()) < 1e-6
    if detect().name not in ("avx2", "avx512"):
        with pytest.raises(LutlabError, match=f"built for {detect().name}: take tables=exact"):
            cpu_linear(packed, "int16")
        return
    quick = cpu_linear(packed, "int16")
    assert quick.describe(few=True).startswith(("bcq lut int16, avx512", "bcq lut int18, avx2"))
    assert 1e-6 < relative_error(quick(x), x, packed.dequantize()) < 1e-4
    assert not exact.describe(few=True).startswith(("bcq lut int16", "bcq lut int18"))


def test_groups_that_share_a_word_have_tables_of_floats_only_and_the_name_says_so():
    assert cpu_linear(WEIGHTS["planes"]()).describe(few=True).startswith("bcq lut, ")


def test_unknown_tables_are_refused(monkeypatch):
    with pytest.raises(LutlabError, match=r"tables=int61.*int16"):
        cpu_linear(WEIGHTS["planes"](), "int61")
    monkeypatch.setenv("LUTLAB_ISA", "portable")
    with pytest.raises(LutlabError, match="kernels are built for portable"):
        cpu_linear(WEIGHTS["planes"](), "int16")


def test_a_group_size_without_a_kernel_is_refused():
    with pytest.raises(LutlabError, match="13"):
        cpu_linear(bcq.pack(bcq_tensor(N, K, 3, 13)))


def test_no_compiler_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("LUTLAB_CC", str(tmp_path / "none"))
    linear._kernel.cache_clear()
    with pytest.raises(NoCompiler, match="LUTLAB_CC"):
        cpu_linear(WEIGHTS["planes"]())
