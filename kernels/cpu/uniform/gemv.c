{% set floats = offset in ("f16", "f32") %}
/* y[m, n] = sum_k x[m, k] W[n, k],  W[n, k] = {{ "scale[n, group] code[n, k] + offset[n, group]" if floats else "scale[n, group] (code[n, k] - zero_point[n, group])" }}

   A field of a word becomes a float where it stands: and, convert, and the float is code * 2^(its lowest bit), exactly.
   The activation it meets was divided by that power of two beforehand, exactly too, so a step is and, convert, FMA,
   without a shift. (The field that holds bit 31 would be negative: it is shifted down instead.) {{ "offset" if floats else "zero_point" }} meets the
   sum of a group's activations (QIGen Eq. 2).
{% if integer_loops %}

   For few rows of x codes of 4 bits meet integers: activations are rounded to 24 bits (one scale a unit) and cut into 3
   signed bytes; a vpmaddubsw multiplies 32 codes by one byte of each of their activations, and adds two and two. Sums of
   integers are exact; in the end of a unit the three sums of a row are converted and put together. A code and an
   activation cost less this way than conversion and FMA.
{% endif %}
   src/lutlab/kernels/cpu/uniform_gemv.py and row_blocks.py draw the stream of weights. */
{% set parts = ["avx2_bytes", "avx2_digits"] if integer_loops else [] %}
{% include "rows/head.h" %}

enum {
    BITS = {{ bits }},                  /* of a field */
    ROWS = 32,                 /* of a block: two vectors of 16 */
    GRID_FLOATS = {{ "64,          /* of a block: steps of all rows, then step * zero */" if scale == "u8" else "0,           /* a block has no grids */" }}
    WORD_COLUMNS = 32 / BITS,
    WORDS_AT = {{ scale_bytes + offset_bytes }},{{ " " * (14 - (scale_bytes + offset_bytes) | string | length) }}/* of a unit: scales and {{ "offsets" if floats else "zero points" }} come first */
    WORD_BYTES = ROWS * 4,     /* of a block */
{% if integer_loops %}
    SCALED_AT = 6,             /* floats' room of 3 bytes of each activation; then scaled ones, for many rows of x */
    SUMS = 3,                  /* floats kept of a unit of x: scale of its integers, their sum, sum of activations */
    EXACT_WORDS = 4,           /* columns of which are summed in 16 bits: 2 * 4 * 2 * 15 * 128 < 2^15 */
{% else %}
    SCALED_AT = 0,             /* of what a word of columns is prepared into: scaled activations */
    SUMS = 1,                  /* floats kept of a unit of x: sum of activations */
{% endif %}
    SUM_AT = SUMS - 1,
    WORD_READY = SCALED_AT + WORD_COLUMNS /* floats that a word of columns is prepared into */
};

