"""lane_tables: every q, group size, dtype and awkward shape, and its banks, on the CPU; the same on a GPU."""

import pytest
import torch
from tests.kernels.gpu import cuda_on_host, plans
from tests.kernels.gpu import lut_gemv_matrix as matrix
from tests.kernels.gpu.cuda_on_host import needs_nvrtc
from tests.kernels.gpu.lut_gemv_matrix import BF16, F16, F32, check, inputs, weight

from lutlab.kernels.codegen import cuda
from lutlab.kernels.gpu.lut_gemv.lane_tables import VARIANT
from lutlab.kernels.gpu.lut_gemv.variant import A100, H200, RTX_3090, Case

SMALL = {"threads": 256, "tiles": 10}  # two warps take two tiles


@pytest.mark.parametrize("q", range(1, 9))
def test_every_q(q):
    """Each with a type of x and a shape in turn: neither changes what a plane is."""
    dtype = (F16, BF16, F32)[q % 3]
    rows, columns, g = ((90, 200, 32), (129, 65, 96), (5, 2080, -1))[q // 3]
    packed = weight(rows, columns, q, g, alpha="f16", offset="f16")
    check(VARIANT, packed, inputs(1, columns, dtype), knobs=SMALL)


def test_rows_columns_and_groups_around_tiles_and_slices():
    for rows in (1, 7, 8, 9, 80, 81):
        for columns, g in ((1, -1), (31, 32), (33, 32), (64, 128), (129, -1), (300, 160)):
            packed = weight(rows, columns, 2, g, alpha="f32", offset="f32")
            check(VARIANT, packed, inputs(1, columns, F32), knobs=SMALL)


@pytest.mark.parametrize("columns", [1023, 1024, 1025, 2049])
def test_groups_that_lie_in_two_slices(columns):
    for g in (32, 160, -1):
        packed = weight(11, columns, 2, g, alpha="f32", offset="f32")
        check(VARIANT, packed, inputs(1, columns, F32), knobs=SMALL)


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
@pytest.mark.parametrize("columns", [300, 1100])
def test_several_rows_of_x_an_order_and_no_offset(columns, dtype):
    packed = weight(37, columns, 3, 32, alpha="f32", ordered=True)
    for m in (2, 3):
        check(VARIANT, packed, inputs(m, columns, dtype), knobs=SMALL)
        if dtype != F32:
            check(VARIANT, packed, inputs(m, columns, dtype), knobs=SMALL | {"table": "pair"})


@pytest.mark.parametrize("q", [1, 3, 8])
def test_pairs_of_rows_of_x(q):
    packed = weight(81, 200, q, 64, alpha="f16", offset="f16")
    x = inputs(3, 200, F16)
    x[1] *= 100  # each row has its own unit
    y = check(VARIANT, packed, x, knobs=SMALL | {"table": "pair"})
    for row in range(3):
        one = x[row : row + 1]
        assert matrix.error(y[row : row + 1], packed, one) <= matrix.HALF


@pytest.mark.parametrize("q", [1, 3])
def test_the_defaults(q):
    packed = weight(300, 1100, q, 128, alpha="f16", offset="f16")
    check(VARIANT, packed, inputs(1, 1100, F16))


@pytest.mark.parametrize("gpu", [RTX_3090, H200], ids=lambda gpu: gpu.arch)
def test_outliers(gpu):
    packed = weight(200, 1024, 3, 128, alpha="f16", offset="f16")
    for dtype in (F16, BF16):
        check(VARIANT, packed, inputs(1, 1024, dtype, outliers=True), gpu=gpu)


@pytest.mark.parametrize("table", ["half", "pair", "float"])
def test_the_range_of_bfloat16(table):
    dtypes = (BF16, F32) if table == "float" else (BF16,)
    matrix.check_range(VARIANT, dtypes=dtypes, knobs=SMALL | {"table": table})


@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0, 8191.0])
def test_tables_in_half_take_tiny_and_huge_activations(size):
    packed = weight(64, 256, 1, 32, alpha="f32")
    object.__setattr__(packed, "alpha", packed.alpha / 1000)
    x = inputs(1, 256, F32).clamp(-1, 1) * size
    y = plans.product(VARIANT, packed, x, knobs=SMALL | {"table": "half"})
    assert matrix.error(y, packed, x) <= matrix.HALF


