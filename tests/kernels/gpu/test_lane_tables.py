"""lane_tables: its tables of halves, pairs and floats, and its banks. See test_variants.py."""

import pytest
import torch
from tests.kernels.gpu import cuda_on_host, plans
from tests.kernels.gpu import lut_gemv_matrix as matrix
from tests.kernels.gpu.lut_gemv_matrix import BF16, F16, F32, check, inputs, weight

from lutlab.kernels.codegen import cuda
from lutlab.kernels.gpu.lut_gemv.lane_tables import VARIANT
from lutlab.kernels.gpu.lut_gemv.variant import A100, H200, RTX_3090, Case

SMALL = {"threads": 256, "tiles": 10}  # two warps take two tiles


@pytest.mark.parametrize(("q", "dtype", "columns"), [(1, F16, 200), (3, F16, 1100), (8, BF16, 300)])
def test_pairs_of_rows_of_x(q, dtype, columns):
    packed = weight(81, columns, q, 64, alpha="f16", ordered=True)
    x = inputs(3, columns, dtype)
    x[1] *= 100  # each row has its own unit
    y = check(VARIANT, packed, x, knobs=SMALL | {"table": "pair"})
    for row in range(3):
        one = x[row : row + 1]
        assert matrix.error(y[row : row + 1], packed, one) <= matrix.allowed(VARIANT, packed, one)


@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0, 8191.0])
def test_tables_in_half_take_tiny_and_huge_activations(size):
    packed = weight(64, 256, 1, 32, alpha="f32")
    object.__setattr__(packed, "alpha", packed.alpha / 1000)
    x = inputs(1, 256, F32).clamp(-1, 1) * size
    y = plans.product(VARIANT, packed, x, knobs=SMALL | {"table": "half"})
    assert matrix.error(y, packed, x) <= matrix.HALF


# ---- banks ----

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
    cuda_on_host.launch(kernels, "probe", grid=(1, 1, 1), block=(32, 1, 1), arguments=[words, out])
    return out


@pytest.mark.parametrize("table", ["float", "half", "pair"])
def test_every_lane_reads_its_own_bank(table):
    kernels, shared = probe(table)
    generator = torch.Generator().manual_seed(0)
    for _ in range(200):
        words = torch.randint(-(2**31), 2**31, (32,), generator=generator).int()
        at = addresses(kernels, words)
        assert at.min() >= 0
        assert at.max() < shared
        assert torch.equal(at // 4 % 32, torch.arange(32).expand(4, 32))


@pytest.mark.parametrize(("table", "size"), [("float", 4), ("half", 2), ("pair", 4)])
def test_entries_fill_shared_memory_and_none_is_shared(table, size):
    kernels, shared = probe(table)
    places = [addresses(kernels, torch.full((32,), i * 0x01010101).int()) for i in range(256)]
    places = torch.stack(places).flatten().sort().values
    assert torch.equal(places, torch.arange(0, shared, size).int())


# ---- plans ----


def test_tables_of_floats_are_too_large_for_a_small_gpu():
    case = Case(1, 49152, 12288, 3, 128, F32, F32, F32)
    assert "131072 bytes of shared memory" in VARIANT.why_not(case, RTX_3090)


def test_grids_and_workspace():
    for gpu, blocks in ((A100, 9), (H200, 11)):
        for rows in (12288, 49152):
            plan = VARIANT.plan_for(Case(1, rows, 12288, 3, 128, F16, F16, F16), gpu)
            assert plan.steps[0].grid == (blocks, 12, 1)  # as many as there are SMs
            assert plan.workspace["partial"] == 12 * rows * 4
            assert plan.zeroed["arrived"] == blocks * 4
        case = Case(1, 49152, 12288, 3, 128, F16, F16, F16)
        assert VARIANT.plan_for(case, gpu, {"table": "half"}).blocks_per_sm == 2
