"""The C step's functions of vectors against float64, its conversions bit by bit, and a step under sanitizers."""

from __future__ import annotations

import ctypes

import pytest
import torch
from tests.kernels.codegen import sanitized

from lutlab.kernels.codegen import isa, library
from lutlab.kernels.cpu import step

ISAS = {each.name: each for each in isa.runnable()}
TEST = """
void function(int which, const float *x, long n, float *y)
{
    for (long j = 0; j < n; j += LANES) {
        const lanes_f a = load_float32(x + j);
        uint16_t half[LANES];
        switch (which) {
        case 0: store_float32(y + j, exp_of(a)); break;
        case 1: store_float32(y + j, erf_of(a)); break;
        case 2: store_float32(y + j, sigmoid_of(a)); break;
        case 3: store_float16(half, a); store_float32(y + j, load_float16(half)); break;
        case 4: store_bfloat16(half, a); store_float32(y + j, load_bfloat16(half)); break;
        }
    }
}
"""


def vectors(name):
    """which, x -> y of a function of TEST."""
    built = library.load(step.source(ISAS[name]) + TEST, "step-test", ISAS[name])

    def call(which, x):
        y, pointer = torch.empty_like(x), ctypes.c_void_p
        built.function(which, pointer(x.data_ptr()), ctypes.c_long(len(x)), pointer(y.data_ptr()))
        return y

    return call


