"""The contract of every variant, on the CPU (plans.py) and on a GPU: bits, groups, types, shapes, ranges, limits.

What is one variant's own idea is tested in the file of its name.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.gpu import lut_gemv_matrix as matrix
from tests.kernels.gpu import plans
from tests.kernels.gpu.cuda_on_host import needs_nvrtc
from tests.kernels.gpu.lut_gemv_matrix import BF16, F16, F32, check, inputs

from lutlab.kernels.gpu import variants
from lutlab.kernels.gpu.lut_gemv.variant import A100, GPUS, H200, RTX_3090, Case

OF_32 = (32, 64, 96, 128, 160, 256, 416, -1)


@dataclass(frozen=True)
class Trial:
    """How a variant is tried.

    knobs: so small that some hundred columns go through every loop; shapes: (rows, columns, g) about its tiles, slices
    and blocks of columns; m: rows of x about those that share a reading; drawn: further knobs; ranges: knobs and types
    of x that hold all of their exponents; alone: whether a row of x has the same y without its neighbours; contained:
    whether what is not finite stays in its row of x; compiled: changes of a large case, with their knobs under "knobs";
    refused: knobs, changes of a case, a part of the reason.
    """

    knobs: dict[str, Any]
    shapes: list[tuple[int, int, int]]
    compiled: list[dict[str, Any]]
    refused: list[tuple[dict[str, Any], dict[str, Any], str]]
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


G40 = ({}, {"group_size": 40}, "takes groups that are multiples of 32")
NO_CODES = ({}, {"uniform": False}, "no uniform codes with one scale a group")
TRIALS = {
    "paper": Trial(
        knobs={"luts": 4, "rows": 64, "threads": 32},
        shapes=[(1, 1, 64), (2, 33, 24), (31, 65, 96), (64, 31, 32), (65, 64, 40), (129, 130, -1)],
        types=(F16, F32),
        groups=(24, 32, 40, 96, -1),
        drawn={"mu": st.sampled_from([3, 8]), "luts": st.sampled_from([3, 4])},
        compiled=[{"x": F16}, {"x": F32}],
        refused=[
            ({"mu": 9}, {}, "mu is 1 to 8"),
            ({"luts": 0}, {}, "at least one table"),
            ({"rows": 3}, {}, "even number of rows"),
            ({"threads": 48}, {}, "a power of two"),
            ({"luts": 128}, {"group_size": 4096}, "more than 48 KB"),
        ],
        contained=False,
    ),
    "optq": Trial(
        knobs={"columns": 64, "threads": 64},
        shapes=[(1, 1, -1), (65, 200, 32), (64, 129, -1), (130, 65, 96)],
        bits=(2, 3, 4),
        types=(F16,),
        compiled=[{"bits": q} for q in (2, 3, 4)],
        refused=[
            NO_CODES,
            ({}, {"bits": 5}, "tables of pairs of 2 to 4 bits"),
            ({}, {"x": F32}, "convert x to float16"),
            ({}, {"group_size": 40}, "g=40"),
            ({"threads": 100}, {}, "a power of two"),
            ({"columns": 40}, {}, "a multiple of 32 columns"),
        ],
        contained=False,
    ),
    "lane_tables": Trial(
        knobs={"threads": 256, "tiles": 10},  # two warps take two tiles
        shapes=[
            *((1, 1, -1), (7, 31, 32), (8, 33, 32), (9, 64, 128), (80, 129, -1), (81, 300, 160)),
            *((11, columns, g) for columns in (1023, 1024, 1025, 2049) for g in (32, 160, -1)),
        ],
        m=(2, 3),
        compiled=[
            *({"bits": q} for q in (1, 3, 8)),
            {"x": BF16},
            *({"m": 2, "bits": q, "knobs": {"table": "pair"}} for q in (1, 2, 3, 8)),
            {"m": 2, "x": BF16, "knobs": {"table": "pair"}},
            {"knobs": {"table": "half"}},
            {"x": F32, "alpha": F32, "offset": F32, "knobs": {"table": "float"}},
        ],
        gpus=(A100, H200),
        refused=[
            ({"threads": 128}, {}, "256, 512, 1024, or 0"),
            ({"tiles": -1}, {}, "tiles of rows a block takes"),
            ({"table": "int"}, {}, "float, half or pair"),
            ({}, {"group_size": 16}, "g=16: lane_tables takes groups that are multiples of 32"),
            G40,
        ],
        ranges=[
            ({"table": "half"}, (BF16,)),
            ({"table": "pair"}, (BF16,)),
            ({"table": "float"}, (BF16, F32)),
        ],
        workspace=("arrived", "partial"),
        alone=False,
        contained=False,
    ),
    "bit_planes": Trial(
        knobs={"warps": 2, "stages": 2, "tiles": 1, "launches": 1},
        shapes=[
            *((1, 1, -1), (31, 31, 128), (32, 127, 96), (33, 128, -1), (1, 129, 128)),
            *((rows, columns, g) for rows, columns in ((33, 129), (5, 1)) for g in (32, 64)),
        ],
        m=(2, 4, 5),
        drawn={"slices": st.integers(1, 5)},
        compiled=[
            {},
            {"bits": 1, "group_size": 64},
            {"m": 4, "rows": 4096, "group_size": 32, "x": F32, "alpha": F32, "offset": F32},
            {"x": BF16},
        ],
        refused=[
            ({"x_bits": 7}, {}, "8 to 24 bits"),
            ({"x_bits": 25}, {}, "8 to 24 bits"),
            ({"tiles": 3}, {}, "1, 2 or 4 tiles"),
            ({"warps": 3}, {}, "a power of two up to 16"),
            ({"stages": 1}, {}, "2 to 16 blocks"),
            ({"slices": -1}, {}, "number of slices"),
            ({"launches": 3}, {}, "launches=3: planes of x"),
            ({"stages": 16, "warps": 16}, {"group_size": 32}, "bytes of shared memory"),
            G40,
        ],
        ranges=[({}, (BF16, F32))],
        least=1e-29,  # of a block's largest, as the module says
        workspace=("arrived", "partial", "progress", "records"),
    ),
    "uniform_mma": Trial(
        knobs={"slice": 512, "warps": 2},
        shapes=[(1, 31, 64), (16, 129, 96), (31, 512, 128), (33, 900, 256), (65, 513, 384)],
        m=(2, 7, 8, 9, 16, 17, 35),
        types=(F16, BF16),
        compiled=[
            {"bits": q} | more
            for q in (2, 3, 4, 8)
            for more in (
                {},
                {"m": 16},
                {"group_size": 32},
                {"m": 16, "group_size": 32, "alpha": F32},
                {"m": 16, "x": BF16},
            )
        ],
        refused=[
            NO_CODES,
            ({}, {"x": F32}, "convert x to float16 or bfloat16"),
            ({"warps": 3}, {}, "1, 2, 4, 8 or 16 warps"),
            ({"slice": 300}, {}, "a multiple of 256 columns"),
            G40,
        ],
        ranges=[({}, (BF16,))],
        workspace=("arrived", "partial"),
    ),
}
by_variant = pytest.mark.parametrize("name", TRIALS)


def tried(name):
    """A variant, how it is tried, and what makes a weight that it takes."""
    variant = variants.variant(name)
    return variant, TRIALS[name], matrix.codes if variant.codes else matrix.weight


def names(promise):
    """Variants that promise something."""
    return pytest.mark.parametrize("name", [n for n, trial in TRIALS.items() if promise(trial)])


def large(name, **changes):
    """A large case that a variant takes."""
    plain = {"m": 1, "rows": 49152, "columns": 12288, "bits": 3, "group_size": 128, "x": F16}
    uniform = variants.variant(name).codes
    return Case(**{**plain, "alpha": F16, "offset": F16, "uniform": uniform, **changes})


def test_every_variant_is_tried():
    assert TRIALS.keys() == variants.variants().keys()


@pytest.mark.parametrize(
    ("name", "q"), [(name, q) for name, trial in TRIALS.items() for q in trial.bits]
)
def test_every_q(name, q):
    """Each with a type of x, shape and number of its rows in turn: none of them changes what a plane or a code is."""
    variant, trial, make = tried(name)
    rows, columns, g = ((70, 200, 32), (31, 520, -1), (33, 400, 128))[q % 3]
    packed = make(rows, columns, q, g, alpha="f16", offset="f16")
    x = inputs(1 + q % 2, columns, trial.types[q // 3 % len(trial.types)])
    check(variant, packed, x, knobs=trial.knobs)


@by_variant
def test_shapes_around_its_tiles(name):
    variant, trial, make = tried(name)
    for at, (rows, columns, g) in enumerate(trial.shapes):
        packed = make(rows, columns, 2, g, alpha="f32", offset="f32")
        x = inputs(1, columns, trial.types[-(at % 2)])
        check(variant, packed, x, knobs=trial.knobs)


@by_variant
@given(data=st.data())
@settings(max_examples=12)
def test_any_shape(name, data):
    variant, trial, make = tried(name)
    rows, columns = data.draw(st.integers(1, 150)), data.draw(st.integers(1, 900))
    g, seed = data.draw(st.sampled_from(trial.groups)), data.draw(st.integers(0, 2**31))
    packed = make(rows, columns, 2, g, alpha="f32", offset="f32", seed=seed)
    knobs = {knob: data.draw(values) for knob, values in trial.drawn.items()}
    x = inputs(1, columns, trial.types[-1], seed)
    check(variant, packed, x, knobs=trial.knobs | knobs)


@pytest.mark.parametrize(
    ("name", "m"), [(name, m) for name, trial in TRIALS.items() for m in trial.m]
)
def test_rows_of_x_in_an_order_share_the_weights(name, m):
    variant, trial, make = tried(name)
    packed = make(37, 500, 2, 64, alpha="f32", ordered=True)
    x = inputs(m, 500, trial.types[m % min(2, len(trial.types))])
    y = check(variant, packed, x, knobs=trial.knobs)
    for row in (0, m - 1) if variant.deterministic and trial.alone else ():
        alone = plans.product(variant, packed, x[row : row + 1], knobs=trial.knobs)
        assert torch.equal(y[row : row + 1], alone)


@pytest.mark.parametrize("gpu", [RTX_3090, H200], ids=lambda gpu: gpu.arch)
@by_variant
def test_the_defaults_and_outliers(name, gpu):
    variant, trial, make = tried(name)
    packed = make(300, 1100, 3, 128, alpha="f16", offset="f16")
    dtype = trial.types[(gpu is H200) % min(2, len(trial.types))]
    check(variant, packed, inputs(5, 1100, dtype, outliers=True), gpu=gpu)


@pytest.mark.parametrize(
    ("name", "knobs", "types"),
    [(name, *one) for name, trial in TRIALS.items() for one in trial.ranges],
)
def test_the_range_of_floats(name, knobs, types):
    """x from the least normal float to the greatest: no sum overflows, and none is lost."""
    variant, trial, make = tried(name)
    for size in (trial.least, 1e38):
        packed = make(70, 300, 3, 32, alpha="f32", offset="f32")
        if size > 1:
            for scales in (packed.scale,) if variant.codes else (packed.alpha, packed.offset):
                scales.mul_(2.0**-10)  # exact
        for dtype in types:
            x = (inputs(2, 300, F32).clamp(-3, 3) * size).to(dtype)
            y = plans.product(variant, packed, x, knobs=trial.knobs | knobs)
            assert matrix.error(y, packed, x) <= matrix.allowed(variant, packed, x)


@names(lambda trial: BF16 in trial.types)
def test_each_row_of_x_has_its_own_unit(name):
    variant, trial, make = tried(name)
    packed, x = make(40, 600, 3, 64, alpha="f32", offset="f32"), inputs(9, 600, BF16)
    x *= 2.0 ** torch.arange(-60, 66, 14)[:, None]
    y = plans.product(variant, packed, x, knobs=trial.knobs)
    for row in range(9):
        own, one = y[row : row + 1], x[row : row + 1]
        assert matrix.error(own, packed, one) <= matrix.allowed(variant, packed, one)
    assert not plans.product(variant, packed, 0 * x, knobs=trial.knobs).any()


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
@names(lambda trial: trial.contained)
def test_what_is_not_finite_spoils_its_row_and_no_other(name, bad):
    variant, trial, make = tried(name)
    for g, dtype in ((32, trial.types[0]), (128, trial.types[-1])):
        packed, x = make(40, 300, 2, g, alpha="f16", offset="f16"), inputs(3, 300, dtype)
        clean = plans.product(variant, packed, x, knobs=trial.knobs)
        x[1, 299] = bad
        y = plans.product(variant, packed, x, knobs=trial.knobs)
        assert torch.equal(y[[0, 2]], clean[[0, 2]])
        assert not y[1].isfinite().any()


@names(lambda trial: trial.workspace)
def test_workspace_serves_many_launches(name):
    variant, trial, make = tried(name)
    packed, workspace, x = make(140, 1700, 2, 256, alpha="f16"), {}, inputs(3, 1700, F16)
    results = [
        plans.product(variant, packed, x, knobs=trial.knobs, workspace=workspace, reverse=reverse)
        for reverse in (False, True, False)
    ]
    assert sorted(workspace) == list(trial.workspace)
    assert all(result.equal(results[0]) for result in results)


@needs_nvrtc
@pytest.mark.parametrize(
    ("gpu", "name", "changes"),
    [
        one
        for name, trial in TRIALS.items()
        for one in matrix.in_turn([(name, changes) for changes in trial.compiled], trial.gpus)
    ],
)
def test_resources(gpu, name, changes):
    changes = dict(changes)
    knobs = changes.pop("knobs", None)
    matrix.check_resources(variants.variant(name), large(name, **changes), gpu, knobs)


@by_variant
def test_grids(name):
    for m in (1, 9, 40):
        matrix.check_grids(variants.variant(name), m)


@pytest.mark.parametrize(
    ("name", "knobs", "changes", "why"),
    [(name, *one) for name, trial in TRIALS.items() for one in trial.refused],
)
def test_refuses(name, knobs, changes, why):
    case = large(name, **{"rows": 64, "columns": 4096, **changes})
    assert why in variants.variant(name).why_not(case, H200, knobs)


# ---- on a GPU ----


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "rows", "columns", "q", "g", "m", "type_"),
    [
        (name, *case, (at % 3 + at // 3) % len(trial.types))
        for name, trial in TRIALS.items()
        for at, case in enumerate(matrix.GPU_CASES)
        if case[2] in trial.bits
    ],
)
def test_on_a_gpu(name, rows, columns, q, g, m, type_):
    """Every q with every g and shape; types of x in turn, each with each q and g."""
    variant, trial, make = tried(name)
    x = inputs(m, columns, trial.types[type_], outliers=True)
    if variant.codes:
        x /= 8  # y of 8-bit codes stays below 65504
    matrix.check_on_gpu(variant, make(rows, columns, q, g, alpha="f16", offset="f16"), x)


@pytest.mark.gpu
@pytest.mark.parametrize("g", [32, 64, 128])
@pytest.mark.parametrize("m", [2, 4, 7, 8, 16, 17, 33])
@by_variant
def test_many_rows_of_x_on_a_gpu(name, m, g):
    variant, trial, make = tried(name)
    packed = make(1023, 1056, 3, g, alpha="f16", offset="f16")
    for dtype in trial.types:
        matrix.check_on_gpu(variant, packed, inputs(m, 1056, dtype))
