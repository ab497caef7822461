{% set pairs = 2 * q %}
{% set words_at = scale_bytes + offset_bytes %}
/* y[m, n] = sum_k x[m, k] W[n, k],  W[n, k] = sum_b alpha[b, n, group] B_b[n, k] + offset[n, group]

   Lookup tables, the CPU form of LUT-GEMM (section III): the {{ lut_bits }} signs of a plane at neighbouring columns pick one of
   the {{ 2 ** lut_bits }} sums those activations can make. A table is one register, the rows lie in the lanes, a step is
   shift, lookup, {{ "multiply by alpha and add" if weigh == "first" else "add, and alpha multiplies the sum of a group" }}: every bit of every plane costs the same.
   src/lutlab/formats/bcq_rows.py and row_blocks.py draw the stream of weights. */
#include <math.h>
#include <stdint.h>
#include <string.h>
#define INLINE inline __attribute__((always_inline))
{% include "simd/" ~ simd ~ ".h" %}

{% include "rows/activations.h" %}

#define TABLE (1 << TABLE_BITS)
enum {
    Q = {{ q }},                          /* planes */
    ROWS = 32,                      /* of a block: two vectors of 16 */
    WORD_COLUMNS = 32,
    WORD_TABLES = {{ cuts | length }},{{ "" if cuts | length > 9 else " " }}               /* lookups that use up a word */
    SUMS = {{ groups_in_unit }},                       /* groups in a unit */
    WORDS_AT = {{ scale_bytes + offset_bytes }},{{ " " * (19 - (scale_bytes + offset_bytes) | string | length) }}/* of a unit: scales come first */
    WORD_BYTES = Q * ROWS * 4,      /* of a block */
    WORD_READY = WORD_TABLES * TABLE /* floats that a word of columns is prepared into */
};

static INLINE rows_f load_alpha(const uint8_t *unit, int group, int plane, int v)
{
{% if offset == "i16" %}
    /* LUT-GEMM Eq. 5: alpha_b = 2^(b-1) s */
    return mul(broadcast(0.5f * (float)(1 << plane)), load_{{ alpha }}(unit + (group * ROWS + v * 16) * {{ alpha_size }}));
{% else %}
    return load_{{ alpha }}(unit + ((group * Q + plane) * ROWS + v * 16) * {{ alpha_size }});
{% endif %}
}
{% if offset %}
static INLINE rows_f load_offset(const uint8_t *unit, int group, int v)
{
    rows_f z = load_{{ offset }}(unit + {{ scale_bytes }} + (group * ROWS + v * 16) * {{ offset_size }});
{% if offset == "i16" %}
    /* LUT-GEMM Eq. 5: z = s ((2^q - 1) / 2 - zero_point) */
    z = fma_rows(broadcast(-1), z, broadcast({{ (2 ** q - 1) / 2 }}f));
    z = mul(z, load_{{ alpha }}(unit + (group * ROWS + v * 16) * {{ alpha_size }}));
{% endif %}
    return z;
}
{% endif %}

static INLINE void add_to(float *y, rows_f sum) { store_f32(y, add(load_f32(y), sum)); }