def test_workspace_serves_many_launches():
    packed = weight(130, 1300, 3, 64, alpha="f16", offset="f16")
    workspace, x = {}, inputs(1, 1300, F16)
    results = [
        plans.product(VARIANT, packed, x, knobs=SMALL, workspace=workspace, reverse=reverse)
        for reverse in (False, True, False)
    ]
    assert sorted(workspace) == ["arrived", "partial"]
    assert all(result.equal(results[0]) for result in results)


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


@needs_nvrtc
@pytest.mark.parametrize(
    ("gpu", "q", "dtype"),
    matrix.in_turn([(1, F16), (3, F16), (3, BF16), (8, F16)])
    + matrix.in_turn([(3, F32)], (H200, A100)),
)
def test_resources(gpu, q, dtype):
    scales = F32 if dtype == F32 else F16
    case = Case(1, 49152, 12288, q, 128, dtype, scales, scales)
    matrix.check_resources(VARIANT, case, gpu)


def test_tables_of_floats_are_too_large_for_a_small_gpu():
    case = Case(1, 49152, 12288, 3, 128, F32, F32, F32)
    assert "131072 bytes of shared memory" in VARIANT.why_not(case, RTX_3090)


@needs_nvrtc
@pytest.mark.parametrize(
    ("gpu", "q", "dtype"),
    matrix.in_turn([(1, F16), (2, F16), (3, F16), (3, BF16), (8, F16)], (A100, H200)),
)
def test_resources_of_pairs(gpu, q, dtype):
    case = Case(2, 49152, 12288, q, 128, dtype, F16, F16)
    matrix.check_resources(VARIANT, case, gpu, {"table": "pair"})


@needs_nvrtc
@pytest.mark.parametrize("gpu", [A100, H200], ids=lambda gpu: gpu.arch)
def test_tables_in_half_share_an_sm(gpu):
    case = Case(1, 49152, 12288, 3, 128, F16, F16, F16)
    assert VARIANT.plan_for(case, gpu, {"table": "half"}).blocks_per_sm == 2
    matrix.check_resources(VARIANT, case, gpu, {"table": "half"})


def test_grids_and_workspace():
    matrix.check_grids(VARIANT)
    for gpu, blocks in ((A100, 9), (H200, 11)):
        for rows in (12288, 49152):
            plan = VARIANT.plan_for(Case(1, rows, 12288, 3, 128, F16, F16, F16), gpu)
            assert plan.steps[0].grid == (blocks, 12, 1)  # as many as there are SMs
            assert plan.workspace["partial"] == 12 * rows * 4
            assert plan.zeroed["arrived"] == blocks * 4


@pytest.mark.parametrize(
    ("knobs", "g", "why"),
    [
        ({"threads": 128}, 32, "256, 512, 1024, or 0"),
        ({"tiles": -1}, 32, "tiles of rows a block takes"),
        ({"table": "int"}, 32, "float, half or pair"),
        ({}, 40, "g=40: lane_tables takes groups that are multiples of 32"),
        ({}, 16, "g=16: lane_tables takes groups that are multiples of 32"),
    ],
)
def test_refuses(knobs, g, why):
    assert why in VARIANT.why_not(Case(1, 64, 4096, 3, g, F16, F16, None), H200, knobs)


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns", "q", "g", "m", "dtype"), matrix.GPU_PRODUCTS)
def test_on_a_gpu(rows, columns, q, g, m, dtype):
    packed = weight(rows, columns, q, g, alpha="f16", offset="f16")
    matrix.check_on_gpu(VARIANT, packed, inputs(m, columns, dtype, outliers=True))
