"""lane_tables: its tables of halves, pairs and floats, and its banks. See test_variants.py."""

import pytest
import torch
from tests.kernels.checks import BF16, F16, F32, inputs
from tests.kernels.gpu import cuda_on_host
from tests.kernels.gpu import lut_gemv_matrix as matrix
from tests.kernels.gpu.lut_gemv_matrix import weight

from lutlab.kernels.codegen import cuda
from lutlab.kernels.gpu.lut_gemv.variant import A100, H200, Case

VARIANT, product, check = matrix.tried("lane_tables")


@pytest.mark.parametrize(("q", "dtype", "columns"), [(1, F16, 200), (3, F16, 1100), (8, BF16, 300)])
def test_pairs_of_rows_of_x(q, dtype, columns):
    packed, x = weight(81, columns, q, 64, ordered=True), inputs(3, columns, dtype)
    x[1] *= 100  # each row has its own unit
    matrix.check_rows(VARIANT, packed, x, check(packed, x, table="pair"))


@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0, 8191.0])
def test_tables_in_half_take_tiny_and_huge_activations(size):
    packed = weight(64, 256, 1, 32, alpha="f32")
    object.__setattr__(packed, "alpha", packed.alpha / 1000)
    x = inputs(1, 256).clamp(-1, 1) * size
    assert matrix.error(product(packed, x, table="half"), packed, x) <= matrix.HALF


PROBE = """
extern "C" __global__ void probe(const word_t *words, int *bytes) {  // [32 lanes] -> [TABLES][32 lanes]
    const unsigned lane = threadIdx.x;
    for (int j = 0; j < TABLES; j++)
        bytes[j * 32 + lane] = table_start(j) + static_cast<int>(entry_byte(words[lane], j, 4 * lane));
}
"""


def probe(table):
    case = Case(1, 64, 1024, 3, 128, F32, F16, F16)
    plan = VARIANT.plan_for(case, H200, {"table": table})
    text = cuda.source(plan.file, plan.parameters) + PROBE
    return cuda_on_host.build(text, ("probe",)), plan.steps[0].shared


def addresses(kernels, words):
    """[4, 32]: the byte that each lane reads of each table, by the kernel's own functions."""
    out = torch.empty(4, 32, dtype=torch.int32)
    cuda_on_host.launch(kernels, "probe", words, out)
    return out


@pytest.mark.parametrize("table", ["float", "half", "pair"])
def test_every_lane_reads_its_own_bank(table):
    kernels, shared = probe(table)
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        at = addresses(kernels, torch.randint(-(2**31), 2**31, (32,), generator=generator).int())
        assert 0 <= at.min() <= at.max() < shared
        assert torch.equal(at // 4 % 32, torch.arange(32).expand(4, 32))


@pytest.mark.parametrize(("table", "size"), [("float", 4), ("half", 2), ("pair", 4)])
def test_entries_fill_shared_memory_and_none_is_shared(table, size):
    kernels, shared = probe(table)
    places = [addresses(kernels, torch.full((32,), i * 0x01010101).int()) for i in range(256)]
    assert torch.equal(torch.stack(places).flatten().msort(), torch.arange(0, shared, size).int())


def test_grids_and_workspace():
    for gpu, blocks in ((A100, 9), (H200, 11)):
        for rows in (12288, 49152):
            case = Case(1, rows, 12288, 3, 128, F16, F16, F16)
            plan = VARIANT.plan_for(case, gpu)
            assert plan.steps[0].grid == (blocks, 12, 1)  # as many as there are SMs
            assert plan.workspace["partial"] == 12 * rows * 4
            assert plan.zeroed["arrived"] == blocks * 4
        assert VARIANT.plan_for(case, gpu, {"table": "half"}).blocks_per_sm == 2
