"""small_tables: every q, mu, group size, dtype and awkward shape, and its banks, on the CPU; the same on a GPU."""

import pytest
import torch
from tests.kernels.gpu import cuda_on_host, plans
from tests.kernels.gpu import lut_gemv_matrix as matrix
from tests.kernels.gpu.cuda_on_host import needs_nvrtc
from tests.kernels.gpu.lut_gemv_matrix import BF16, F16, F32, check, inputs, weight

from lutlab.kernels.codegen import cuda
from lutlab.kernels.gpu.lut_gemv.small_tables import VARIANT
from lutlab.kernels.gpu.lut_gemv.variant import A100, H200, Case, Gpu

ONE_SM = Gpu("sm_90", 1, 232_448, 233_472)  # a block does all rows, in several passes
SMALL = {"threads": 128}


@pytest.mark.parametrize("q", range(1, 9))
def test_every_q(q):
    """Each with a type of x and a shape in turn: neither changes what a plane is."""
    dtype = (F16, BF16, F32)[q % 3]
    rows, columns, g = ((70, 600, 32), (128, 64, -1), (129, 65, 96))[q // 3]
    packed = weight(rows, columns, q, g, alpha="f16", offset="f16")
    check(VARIANT, packed, inputs(1, columns, dtype), knobs=SMALL)


@pytest.mark.parametrize(
    ("table", "mu"), [("half", 6), ("half", 5), ("half", 3), ("float", 4), ("float", 1)]
)
def test_every_kind_of_table(table, mu):
    packed = weight(70, 200, 3, 64, alpha="f16", offset="f16")
    knobs = SMALL | {"table": table, "mu": mu}
    x = inputs(1, 200, F16)
    y = plans.product(VARIANT, packed, x, knobs=knobs)
    assert matrix.error(y, packed, x) <= matrix.HALF
    if table == "float":
        check(VARIANT, packed, x.float(), knobs=knobs)


@pytest.mark.parametrize("slices", [1, 2, 3])
def test_rows_columns_and_groups_around_tiles_and_slices(slices):
    for rows in (1, 3, 127, 129, 260):
        for columns, g in (
            (1, -1),
            (31, 32),
            (33, 32),
            (64, 128),
            (129, -1),
            (300, 160),
            (600, 96),
        ):
            packed = weight(rows, columns, 2, g, alpha="f32", offset="f32")
            knobs = SMALL | {"slices": slices}
            check(VARIANT, packed, inputs(1, columns, F32), knobs=knobs, gpu=ONE_SM)


def test_several_rows_of_x_an_order_and_no_offset():
    packed = weight(37, 200, 3, 32, alpha="f32", ordered=True)
    for dtype in (F16, BF16):
        check(VARIANT, packed, inputs(3, 200, dtype), knobs=SMALL | {"slices": 2})


@pytest.mark.parametrize("q", [1, 3])
def test_the_defaults(q):
    packed = weight(300, 1100, q, 128, alpha="f16", offset="f16")
    check(VARIANT, packed, inputs(1, 1100, F16))


@pytest.mark.parametrize("table", ["half", "float"])
def test_outliers(table):
    packed = weight(200, 1024, 3, 128, alpha="f16", offset="f16")
    for dtype in (F16, BF16):
        check(VARIANT, packed, inputs(1, 1024, dtype, outliers=True), knobs={"table": table})


@pytest.mark.parametrize("table", ["half", "float"])
def test_the_range_of_bfloat16(table):
    dtypes = (BF16,) if table == "half" else (BF16, F32)
    matrix.check_range(VARIANT, dtypes=dtypes, knobs=SMALL | {"table": table})


@pytest.mark.parametrize("size", [1e-6, 1e-3, 1.0, 8191.0])
def test_tables_in_half_take_tiny_and_huge_activations(size):
    packed = weight(64, 256, 1, 32, alpha="f32")
    object.__setattr__(packed, "alpha", packed.alpha / 1000)
    x = inputs(1, 256, F32).clamp(-1, 1) * size
    y = plans.product(VARIANT, packed, x, knobs=SMALL | {"table": "half"})
    assert matrix.error(y, packed, x) <= matrix.HALF


def test_workspace_serves_many_launches():
    packed = weight(130, 300, 3, 64, alpha="f16", offset="f16")
    workspace, x, knobs = {}, inputs(1, 300, F16), SMALL | {"slices": 3}
    results = [
        plans.product(VARIANT, packed, x, knobs=knobs, workspace=workspace, reverse=reverse)
        for reverse in (False, True, False)
    ]
    assert sorted(workspace) == ["arrived", "partial"]
    assert all(result.equal(results[0]) for result in results)


# ---- banks ----

PROBE = """
extern "C" __global__ void probe(const word_t *words, int *bytes, int start, int rest) {  // -> [fields][32 lanes]
    for (int f = 0; f < FIELDS; f++)
        bytes[f * 32 + threadIdx.x] = f * TABLE_BYTES + entry_byte<MU>(words[threadIdx.x], f * MU, start);
    bytes[FIELDS * 32 + threadIdx.x] = entry_byte<REST>(words[threadIdx.x], FIELDS * MU, rest);
}
"""


def probe(table):
    case = Case(1, 64, 1024, 3, 128, F32, F16, F16)
    plan = VARIANT.plan_for(case, H200, {"table": table})
    text = cuda.source(plan.file, plan.parameters) + PROBE
    return cuda_on_host.build(text, ("probe",)), 32 // plan.parameters["MU"]


def addresses(kernels, fields, words, start, rest):
    """[fields + 1, 32]: the byte that each lane reads of each table, by the kernel's own function."""
    out = torch.empty(fields + 1, 32, dtype=torch.int32)
    cuda_on_host.launch(
        kernels, "probe", grid=(1, 1, 1), block=(32, 1, 1), arguments=[words, out, start, rest]
    )
    return out


def random_words(count=32):
    return torch.randint(-(2**31), 2**31, (count,)).int()


@pytest.mark.parametrize(("table", "size"), [("float", 4), ("half", 2)])
def test_lanes_that_read_one_bank_read_one_word_of_it(table, size):
    kernels, fields = probe(table)
    torch.manual_seed(0)
    for word in range(100):
        start, rest = word * fields * 128, 32 * fields * 128 + word * 4 * size
        for at in addresses(kernels, fields, random_words(), start, rest):
            words = (at // 4).unique()
            assert len((words % 32).unique()) == len(words)


@pytest.mark.parametrize(("table", "size"), [("float", 4), ("half", 2)])
def test_tables_of_a_word_lie_side_by_side(table, size):
    kernels, fields = probe(table)
    torch.manual_seed(0)
    start, rest = 3 * fields * 128, 8 * fields * 128 + 3 * 4 * size
    at = torch.cat([addresses(kernels, fields, random_words(), start, rest) for _ in range(60)], 1)
    for f in range(fields):
        there = torch.arange(start + f * 128, start + f * 128 + 128, size).int()
        assert torch.equal(at[f].unique(), there)
    assert torch.equal(at[fields].unique(), torch.arange(rest, rest + 4 * size, size).int())


# ---- plans ----


@needs_nvrtc
@pytest.mark.parametrize(
    ("gpu", "q", "dtype"),
    matrix.in_turn([(1, F16), (3, F16), (3, BF16), (3, F32), (8, F32)]),
)
def test_resources(gpu, q, dtype):
    scales = F32 if dtype == F32 else F16
    case = Case(1, 49152, 12288, q, 128, dtype, scales, scales)
    matrix.check_resources(VARIANT, case, gpu)


@needs_nvrtc
def test_resources_of_tables_in_half():
    case = Case(1, 4096, 4096, 3, 128, F16, F16, F16)
    matrix.check_resources(VARIANT, case, H200, {"table": "half"})


def test_grids_and_workspace():
    matrix.check_grids(VARIANT)
    for gpu in (A100, H200):
        for rows in (12288, 49152):
            plan = VARIANT.plan_for(Case(1, rows, 12288, 3, 128, F16, F16, F16), gpu)
            blocks, slices, _ = plan.steps[0].grid
            assert 0.85 * gpu.sms <= blocks * slices <= gpu.sms
            assert plan.workspace["partial"].bytes == slices * rows * 4
            assert plan.workspace["arrived"].bytes == blocks * 4


@pytest.mark.parametrize(
    ("knobs", "g", "why"),
    [
        ({"mu": 6}, 32, "more than 128 bytes has bank conflicts: give 1 to 5"),
        ({"mu": 7, "table": "half"}, 32, "give 1 to 6"),
        ({"threads": 100}, 32, "128, 256 or 512"),
        ({"slices": -1}, 32, "into how many slices"),
        ({"table": "int"}, 32, "half or float"),
        ({}, 40, "g=40: small_tables takes groups that are multiples of 32"),
        ({"slices": 1}, 32, "bytes of shared memory"),
    ],
)
def test_refuses(knobs, g, why):
    assert why in VARIANT.why_not(Case(1, 64, 12288, 3, g, F16, F16, None), H200, knobs)


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns", "q", "g", "m", "dtype"), matrix.GPU_PRODUCTS)
def test_on_a_gpu(rows, columns, q, g, m, dtype):
    packed = weight(rows, columns, q, g, alpha="f16", offset="f16")
    matrix.check_on_gpu(VARIANT, packed, inputs(m, columns, dtype, outliers=True))
