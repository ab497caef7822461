"""The contract of every variant, on the CPU (plans.py) and on a GPU: bits, groups, types, shapes, ranges, limits.

What is one variant's own idea is tested in the file of its name.
"""

import itertools
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.checks import BF16, F16, F32, inputs
from tests.kernels.gpu import lut_gemv_matrix as matrix
from tests.kernels.gpu import plans
from tests.kernels.gpu.cuda_on_host import needs_nvrtc

from lutlab.kernels.gpu import variants
from lutlab.kernels.gpu.lut_gemv.variant import A100, GPUS, H200, RTX_3090, Case

OF_32 = (32, 64, 96, 128, 160, 256, 416, -1)


@dataclass(frozen=True)
class Trial:
    """How a variant is tried.

    shapes: (rows, columns, g) about its tiles, slices and blocks of columns; m: rows of x about those that share a
    reading; drawn: further knobs; ranges: knobs and types of x that hold all of their exponents; alone: whether a row
    of x has the same y without its neighbours; contained: whether what is not finite stays in its row of x; compiled:
    changes of a large case, with their knobs under "knobs".
    """

    shapes: list[tuple[int, int, int]]
    compiled: list[dict[str, Any]]
    m: tuple[int, ...] = (3,)
    bits: tuple[int, ...] = tuple(range(1, 9))
    types: tuple[torch.dtype, ...] = (F16, BF16, F32)
    groups: tuple[int, ...] = OF_32
    drawn: dict[str, st.SearchStrategy] = field(default_factory=dict)
    ranges: list[tuple[dict[str, Any], tuple[torch.dtype, ...]]] = field(default_factory=list)
    least: float = 1e-38
    workspace: tuple[str, ...] = ()
    gpus: tuple = GPUS
    alone: bool = True
    contained: bool = True


