"""Groups of 2, 3 and 4 bits times x: shapes, dtypes, widths, outliers, plans, on the CPU; the same on a GPU."""

import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.checks import BF16, F16, F32, inputs, refused, relative_error
from tests.kernels.gpu import plans
from tests.mixed_weights import mixed_tensor

from lutlab.formats.mixed import PackedMixed
from lutlab.kernels.gpu import variants
from lutlab.kernels.gpu.lut_gemv import launcher
from lutlab.kernels.gpu.lut_gemv.variant import A100, GPUS, H200
from lutlab.kernels.gpu.mixed_gemv import mixed_tiles
from lutlab.kernels.gpu.mixed_gemv.product import MixedCase

OP = "mixed_gemv_gpu"
ASYNC, SYNC = (variants.variant(name, OP) for name in ("mixed_async", "mixed_sync"))
ERRORS = {F16: 2.5e-4, BF16: 2e-3, F32: 1e-6}
SMALL = {"warps": 2}


def weight(rows, columns, outliers=0, seed=0):
    """Groups of 4 bits in drawn places."""
    how = {"outliers": outliers, "shuffled": columns % 16 == 0, "seed": seed}
    return PackedMixed.pack(mixed_tensor(rows, columns, aligned=True, **how))


def product(variant, packed, x, knobs=SMALL, reverse=False):
    tiles = variant.packed(packed)
    plan = variant.plan_for(variant.case(tiles, x.dtype, len(x)), H200, knobs)
    return plans.run(plan, tiles, x, reverse=reverse, workspace={})


def check(packed, x, variant=ASYNC, knobs=SMALL):
    """Right, and the same to the last bit in both orders of threads and blocks."""
    y = product(variant, packed, x, knobs)
    weight = packed.dequantize().double()
    exact = x.double() @ weight.t()
    # One output may be a small difference of large sums: errors are of the size that a product of these has on average.
    usual = x.double().norm() * weight.norm() / weight.shape[1] ** 0.5
    assert (y.double() - exact).norm() <= ERRORS[x.dtype] * max(exact.norm(), usual)
    assert torch.equal(product(variant, packed, x, knobs, reverse=True), y)
    return y