{% macro weigh_sums(loop_of, tile, group) %}
{% for m in range(loop_of.m) %}
{% for i in tile %}
{% set all = loop_of.sums(m, i % 2, i // 2) %}
{% for other in all[1:] %}
        {{ all[0] }} = add({{ all[0] }}, {{ other }});
{% endfor %}
        add_to(y + {{ m ~ " * y_stride + " if m }}{{ 16 * (i % 2) }}, mul(load_alpha(unit, {{ group }}, plane + {{ i // 2 }}, {{ i % 2 }}), {{ all[0] }}));
{% endfor %}
{% endfor %}
{%- endmacro %}
{% for loop_of in loops %}
{% set tile = range(2 * loop_of.planes) %}
/* {{ loop_of.m }} row{{ "s" if loop_of.m > 1 }} of x times {{ loop_of.planes }} plane{{ "s" if loop_of.planes > 1 }}, from `plane` on, of one unit of 32 rows: w0, w1 are the words of a plane's rows
   0-15 and 16-31, w2, w3 those of the next plane; t, sums and y are {{ "arrays of " ~ loop_of.m ~ ", `*_stride` floats apart" if loop_of.m > 1 else "those of the row of x" }}. */
static INLINE void {{ loop_of.name }}(const uint8_t *unit, int plane, long unit_words, const float *t, long t_stride, float *y,
                          long y_stride, long ahead)
{
    const uint8_t *words = unit + WORDS_AT + plane * 128;
    (void)t_stride, (void)y_stride;
{% if weigh == "first" and groups_in_unit == 1 %}
{% for i in tile %}
    const rows_f a{{ i }} = load_alpha(unit, 0, plane + {{ i // 2 }}, {{ i % 2 }});
{% endfor %}
{% endif %}
    rows_f {{ loop_of.sums() | join(" = broadcast(0), ") }} = broadcast(0);
    for (long word = 0; word < unit_words; word++, words += WORD_BYTES, t += WORD_READY) {
        table_f table;
{% for i in tile %}
        rows_w w{{ i }} = load_words(words + {{ 64 * i }});
        KEEP(w{{ i }});
        prefetch(words + ahead + {{ 64 * i }});
{% endfor %}
{% for cut in cuts %}
{% if weigh == "first" and groups_in_unit > 1 and cut.first_of_group %}
{% for i in tile %}
        {{ "" if cut.group else "rows_f " }}a{{ i }} = load_alpha(unit, {{ cut.group }}, plane + {{ i // 2 }}, {{ i % 2 }});
{% endfor %}
{% endif %}
{% for m in range(loop_of.m) %}
        table = load_table(t + {{ m ~ " * t_stride + " if m }}{{ cut.index }} * TABLE); /* columns {{ cut }} */
        KEEP_TABLE(table);
{% for i in tile %}
{% set sum = loop_of.sum(m, i, cut.index) %}
{% if weigh == "first" %}
        {{ sum }} = fma_rows(a{{ i }}, lookup(table, w{{ i }}, {{ cut.column }}), {{ sum }});
{% else %}
        {{ sum }} = add(lookup(table, w{{ i }}, {{ cut.column }}), {{ sum }});
{% endif %}
        KEEP({{ sum }});
{% endfor %}
{% endfor %}
{% if weigh == "last" and groups_in_unit > 1 and cut.last_of_group %}
{{ weigh_sums(loop_of, tile, cut.group) }}
{% if not loop.last %}
        {{ loop_of.sums() | join(" = ") }} = broadcast(0);
{% endif %}
{% endif %}
{% endfor %}
    }
{% if weigh == "last" and groups_in_unit == 1 %}
{{ weigh_sums(loop_of, tile, 0) }}
{% elif weigh == "first" %}
{% for m in range(loop_of.m) %}{% for v in (0, 1) %}
{% set all = loop_of.sums(m, v) %}
{% for other in all[1:] %}
    {{ all[0] }} = add({{ all[0] }}, {{ other }});
{% endfor %}
    add_to(y + {{ m ~ " * y_stride + " if m }}{{ 16 * v }}, {{ all[0] }});
{% endfor %}{% endfor %}
{% endif %}
}

{% endfor %}
{% for m in batches %}
/* {{ m }} row{{ "s" if m > 1 }} of x times one unit, offsets included. */
static INLINE void unit_{{ m }}(const uint8_t *unit, long unit_words, const float *t, long t_stride, const float *sums,
                          long sums_stride, float *y, long y_stride, long ahead)
{
    for (int line = 0; line < WORDS_AT; line += 64) prefetch(unit + ahead + line);
    int plane = 0;
{% for loop_of in loops if loop_of.m == m %}
    for (; plane + {{ loop_of.planes }} <= Q; plane += {{ loop_of.planes }})
        {{ loop_of.name }}(unit, plane, unit_words, t, t_stride, y, y_stride, ahead);
{% endfor %}
{% if offset %}
    for (int m = 0; m < {{ m }}; m++)
        for (int group = 0; group < SUMS; group++)
            for (int v = 0; v < 2; v++) {
                float *to = y + m * y_stride + v * 16;
                rows_f sum = broadcast(sums[m * sums_stride + group]);
                store_f32(to, fma_rows(load_offset(unit, group, v), sum, load_f32(to)));
            }
{% else %}
    (void)sums, (void)sums_stride;
{% endif %}
}

{% endfor %}
/* Tables and sums of activations of `units` units of one row of x. */
static void prepare(const float *x, long units, long unit_words, float *tables, float *sums)
{
    const long span = unit_words * 32 / SUMS;
    for (long i = 0; i < units * SUMS; i++) sums[i] = sum_of(x + i * span, span);
    for (long word = 0; word < units * unit_words; word++, x += 32, tables += WORD_TABLES * TABLE) {
{% for cut in cuts %}
{% if cut.bits == lut_bits %}
        build_table(tables + {{ cut.index }} * TABLE, x + {{ cut.column }});
{% else %}
        build_table(tables + {{ cut.index }} * TABLE, (const float[TABLE_BITS]){ {%- for bit in range(cut.bits) %}x[{{ cut.column + bit }}]{{ "" if loop.last else ", " }}{% endfor %}}); /* the rest is 0 */
{% endif %}
{% endfor %}
    }
}

/* *sum + *rest + b, of which *rest is what *sum had no bits for (Knuth's exact sum of two). */
static INLINE void add_exactly(rows_f *sum, rows_f *rest, rows_f b)
{
    const rows_f a = *sum, s = add(a, b), of_b = subtract(s, a);
    *rest = add(*rest, add(subtract(a, subtract(s, of_b)), subtract(b, of_b)));
    *sum = s;
}

/* 16 rows of a unit, from row v * 16 on: tile[column * ROWS + lane]. */
static void dequantize_unit(const uint8_t *unit, int v, long unit_words, float *tile)
{
    for (int group = 0; group < SUMS; group++) {
        rows_f a[Q], z = {{ "load_offset(unit, group, v)" if offset else "broadcast(0)" }};
        for (int plane = 0; plane < Q; plane++) a[plane] = load_alpha(unit, group, plane, v);
        for (long word = 0; word < unit_words; word++) {
            rows_w w[Q];
            for (int plane = 0; plane < Q; plane++)
                w[plane] = load_words(unit + WORDS_AT + word * WORD_BYTES + plane * 128 + v * 64);
            for (int bit = group * 32 / SUMS; bit < (group + 1) * 32 / SUMS; bit++) {
                rows_f value = z, rest = broadcast(0);
                for (int plane = 0; plane < Q; plane++)
                    add_exactly(&value, &rest, negated_unless(a[plane], w[plane], bit));
                store_f32(tile + (word * 32 + bit) * ROWS, add(value, rest));
            }
        }
    }
}

{% include "rows/entry.h" %}