@pytest.mark.parametrize("name", [name for name in ISAS if name != "neon"])
def test_functions_of_vectors(name):
    call = vectors(name)
    x = torch.cat([torch.linspace(-86, 88, 2**14), torch.randn(2**14) * 1e-3, torch.randn(2**14)])
    for which, exact in ((0, torch.exp), (1, torch.erf), (2, torch.sigmoid)):
        two_units_in_the_last_place = {"rtol": 2.0**-22, "atol": 0, "check_dtype": False}
        torch.testing.assert_close(call(which, x), exact(x.double()), **two_units_in_the_last_place)
    ends = torch.tensor([torch.nan, -torch.inf, -1e4, 0.0]).repeat(4)
    assert torch.equal(call(0, ends)[1:4], torch.tensor([0.0, 0.0, 1.0]))
    assert all(call(which, ends)[0].isnan() for which in range(5))
    every = torch.arange(2**16, dtype=torch.int32).to(torch.uint16)
    for which, dtype in ((3, torch.float16), (4, torch.bfloat16)):
        held = every.view(dtype).float()
        held = held[held.isfinite()][: 63488 // 16 * 16]
        between = held * (1 + torch.rand(len(held)) * 2.0**-8) + 2.0**-25
        halfway = (held + held.roll(1)) / 2  # ties, half of them to even
        for x in (held, between[between.abs() < 65500], halfway[halfway.abs() < 65500]):
            x = x[: len(x) // 16 * 16].contiguous()
            assert torch.equal(call(which, x), x.to(dtype).float())


@pytest.mark.parametrize("other", [each for each in isa.buildable() if each.name not in ISAS])
def test_other_instruction_sets_compile(other):
    assert (library.build(step.source(other), "compiled", other) / "kernel.so").exists()


# A layer of 3 query heads over 1 of keys, sizes that fill no vector, two rows of a cache of float16.
STEP = """
static void none(const struct product *p, const float *x, long s, long m, float *y, long t)
{
    (void)p, (void)x, (void)s, (void)m, (void)y, (void)t;
}
void run(const float *weights, const uint16_t *halves, const float *numbers, uint16_t *keys, uint16_t *values,
         double *seconds, const int64_t *ids, float *logits)
{
    enum { HIDDEN = 7, SIZE = 6, HEADS = 3, INNER = 5, ROOM = (SIZE + LANES - 1) / LANES * LANES, WIDE = 32, MOST = 4 };
    const struct product products[] = {
        {.weight = weights, .type = 2, .channels = HIDDEN, .width = WIDE, .rows = 5 * SIZE, .bytes = 4000},
        {.weight = weights, .type = 2, .channels = HEADS * SIZE, .width = WIDE, .rows = HIDDEN, .bytes = 4000},
        {.weight = weights, .type = 2, .channels = HIDDEN, .width = WIDE, .rows = 2 * INNER, .bytes = 4000},
        {.weight = weights, .type = 2, .channels = INNER, .width = WIDE, .rows = HIDDEN, .bytes = 4000},
        {.weight = halves, .type = 0, .channels = HIDDEN, .width = WIDE, .rows = 11, .bytes = 2000},
    };
    const struct norm rms = {RMS_NORM, numbers, 0, 1e-5f}, of_layer = {LAYER_NORM, numbers, numbers, 1e-5f};
    const struct layer layer = {
        .attention_norm = rms, .forward_norm = of_layer, .query_norm = rms, .key_norm = rms,
        .attention = {products, 1, 5 * SIZE, numbers}, .out = {products + 1, 1, HIDDEN, 0},
        .up = {products + 2, 1, 2 * INNER, 0}, .down = {products + 3, 1, HIDDEN, 0},
        .key_at = 3 * SIZE, .value_at = 4 * SIZE, .up_at = INNER, .scale = 0.5f, .window = 3,
    };
    /* each buffer of its own size, so that one float more is seen */
    float x[MOST * HIDDEN], normed[MOST * HIDDEN], mixed[MOST * 5 * SIZE], queries[MOST * HEADS * ROOM];
    float attended[MOST * HEADS * SIZE], wide[MOST * 2 * INNER], y[MOST * HIDDEN];
    float scores[2 * RUN * HEADS * 5], sums[2 * RUN * HEADS * ROOM];
    const struct model model = {
        .layers = 1, .hidden = HIDDEN, .heads = HEADS, .kv_heads = 1, .size = SIZE, .room = ROOM, .inner = INNER,
        .norm_first = 1, .activation = GELU, .rotary = 4, .neighbours = 0, .layer = &layer,
        .tokens = weights, .positions = numbers, .tokens_type = 2, .tokens_width = HIDDEN, .positions_type = 2,
        .head = {products + 4, 1, 11, 0}, .last_norm = of_layer, .cosine = numbers, .sine = numbers,
        .keys = keys, .values = values, .cache = 0, .batch = 2, .length = 5,
        .x = x, .normed = normed, .mixed = mixed, .queries = queries, .attended = attended, .wide = wide, .y = y,
        .scores = scores, .sums = sums, .threads = 2, .thread_bytes = 64, .mend = none, .seconds = seconds,
    };
    const int64_t *token = ids, *row = ids + 4, *position = ids + 8, *wanted = ids + 12;
    forward(&model, 4, token, row, position, wanted, 2, logits);
    forward(&model, 1, token, row + 3, position + 4, wanted, 1, logits + 11);
}
"""


def test_sanitizers_find_nothing(tmp_path):
    torch.manual_seed(0)
    name = next(iter(ISAS))
    lanes = step.LANES.get(name, step.PORTABLE_LANES)
    cache = torch.zeros(2, 2 * 5 * -(-6 // lanes) * lanes).half()
    weights, halves, numbers = torch.randn(30, 32), torch.randn(11, 32).half(), torch.randn(64)
    seconds = torch.zeros(3, dtype=torch.float64)
    ids = torch.tensor([1, 2, 3, 4, *(0, 0, 1, 1), *(0, 1, 0, 1), *(2, 3)])
    arguments = (weights, halves, numbers, *cache, seconds, ids, torch.full((22,), torch.nan))
    on = isa.Isa(name, (*ISAS[name].flags, "-O0"))
    source = step.source(ISAS[name]) + STEP
    after = sanitized.call(source, "run", *arguments, isa=on, folder=tmp_path)
    assert after[-1].isfinite().all()
    assert (after[5] > 0).all()