ALL_FLOAT = {"x": F32, "alpha": F32, "offset": F32}
TRIALS = {
    "paper": Trial(
        [(1, 1, 64), (2, 33, 24), (31, 65, 96), (64, 31, 32), (65, 64, 40), (129, 130, -1)],
        compiled=[{"x": F16}, {"x": F32}],
        types=(F16, F32), groups=(24, 32, 40, 96, -1), contained=False,
        drawn={"mu": st.sampled_from([3, 8]), "luts": st.sampled_from([3, 4])},
    ),
    "optq": Trial(
        [(1, 1, -1), (65, 200, 32), (64, 129, -1), (130, 65, 96)],
        compiled=[{"bits": q} for q in (2, 3, 4)],
        bits=(2, 3, 4), types=(F16,), contained=False,
    ),
    "lane_tables": Trial(
        [*((1, 1, -1), (7, 31, 32), (8, 33, 32), (9, 64, 128), (80, 129, -1), (81, 300, 160)),
         *((11, columns, g) for columns in (1023, 1024, 1025, 2049) for g in (32, 160, -1))],
        compiled=[
            *({"bits": q} for q in (1, 3, 8)), {"x": BF16},
            *({"m": 2, "bits": q, "knobs": {"table": "pair"}} for q in (1, 2, 3, 8)),
            {"m": 2, "x": BF16, "knobs": {"table": "pair"}},
            {"knobs": {"table": "half"}}, ALL_FLOAT | {"knobs": {"table": "float"}},
        ],
        m=(2, 3), gpus=(A100, H200), workspace=("arrived", "partial"), alone=False, contained=False,
        ranges=[({"table": "half"}, (BF16,)), ({"table": "pair"}, (BF16,)), ({"table": "float"}, (BF16, F32))],
    ),
    "bit_planes": Trial(
        [*((1, 1, -1), (31, 31, 128), (32, 127, 96), (33, 128, -1), (1, 129, 128)),
         *((rows, columns, g) for rows, columns in ((33, 129), (5, 1)) for g in (32, 64))],
        compiled=[
            {}, {"bits": 1, "group_size": 64}, {"m": 4, "rows": 4096, "group_size": 32} | ALL_FLOAT, {"x": BF16},
        ],
        m=(2, 4, 5), drawn={"slices": st.integers(1, 5)}, ranges=[({}, (BF16, F32))],
        least=1e-29,  # of a block's largest, as the module says
        workspace=("arrived", "partial", "progress", "records"),
    ),
    "uniform_mma": Trial(
        [(1, 31, 64), (16, 129, 96), (31, 512, 128), (33, 900, 256), (65, 513, 384)],
        compiled=[{"bits": q} | more for q in (2, 3, 4, 8) for more in (
            {}, {"m": 16}, {"group_size": 32}, {"m": 16, "group_size": 32, "alpha": F32}, {"m": 16, "x": BF16},
        )],
        m=(2, 7, 8, 9, 16, 17, 35), types=(F16, BF16), ranges=[({}, (BF16,))], workspace=("arrived", "partial"),
    ),
}  # fmt: skip
# Knobs, changes of a case, a part of the reason.
REFUSED = [
    ("paper", {"mu": 9}, {}, "mu is 1 to 8"),
    ("paper", {"luts": 0}, {}, "at least one table"),
    ("paper", {"rows": 3}, {}, "even number of rows"),
    ("paper", {"threads": 48}, {}, "a power of two"),
    ("paper", {"luts": 128}, {"group_size": 4096}, "more than 48 KB"),
    ("optq", {}, {"uniform": False}, "no uniform codes with one scale a group"),
    ("optq", {}, {"bits": 5}, "tables of pairs of 2 to 4 bits"),
    ("optq", {}, {"x": F32}, "convert x to float16"),
    ("optq", {}, {"group_size": 40}, "g=40"),
    ("optq", {"threads": 100}, {}, "a power of two"),
    ("optq", {"columns": 40}, {}, "a multiple of 32 columns"),
    ("lane_tables", {"threads": 128}, {}, "256, 512, 1024, or 0"),
    ("lane_tables", {"tiles": -1}, {}, "tiles of rows a block takes"),
    ("lane_tables", {"table": "int"}, {}, "float, half or pair"),
    ("lane_tables", {}, {"group_size": 16}, "g=16: lane_tables takes groups that are"),
    ("lane_tables", {}, {"group_size": 40}, "takes groups that are multiples of 32"),
    ("bit_planes", {"x_bits": 7}, {}, "8 to 24 bits"),
    ("bit_planes", {"x_bits": 25}, {}, "8 to 24 bits"),
    ("bit_planes", {"tiles": 3}, {}, "1, 2 or 4 tiles"),
    ("bit_planes", {"warps": 3}, {}, "a power of two up to 16"),
    ("bit_planes", {"stages": 1}, {}, "2 to 16 blocks"),
    ("bit_planes", {"slices": -1}, {}, "number of slices"),
    ("bit_planes", {"launches": 3}, {}, "launches=3: planes of x"),
    ("bit_planes", {"stages": 16, "warps": 16}, {"group_size": 32}, "bytes of shared memory"),
    ("bit_planes", {}, {"group_size": 40}, "takes groups that are multiples of 32"),
    ("uniform_mma", {}, {"uniform": False}, "no uniform codes with one scale a group"),
    ("uniform_mma", {}, {"x": F32}, "convert x to float16 or bfloat16"),
    ("uniform_mma", {"warps": 3}, {}, "1, 2, 4, 8 or 16 warps"),
    ("uniform_mma", {"slice": 300}, {}, "a multiple of 256 columns"),
    ("uniform_mma", {}, {"group_size": 40}, "takes groups that are multiples of 32"),
]
by_variant = pytest.mark.parametrize("name", TRIALS)


def by_trial(fields, cases):
    """Variants, each with the cases of its trial."""
    pairs = [(name, *case) for name, trial in TRIALS.items() for case in cases(trial)]
    return pytest.mark.parametrize(("name", *fields), pairs)


def promised(promise):
    """Variants that promise something."""
    return pytest.mark.parametrize("name", [n for n, trial in TRIALS.items() if promise(trial)])


def tried(name):
    """A variant, how it is tried, what makes a weight that it takes, its product and check with small knobs."""
    variant, *functions = matrix.tried(name)
    return variant, TRIALS[name], matrix.codes if variant.codes else matrix.weight, *functions


