/* y[m, n] = sum_k x[m, k] W[n, k],  W[n, k] = scale[n, group] (code[n, k] - zero_point[n, group])

   A field of a word becomes a float where it stands: and, convert, and the float is code * 2^(its lowest bit), exactly.
   The activation it meets was divided by that power of two beforehand, exactly too, so a step is and, convert, FMA,
   without a shift. (The field that holds bit 31 would be negative: it is shifted down instead.) zero_point meets the
   sum of a group's activations (QIGen Eq. 2).
   src/lutlab/formats/uniform_rows.py and row_blocks.py draw the stream of weights. */
#include <math.h>
#include <stdint.h>
#include <string.h>
#define INLINE inline __attribute__((always_inline))
{% include "simd/" ~ simd ~ ".h" %}

{% include "rows/activations.h" %}

enum {
    BITS = {{ bits }},                  /* of a field */
    ROWS = 32,                 /* of a block: two vectors of 16 */
    WORD_COLUMNS = 32 / BITS,
    WORDS_AT = {{ scale_bytes + 64 }},{{ " " * (14 - (scale_bytes + 64) | string | length) }}/* of a unit: scales and zero points come first */
    WORD_BYTES = ROWS * 4,     /* of a block */
    WORD_READY = WORD_COLUMNS, /* floats that a word of columns is prepared into */
    SUMS = 1                   /* groups in a unit */
};

static INLINE rows_f load_scale(const uint8_t *unit, int v) { return load_{{ scale }}(unit + v * {{ 16 * scale_size }}); }
/* -scale * zero_point */
static INLINE rows_f load_offset(const uint8_t *unit, int v)
{
    return mul(load_scale(unit, v), mul(broadcast(-1), load_i16(unit + {{ scale_bytes }} + v * 32)));
}

{% for loop_of in loops %}
/* {{ loop_of.m }} row{{ "s" if loop_of.m > 1 }} of x times one unit, zero points included. */
static INLINE void unit_{{ loop_of.m }}(const uint8_t *unit, long unit_words, const float *x, long x_stride, const float *sums,
                          long sums_stride, float *y, long y_stride, long ahead)
{
    (void)x_stride, (void)sums_stride, (void)y_stride;
    for (int line = 0; line < WORDS_AT; line += 64) prefetch(unit + ahead + line);
{% for tile in loop_of.tiles %}
    {
        const uint8_t *words = unit + WORDS_AT + {{ 64 * tile[0] }};
        const float *here = x;
        rows_f {{ loop_of.sums(tile) | join(" = broadcast(0), ") }} = broadcast(0);
        for (long word = 0; word < unit_words; word++, words += WORD_BYTES, here += WORD_COLUMNS) {
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
        const rows_f scale{{ v }} = load_scale(unit, {{ v }}), offset{{ v }} = load_offset(unit, {{ v }});
{% for m in range(loop_of.m) %}
{% set all = loop_of.sums([v], m) %}
{% for other in all[1:] %}
        {{ all[0] }} = add({{ all[0] }}, {{ other }});
{% endfor %}
        {
            float *to = y + {{ m ~ " * y_stride + " if m }}{{ 16 * v }};
            rows_f all = fma_rows(offset{{ v }}, broadcast(sums[{{ m ~ " * sums_stride" if m else 0 }}]), load_f32(to));
            store_f32(to, fma_rows(scale{{ v }}, {{ all[0] }}, all));
        }
{% endfor %}
{% endfor %}
    }
{% endfor %}
}

{% endfor %}
/* Scaled activations and sums of `units` units of one row of x. */
static void prepare(const float *x, long units, long unit_words, float *ready, float *sums)
{
    static const float scale[WORD_COLUMNS] = { {%- for field in range(32 // bits - 1) %}0x1p-{{ bits * field }}f, {% endfor %}1}; /* by field */
    const long span = unit_words * WORD_COLUMNS;
    for (long u = 0; u < units; u++) sums[u] = sum_of(x + u * span, span);
    for (long word = 0; word < units * unit_words; word++)
        for (int field = 0; field < WORD_COLUMNS; field++)
            ready[word * WORD_COLUMNS + field] = x[word * WORD_COLUMNS + field] * scale[field];
}

/* 16 rows of a unit, from row v * 16 on: tile[column * ROWS + lane]. */
static void dequantize_unit(const uint8_t *unit, int v, long unit_words, float *tile)
{
    const rows_f scale = load_scale(unit, v), zero = load_i16(unit + {{ scale_bytes }} + v * 32);
    for (long word = 0; word < unit_words; word++) {
        const rows_w w = load_words(unit + WORDS_AT + word * WORD_BYTES + v * 64);
        rows_f code[WORD_COLUMNS];
{% for field in range(32 // bits) %}
        code[{{ field }}] = {{ "above(w, %d)" % (32 - bits) if field == 32 // bits - 1 else "mul(broadcast(0x1p-%df), masked(w, 0x%x))" % (bits * field, (2 ** bits - 1) * 2 ** (bits * field)) }};
{% endfor %}
        for (int field = 0; field < WORD_COLUMNS; field++)
            store_f32(tile + (word * WORD_COLUMNS + field) * ROWS, mul(scale, add(code[field], mul(broadcast(-1), zero))));
    }
}

/* Columns of `count` words from word `first` on: tile[(v * columns + column) * 16 + lane]. */
static void dequantize_tile(const uint8_t *unit, long first, long count, float *tile)
{
    for (int v = 0; v < 2; v++) {
        const rows_f offset = load_offset(unit, v), scale = load_scale(unit, v);
        for (long word = 0; word < count; word++, tile += WORD_COLUMNS * 16) {
            const rows_w w = load_words(unit + WORDS_AT + (first + word) * WORD_BYTES + v * 64);
{% for field in range(32 // bits) %}
            store_f32(tile + {{ 16 * field }}, fma_rows({{ "above(w, %d)" % (32 - bits) if field == 32 // bits - 1 else "masked(w, 0x%x)" % ((2 ** bits - 1) * 2 ** (bits * field)) }}, mul(scale, broadcast({{ "1" if field == 32 // bits - 1 else "0x1p-%df" % (bits * field) }})), offset));
{% endfor %}
        }
    }
}

{% include "rows/entry.h" %}