{% if scale == "u8" %}
/* step * code + step * zero, exact */
static INLINE rows_f load_scale(const uint8_t *unit, const float *grids, int v)
{
    return fma_rows(load_u8(unit + v * 16), load_f32(grids + v * 16), load_f32(grids + ROWS + v * 16));
}
{% else %}
static INLINE rows_f load_scale(const uint8_t *unit, const float *grids, int v)
{
    (void)grids;
    return load_{{ scale }}(unit + v * {{ 16 * scale_size }});
}
{% endif %}
{% if floats %}
static INLINE rows_f load_offset(const uint8_t *unit, const float *grids, int v) { (void)grids; return load_{{ offset }}(unit + {{ scale_bytes }} + v * {{ offset_bytes // 2 }}); }
{% include "rows/nearest.h" %}
{% else %}
static INLINE rows_f load_zero(const uint8_t *unit, int v) { return load_{{ offset }}(unit + {{ scale_bytes }} + v * {{ offset_bytes // 2 }}); }
/* -scale * zero_point */
static INLINE rows_f load_offset(const uint8_t *unit, const float *grids, int v)
{
    return mul(load_scale(unit, grids, v), mul(broadcast(-1), load_zero(unit, v)));
}
{% endif %}

{% if integer_loops %}
{% macro eight_bytes(at) %}_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *){{ at }}))){% endmacro %}
{% macro load_eight(type, at) %}{{ "_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)%s))" % at if type == "f16" else "_mm256_loadu_ps((const float *)%s)" % at }}{% endmacro %}
/* y += scale (unit of x * (a + 256 b + 65536 c){{ ") + offset * sum of x" if floats else " - zero_point * sum of x)" }}, of 8 rows from row 8 `eight` on. */
static INLINE void add_unit(const uint8_t *unit, const float *grids, int eight, __m256i a, __m256i b, __m256i c, const float *sums, float *y)
{
    y += 8 * eight;
    const uint8_t *at = unit + eight * {{ 8 * scale_size }};
{% if scale == "u8" %}
    grids += 8 * eight;
    const __m256 scale = _mm256_fmadd_ps({{ eight_bytes("at") }}, _mm256_loadu_ps(grids), _mm256_loadu_ps(grids + ROWS));
{% else %}
    (void)grids;
    const __m256 scale = {{ load_eight(scale, "at") }};
{% endif %}
{% if floats %}
    at = unit + {{ scale_bytes }} + eight * {{ offset_bytes // 4 }};
    const __m256 offset = {{ load_eight(offset, "at") }};
{% else %}
    at = unit + {{ scale_bytes }} + eight * {{ offset_bytes // 4 }};
    const __m256 zero = {{ eight_bytes("at") if offset == "u8" else "eight_i16((const __m128i *)at)" }};
{% endif %}
    __m256 sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(b), _mm256_set1_ps(256), _mm256_cvtepi32_ps(a));
    sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(c), _mm256_set1_ps(65536), sum);
{% if floats %}
    const __m256 shifted = _mm256_fmadd_ps(offset, _mm256_set1_ps(sums[1]), _mm256_loadu_ps(y));
    _mm256_storeu_ps(y, _mm256_fmadd_ps(scale, _mm256_mul_ps(sum, _mm256_set1_ps(sums[0])), shifted));
{% else %}
    sum = _mm256_fnmadd_ps(zero, _mm256_set1_ps(sums[1]), _mm256_mul_ps(sum, _mm256_set1_ps(sums[0])));
    _mm256_storeu_ps(y, _mm256_fmadd_ps(scale, sum, _mm256_loadu_ps(y)));
{% endif %}
}

{% for loop_of in integer_loops %}
/* {{ loop_of.m }} row{{ "s" if loop_of.m > 1 }} of x times one unit, zero points included. */
static INLINE void unit_{{ loop_of.m }}(const uint8_t *unit, const float *grids, long unit_words, const float *x,
                          long x_stride, const float *sums,
                          long sums_stride, float *y, long y_stride, long ahead)
{
    (void)x_stride, (void)sums_stride, (void)y_stride;
    const __m256i none = _mm256_setzero_si256(), ones = _mm256_set1_epi16(1);
    for (int line = 0; line < WORDS_AT; line += 64) prefetch(unit + ahead + line);
    for (int eight = 0; eight < 4; eight += {{ loop_of.vectors }}) { /* rows at a time */
        const uint8_t *words = unit + WORDS_AT + 32 * eight;
        const int32_t *here = (const int32_t *)x;
        __m256i all_{{ loop_of.sums() | join(" = none, all_") }} = none;
        for (long left = unit_words; left > 0; left -= EXACT_WORDS) {
            __m256i {{ loop_of.sums() | join(" = none, ") }} = none;
            __m256i digit;
            rows_b {% for v in range(loop_of.vectors) %}codes{{ v }}, nibbles{{ v }}{{ ";" if loop.last else ", " }}{% endfor %}

{% for word in range(4) %}
            if ({{ word }} < left) {
{% for v in range(loop_of.vectors) %}
                codes{{ v }} = load_row_bytes(words + {{ 32 * v }});
                KEEP_TABLE(codes{{ v }});
{% endfor %}
                {{ "" if loop_of.vectors > 1 else "if (eight % 2 == 0) " }}prefetch(words + ahead);
{% for odd in range(2) %}
{% for v in range(loop_of.vectors) %}
                nibbles{{ v }} = {{ "high" if odd else "low" }}_nibbles(codes{{ v }});
{% endfor %}
{% for m in range(loop_of.m) %}{% for d in range(3) %}
                digit = _mm256_set1_epi32(here[{{ m ~ " * x_stride + " if m }}{{ 3 * odd + d }}]);
{% for v in range(loop_of.vectors) %}
{% set sum = loop_of.sum(v, m, d) %}
                {{ sum }} = add_halves({{ sum }}, _mm256_maddubs_epi16(nibbles{{ v }}, digit));
                KEEP_TABLE({{ sum }});
{% endfor %}
{% endfor %}{% endfor %}
{% endfor %}
                words += WORD_BYTES, here += WORD_READY;
            }
{% endfor %}
{% for sum in loop_of.sums() %}
            all_{{ sum }} = _mm256_add_epi32(all_{{ sum }}, _mm256_madd_epi16({{ sum }}, ones));
{% endfor %}
        }
{% for m in range(loop_of.m) %}{% for v in range(loop_of.vectors) %}
        add_unit(unit, grids, eight + {{ v }}, all_{{ loop_of.sums([v], m) | join(", all_") }}, sums{{ " + %d * sums_stride" % m if m }}, y{{ " + %d * y_stride" % m if m }});
{% endfor %}{% endfor %}
    }
}

{% endfor %}

{% endif %}
{% for loop_of in loops %}
/* {{ loop_of.m }} row{{ "s" if loop_of.m > 1 }} of x times one unit, zero points included. */
static INLINE void unit_{{ loop_of.m }}(const uint8_t *unit, const float *grids, long unit_words, const float *x,
                          long x_stride, const float *sums,
                          long sums_stride, float *y, long y_stride, long ahead)
{
    (void)x_stride, (void)sums_stride, (void)y_stride;
    for (int line = 0; line < WORDS_AT; line += 64) prefetch(unit + ahead + line);
{% for first in range(0, 2, loop_of.vectors) %}
{% set tile = range(first, first + loop_of.vectors) %}
    {
        const uint8_t *words = unit + WORDS_AT + {{ 64 * tile[0] }};
        const float *here = x + SCALED_AT;
        rows_f {{ loop_of.sums(tile) | join(" = broadcast(0), ") }} = broadcast(0);
        for (long word = 0; word < unit_words; word++, words += WORD_BYTES, here += WORD_READY) {
{% for v in tile %}
            rows_w w{{ v }} = load_words(words + {{ 64 * loop.index0 }});
            KEEP(w{{ v }});
            prefetch(words + ahead + {{ 64 * loop.index0 }});
{% endfor %}
            rows_f code, activation;
{% for field in range(32 // bits) %}
{% for v in tile %}
            code = {{ "above(w%d, %d)" % (v, 32 - bits) if field == 32 // bits - 1 else "masked(w%d, 0x%x)" % (v, (2 ** bits - 1) * 2 ** (bits * field)) }};
{% for m in range(loop_of.m) %}
{% set sum = loop_of.sum(v, m, field) %}
            activation = broadcast(here[{{ m ~ " * x_stride + " if m }}{{ field }}]);
            {{ sum }} = fma_rows(code, activation, {{ sum }});
            KEEP({{ sum }});
{% endfor %}
{% endfor %}
{% endfor %}
        }
{% for v in tile %}
        const rows_f scale{{ v }} = load_scale(unit, grids, {{ v }}), offset{{ v }} = load_offset(unit, grids, {{ v }});
{% for m in range(loop_of.m) %}
{% set all = loop_of.sums([v], m) %}
{% for other in all[1:] %}
        {{ all[0] }} = add({{ all[0] }}, {{ other }});
{% endfor %}
        {
            float *to = y + {{ m ~ " * y_stride + " if m }}{{ 16 * v }};
            rows_f all = fma_rows(offset{{ v }}, broadcast(sums[{{ m ~ " * sums_stride + " if m }}SUM_AT]), load_f32(to));
            store_f32(to, fma_rows(scale{{ v }}, {{ all[0] }}, all));
        }
{% endfor %}
{% endfor %}
    }
{% endfor %}
}

{% endfor %}

/* x of a word divided by the places of their fields. */
static INLINE void scale_activations(const float *x, float *scaled)
{
    static const float scale[WORD_COLUMNS] = { {%- for field in range(32 // bits - 1) %}0x1p-{{ bits * field }}f, {% endfor %}1}; /* by field */
    for (int field = 0; field < WORD_COLUMNS; field++) scaled[field] = x[field] * scale[field];
}

{% if integer_loops %}
/* Bytes, their scale, and sums of activations of `units` units of one row of x. A unit that holds inf or nan gets the
   scale nan; one of nothing but tiny numbers is rounded to multiples of 2^-100 / MOST_DIGITS (arrange() has lifted tiny
   rows). A sum of 256 integers is less than 2^31. */
static void prepare(const float *x, long units, long unit_words, float *ready, float *sums)
{
    for (long u = 0; u < units; u++, sums += SUMS) {
        const float largest = largest_of(x, unit_words * WORD_COLUMNS, 0x1p-100f);
        sums[0] = largest / (MOST_DIGITS - 8);
        const float inverse = largest > 0 ? 1 / sums[0] : 0; /* not where it is nan */
        __m256i sum = _mm256_setzero_si256();
        sums[2] = sum_of(x, unit_words * WORD_COLUMNS);
        for (long word = 0; word < unit_words; word++, x += WORD_COLUMNS, ready += WORD_READY) {
            sum = _mm256_add_epi32(sum, cut_activations((int32_t *)ready, x, inverse));
            scale_activations(x, ready + SCALED_AT);
        }
        sums[1] = sums[0] * (float)sum_of_words(sum);
    }
}
{% else %}
/* Scaled activations and sums of `units` units of one row of x. */
static void prepare(const float *x, long units, long unit_words, float *ready, float *sums)
{
    const long span = unit_words * WORD_COLUMNS;
    for (long u = 0; u < units; u++) sums[u] = sum_of(x + u * span, span);
    for (long word = 0; word < units * unit_words; word++) scale_activations(x + word * WORD_COLUMNS, ready + word * WORD_READY);
}
{% endif %}

/* 16 rows of a unit, from row v * 16 on: tile[column * ROWS + lane]. */
static void dequantize_unit(const uint8_t *unit, const float *grids, int v, long unit_words, float *tile)
{
    const rows_f scale = load_scale(unit, grids, v), {{ "offset = load_offset(unit, grids, v)" if floats else "zero = load_zero(unit, v)" }};
    for (long word = 0; word < unit_words; word++) {
        const rows_w w = load_words(unit + WORDS_AT + word * WORD_BYTES + v * 64);
        rows_f code[WORD_COLUMNS];
{% for field in range(32 // bits) %}
        code[{{ field }}] = {{ "above(w, %d)" % (32 - bits) if field == 32 // bits - 1 else "mul(broadcast(0x1p-%df), masked(w, 0x%x))" % (bits * field, (2 ** bits - 1) * 2 ** (bits * field)) }};
{% endfor %}
        for (int field = 0; field < WORD_COLUMNS; field++)
            {{ "store_nearest" if floats else "store_f32" }}(tile + (word * WORD_COLUMNS + field) * ROWS, {{ "scale, code[field], offset" if floats else "mul(scale, add(code[field], mul(broadcast(-1), zero)))" }});
    }
}

/* Columns of `count` words from word `first` on: tile[(v * columns + column) * 16 + lane]. */
static void dequantize_tile(const uint8_t *unit, const float *grids, long first, long count, float *tile)
{
    for (int v = 0; v < 2; v++) {
        const rows_f offset = load_offset(unit, grids, v), scale = load_scale(unit, grids, v);
        for (long word = 0; word < count; word++, tile += WORD_COLUMNS * 16) {
            const rows_w w = load_words(unit + WORDS_AT + (first + word) * WORD_BYTES + v * 64);
{% for field in range(32 // bits) %}
            store_f32(tile + {{ 16 * field }}, fma_rows({{ "above(w, %d)" % (32 - bits) if field == 32 // bits - 1 else "masked(w, 0x%x)" % ((2 ** bits - 1) * 2 ** (bits * field)) }}, mul(scale, broadcast({{ "1" if field == 32 // bits - 1 else "0x1p-%df" % (bits * field) }})), offset));
{% endfor %}
        }
    }
}

{% include "rows/entry.h" %}