@given(
    rows=st.integers(1, 60), columns=st.integers(1, 1100), outliers=st.integers(0, 40),
    knobs=st.sampled_from([SMALL, {"warps": 4, "slices": 3}, {"warps": 2, "stages": 2}]), seed=st.integers(0, 99),
)  # fmt: skip
@settings(deadline=None, max_examples=8)
def test_any_shape(rows, columns, outliers, knobs, seed):
    narrow = max(0, columns - 16 * -(-columns // 64))
    packed = weight(rows, columns, min(outliers, rows * narrow), seed)
    check(packed, inputs(1, columns, F32, seed), knobs=knobs)


@given(
    rows=st.integers(1, 40), columns=st.integers(1, 900), g=st.sampled_from([16, 16, 32, 80]),
    widths=st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=5).map(tuple), slices=st.sampled_from([1, 2]),
    seed=st.integers(0, 99),
)  # fmt: skip
@settings(deadline=None, max_examples=8)
def test_any_widths_by_group(rows, columns, g, widths, slices, seed):
    tensor = mixed_tensor(rows, columns, g, (*widths, 3, 4), seed % 2 == 0, seed=seed)
    x = inputs(1, columns, F32, seed)
    check(PackedMixed.pack(tensor), x, knobs=SMALL | {"slices": slices})


@pytest.mark.parametrize("widths", [(2,), (3,), (4,), (2, 4)])
def test_weights_without_some_width(widths):
    packed = PackedMixed.pack(mixed_tensor(19, 300, widths=widths, by_row=False))
    check(packed, inputs(1, 300, F16))


@pytest.mark.parametrize(("dtype", "m"), [(F16, 1), (F16, 3), (F16, 9), (BF16, 2), (F32, 3)])
def test_rows_of_x_and_types(dtype, m):
    packed, x = weight(33, 640, 100), inputs(m, 640, dtype)
    y = check(packed, x)
    assert torch.equal(product(ASYNC, packed, x[-1:]), y[-1:]), "a row depends on its neighbours"


@pytest.mark.parametrize("aligned", [True, False])
def test_the_twin_computes_the_same_bits(aligned):
    by_group = mixed_tensor(33, 700, widths=(2, 3, 2, 4, 2), outliers=150)
    packed = weight(40, 1500, 200) if aligned else PackedMixed.pack(by_group)
    x = inputs(2 if aligned else 5, packed.shape[1], F16)
    assert torch.equal(check(packed, x, SYNC), check(packed, x))


def test_many_outliers_of_one_row_and_none_of_others():
    """More than a thread loads ahead; in the slices of several blocks."""
    tensor = weight(17, 1024, 9).unpack()
    column = torch.arange(0, 1024, 3)
    column = column[(tensor.widths == 2)[column // 16]]
    outliers = {
        "outlier_count": torch.tensor([len(column) * (row == 5) for row in range(17)]).int(),
        "outlier_column": column.int(),
        "outlier_value": inputs(1, len(column), F16)[0],
    }
    tensor.codes[5, column] = tensor.zero_point[5, column // 16]
    packed = PackedMixed.pack(dataclasses.replace(tensor, **outliers))
    x = inputs(2, 1024, F16, outliers=True)
    for knobs in ({"warps": 1}, {"warps": 4, "slices": 2}):
        check(packed, x, knobs=knobs)


def test_integers_give_integers():
    """Every column meets its own x and every row its own scale: no sum has more bits than tensor cores keep."""
    tensor = mixed_tensor(48, 512, aligned=True)
    steps = {"scale_step": torch.ones_like(tensor.scale_step) * (tensor.scale_step > 0)}
    rows = {"row_scale": torch.arange(1, 49).half()}
    packed = PackedMixed.pack(dataclasses.replace(tensor, **steps, **rows))
    x = torch.randint(-8, 9, (2, 512), generator=torch.Generator().manual_seed(0)).float()
    assert torch.equal(product(ASYNC, packed, x), x @ packed.dequantize().t())


def test_x_from_the_least_float_to_the_greatest():
    packed = weight(20, 300, 20)
    for size, dtype in ((1e-36, BF16), (1e36, F32)):
        check(packed, (inputs(2, 300, F32).clamp(-3, 3) * size).to(dtype))
    x = inputs(3, 300, F16)
    x[1, 299] = torch.inf
    y = product(ASYNC, packed, x)
    assert y[1].isnan().all()
    assert torch.equal(y[[0, 2]], product(ASYNC, packed, inputs(3, 300, F16))[[0, 2]])


def test_tiles_hold_the_bits_of_the_blocks():
    packed = weight(32, 512)
    tiles = mixed_tiles.pack(packed)
    held = {"codes": ("blocks", "apart"), "scales": ("meta", "scale_step", "scale_zero")}
    for name, stored in held.items():
        assert tiles.buffers[name].nbytes == sum(getattr(packed, part).nbytes for part in stored)
    place = mixed_tiles.places(packed.widths)
    assert torch.equal(tiles.buffers["source"][place.long()], torch.arange(32, dtype=torch.int32))


def a_case(m=1, rows=12288, columns=12288, x=F16, outliers=0):
    return MixedCase(m, rows, columns, x, outliers)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.arch)
def test_resources(gpu):
    """Of what takes most registers; one more on two of them."""
    more = {"sm_86": (ASYNC, 2, F32), "sm_90": (SYNC, 1, F16)}
    for variant, m, x in filter(None, ((ASYNC, 4, F16), more.get(gpu.arch))):
        plans.check_resources(variant.plan_for(a_case(m, x=x, outliers=60), gpu), gpu)
    case = MixedCase(4, 12288, 12288, F16, 60, (34, 10, 4), by_row=False)
    plans.check_resources(ASYNC.plan_for(case, gpu), gpu)


def test_every_sm_has_work_and_enough_is_under_way():
    shapes = (12288, 12288), (4096, 11008), (4096, 4096), (12288, 49152)
    products = (1, F16), (4, F16), (4, F32)
    for gpu, (rows, columns), (m, x) in itertools.product((A100, H200), shapes, products):
        plan = ASYNC.plan_for(a_case(m, rows, columns, x), gpu)
        tiles, slices, _ = plan.steps[0].grid
        assert tiles * slices >= 0.9 * gpu.sms, "multiprocessors are left idle"
        of_rows = rows // 16
        turns = -(-of_rows // tiles)
        assert tiles * turns < 1.34 * of_rows, "the last turn is nearly empty"
        warps, stages, size = (plan.parameters[n] for n in ("WARPS", "STAGES", "STAGE_BYTES"))
        assert plan.blocks_per_sm * warps * (stages - 1) * size >= 16 * 1024
    assert ASYNC.plan_for(a_case(9, x=F32), H200).steps[0].grid[2] == 5
    assert ASYNC.readings(a_case(9, x=F32)) == 5
    assert ASYNC.plan_for(a_case(1, 1, 16), H200).steps[0].grid == (1, 1, 1)


def test_outliers_are_loaded_ahead_and_only_where_they_are_fused():
    for how, expected in (("fused", [0, 1, 2, 8]), ("cusparse", [0, 0, 0, 0])):
        cases = [a_case(outliers=most) for most in (0, 16, 25, 400)]
        planned = [ASYNC.plan_for(case, H200, {"outliers": how}) for case in cases]
        assert [plan.parameters["AHEAD"] for plan in planned] == expected


@pytest.mark.parametrize(("knobs", "x", "why"), [
    ({"stages": 1}, F16, "stages=1: give 2 to 8 chunks"),
    ({"warps": 3}, F16, "warps=3: give a power of two"),
    ({"slices": -1}, F16, "slices=-1: give the number of slices"),
    ({"outliers": "csr"}, F16, "outliers=csr: give fused"),
    ({"outliers": "cusparse"}, BF16, "cuSPARSE takes outliers in the dtype of x"),
    ({"slices": 1, "stages": 8, "warps": 16}, F32, "bytes of shared memory"),
])  # fmt: skip
def test_refuses(knobs, x, why):
    assert why in ASYNC.why_not(a_case(2, columns=49152, x=x), H200, knobs)


def test_what_does_not_exist_is_refused_in_words():
    refused("no kernel variant 'mixed': did you mean 'mixed_", variants.variant, "mixed", OP)
    refused("mixed_sync has no knob 'stages'", SYNC.plan_for, a_case(), H200, {"stages": 3})
    refused("x is torch.int8: the GPU kernels take", ASYNC.case, weight(4, 64), torch.int8)


@pytest.mark.gpu
@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (129, 97), (1023, 1056), (4096, 11008)])
@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
@pytest.mark.parametrize("name", variants.variants(OP))
@pytest.mark.parametrize("aligned", [True, False])
def test_on_a_gpu(aligned, name, dtype, rows, columns):
    variant = variants.variant(name, OP)
    if aligned:
        packed = weight(rows, columns, rows * columns // 500)
    else:
        packed = PackedMixed.pack(mixed_tensor(rows, columns, widths=(2, 3, 2, 4)))
    device, dense = torch.device("cuda", 0), packed.to("cuda").dequantize()
    tiles, here = variant.packed(packed).to("cuda"), launcher.gpu(launcher.device_of("cuda"))
    for m in (1, 2, 4, 9):
        x = inputs(m, columns, dtype, outliers=True).cuda()
        bound = launcher.Product(variant, tiles, dtype, device, here, {})
        y = bound(x)
        assert relative_error(y, x, dense) <= ERRORS[dtype]
        assert torch.equal(bound(x), y)