def large(name, **changes):
    """A large case that a variant takes."""
    plain = {"m": 1, "rows": 49152, "columns": 12288, "bits": 3, "group_size": 128, "x": F16}
    uniform = variants.variant(name).codes
    return Case(**{**plain, "alpha": F16, "offset": F16, "uniform": uniform, **changes})


def test_every_variant_is_tried():
    assert TRIALS.keys() == variants.variants().keys()


@by_trial(("q",), lambda trial: zip(trial.bits))
def test_every_q(name, q):
    """Each with a type of x, shape and number of its rows in turn: none of them changes what a plane or a code is."""
    _, trial, make, _, check = tried(name)
    rows, columns, g = ((70, 200, 32), (31, 520, -1), (33, 400, 128))[q % 3]
    x = inputs(1 + q % 2, columns, trial.types[q // 3 % len(trial.types)])
    check(make(rows, columns, q, g, offset="f16"), x)


@by_variant
def test_shapes_around_its_tiles(name):
    _, trial, make, _, check = tried(name)
    for at, (rows, columns, g) in enumerate(trial.shapes):
        packed = make(rows, columns, 2, g, alpha="f32", offset="f32")
        check(packed, inputs(1, columns, trial.types[-(at % 2)]))


@by_variant
@given(data=st.data())
@settings(max_examples=12)
def test_any_shape(name, data):
    _, trial, make, _, check = tried(name)
    rows, columns = data.draw(st.integers(1, 150)), data.draw(st.integers(1, 900))
    g, seed = data.draw(st.sampled_from(trial.groups)), data.draw(st.integers(0, 2**31))
    packed = make(rows, columns, 2, g, alpha="f32", offset="f32", seed=seed)
    knobs = {knob: data.draw(values) for knob, values in trial.drawn.items()}
    check(packed, inputs(1, columns, trial.types[-1], seed), **knobs)


@by_trial(("m",), lambda trial: zip(trial.m))
def test_rows_of_x_in_an_order_share_the_weights(name, m):
    variant, trial, make, product, check = tried(name)
    packed = make(37, 500, 2, 64, alpha="f32", ordered=True)
    x = inputs(m, 500, trial.types[m % min(2, len(trial.types))])
    y = check(packed, x)
    for row in (0, m - 1) if variant.deterministic and trial.alone else ():
        assert torch.equal(y[row : row + 1], product(packed, x[row : row + 1]))


@pytest.mark.parametrize("gpu", [RTX_3090, H200], ids=lambda gpu: gpu.arch)
@by_variant
def test_the_defaults_and_outliers(name, gpu):
    variant, trial, make, *_ = tried(name)
    dtype = trial.types[(gpu is H200) % min(2, len(trial.types))]
    x = inputs(5, 1100, dtype, outliers=True)
    matrix.check(variant, make(300, 1100, 3, 128, offset="f16"), x, gpu=gpu)


@by_trial(("knobs", "types"), lambda trial: trial.ranges)
def test_the_range_of_floats(name, knobs, types):
    """x from the least normal float to the greatest: no sum overflows, and none is lost."""
    variant, trial, make, product, _ = tried(name)
    for size in (trial.least, 1e38):
        packed = make(70, 300, 3, 32, alpha="f32", offset="f32")
        if size > 1:
            for scales in (packed.scale,) if variant.codes else (packed.alpha, packed.offset):
                scales.mul_(2.0**-10)  # exact
        for dtype in types:
            x = (inputs(2, 300).clamp(-3, 3) * size).to(dtype)
            y = product(packed, x, **knobs)
            assert matrix.error(y, packed, x) <= matrix.allowed(variant, packed, x)


@promised(lambda trial: BF16 in trial.types)
def test_each_row_of_x_has_its_own_unit(name):
    variant, _, make, product, _ = tried(name)
    packed, x = make(40, 600, 3, 64, alpha="f32", offset="f32"), inputs(9, 600, BF16)
    x *= 2.0 ** torch.arange(-60, 66, 14)[:, None]
    matrix.check_rows(variant, packed, x, product(packed, x))
    assert not product(packed, 0 * x).any()


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@promised(lambda trial: trial.contained)
def test_what_is_not_finite_spoils_its_row_and_no_other(name, bad):
    _, trial, make, product, _ = tried(name)
    for g, dtype in ((32, trial.types[0]), (128, trial.types[-1])):
        packed, x = make(40, 300, 2, g, offset="f16"), inputs(3, 300, dtype)
        clean = product(packed, x)
        x[1, 299] = bad
        y = product(packed, x)
        assert torch.equal(y[[0, 2]], clean[[0, 2]])
        assert not y[1].isfinite().any()


@promised(lambda trial: trial.workspace)
def test_workspace_serves_many_launches(name):
    _, trial, make, product, _ = tried(name)
    packed, workspace, x = make(140, 1700, 2, 256), {}, inputs(3, 1700, F16)
    first, *others = (product(packed, x, workspace, reverse) for reverse in (False, True, False))
    assert sorted(workspace) == list(trial.workspace)
    assert all(y.equal(first) for y in others)


@needs_nvrtc
@by_trial(("gpu", "changes"), lambda trial: matrix.in_turn(zip(trial.compiled), trial.gpus))
def test_resources(name, gpu, changes):
    changes = dict(changes)
    knobs = changes.pop("knobs", None)
    plan = variants.variant(name).plan_for(large(name, **changes), gpu, knobs)
    plans.check_resources(plan, gpu)


@by_variant
def test_grids(name):
    """A GPU takes the launches, for real and for tiny shapes."""
    shapes = (49152, 12288), (12288, 12288), (4096, 4096), (1, 33)
    for m, (rows, columns), gpu in itertools.product((1, 9, 40), shapes, GPUS):
        case = large(name, m=m, rows=rows, columns=columns)
        for step in variants.variant(name).plan_for(case, gpu).steps:
            assert all(1 <= n <= 65535 for n in step.grid[1:])
            assert 1 <= step.grid[0] < 2**31
            assert step.block <= 1024
            assert step.block % 32 == 0


@pytest.mark.parametrize(("name", "knobs", "changes", "why"), REFUSED)
def test_refuses(name, knobs, changes, why):
    case = large(name, **{"rows": 64, "columns": 4096, **changes})
    assert why in variants.variant(name).why_not(case, H200, knobs)


SHAPES = (1, 32), (129, 97), (1023, 1056)
# rows, columns, q, g, rows of x
GPU_CASES = [
    *((*shape, q, g, 1 + 2 * (q == 3)) for shape in SHAPES for q in range(1, 9) for g in (32, 128, -1)),
    *((4096, 4096, q, g, 1) for q in (1, 3, 8) for g in (32, 128, -1)), (12288, 12288, 3, 128, 1),
]  # fmt: skip


def on_a_gpu(trial):
    """Every q with every g and shape; types of x in turn, each with each q and g."""
    for at, case in enumerate(GPU_CASES):
        if case[2] in trial.bits:
            yield *case, (at % 3 + at // 3) % len(trial.types)


@pytest.mark.gpu
@by_trial(("rows", "columns", "q", "g", "m", "type_"), on_a_gpu)
def test_on_a_gpu(name, rows, columns, q, g, m, type_):
    variant, trial, make, *_ = tried(name)
    x = inputs(m, columns, trial.types[type_], outliers=True)
    if variant.codes:
        x /= 8  # y of 8-bit codes stays below 65504
    matrix.check_on_gpu(variant, make(rows, columns, q, g, offset="f16"), x)


@pytest.mark.gpu
@pytest.mark.parametrize("g", [32, 64, 128])
@pytest.mark.parametrize("m", [2, 4, 7, 8, 16, 17, 33])
@by_variant
def test_many_rows_of_x_on_a_gpu(name, m, g):
    variant, trial, make, *_ = tried(name)
    packed = make(1023, 1056, 3, g, offset="f16")
    for dtype in trial.types:
        matrix.check_on_gpu(variant, packed, inputs(m, 1056, dtype))
