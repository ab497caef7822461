{% set span = 32 // groups_in_unit %}
/* y[m, n] = sum_k x[m, k] W[n, k],  W[n, k] = sum_b alpha[b, n, group] B_b[n, k] + offset[n, group]

   Lookup tables, the CPU form of LUT-GEMM (section III): the {{ lut_bits }} signs of a plane at neighbouring columns pick one of
   the {{ 2 ** lut_bits }} sums those activations can make. A table is one register, the rows lie in the lanes, a step is
   shift, lookup, {{ "multiply by alpha and add" if weigh == "first" else "add, and alpha multiplies the sum of a group" }}: every bit of every plane costs the same.
   src/lutlab/kernels/cpu/bcq_gemv.py and row_blocks.py draw the stream of weights. */
{% set parts = [] %}
{% include "rows/head.h" %}

{% include "bcq/planes.h" %}
#define TABLE (1 << TABLE_BITS)
enum {
    WORD_TABLES = {{ cuts | length }},{{ "" if cuts | length > 9 else " " }}               /* lookups that use up a word */
    SUMS = GROUPS,                  /* sums of activations in a unit */
    WORD_READY = WORD_TABLES * TABLE /* floats that a word of columns is prepared into */
};

static INLINE void add_to(float *y, rows_f sum) { store_f32(y, add(load_f32(y), sum)); }

{% macro weigh_sums(loop_of, tile, group) %}
{% for m in range(loop_of.m) %}
{% for i in tile %}
{% set all = loop_of.sums([i], m) %}
{% for other in all[1:] %}
        {{ all[0] }} = add({{ all[0] }}, {{ other }});
{% endfor %}
        add_to(y + {{ m ~ " * y_stride + " if m }}{{ 16 * (i % 2) }}, mul(load_alpha(unit, grids, {{ group }}, plane + {{ i // 2 }}, {{ i % 2 }}), {{ all[0] }}));
{% endfor %}
{% endfor %}
{%- endmacro %}
{% for loop_of in loops %}
{% set tile = range(loop_of.vectors) %}
{% set planes = loop_of.vectors // 2 %}
/* {{ loop_of.m }} row{{ "s" if loop_of.m > 1 }} of x times {{ planes }} plane{{ "s" if planes > 1 }}, from `plane` on, of one unit of 32 rows: w0, w1 are the words of a plane's rows
   0-15 and 16-31, w2, w3 those of the next plane; t, sums and y are {{ "arrays of " ~ loop_of.m ~ ", `*_stride` floats apart" if loop_of.m > 1 else "those of the row of x" }}. */
static INLINE void planes_{{ planes }}_rows_{{ loop_of.m }}(const uint8_t *unit, const float *grids, int plane, long unit_words,
                          const float *t, long t_stride, float *y,
                          long y_stride, long ahead)
{
    const uint8_t *words = unit + WORDS_AT + plane * 128;
    (void)t_stride, (void)y_stride;
{% if weigh == "first" and groups_in_unit == 1 %}
{% for i in tile %}
    const rows_f a{{ i }} = load_alpha(unit, grids, 0, plane + {{ i // 2 }}, {{ i % 2 }});
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
{% for column, bits in cuts %}
{% set cut = loop.index0 %}
{% if weigh == "first" and groups_in_unit > 1 and column % span == 0 %}
{% for i in tile %}
        {{ "" if column else "rows_f " }}a{{ i }} = load_alpha(unit, grids, {{ column // span }}, plane + {{ i // 2 }}, {{ i % 2 }});
{% endfor %}
{% endif %}
{% for m in range(loop_of.m) %}
        table = load_table(t + {{ m ~ " * t_stride + " if m }}{{ cut }} * TABLE); /* columns {{ column }}..{{ column + bits - 1 }} */
        KEEP_TABLE(table);
{% for i in tile %}
{% set sum = loop_of.sum(i, m, cut) %}
{% if weigh == "first" %}
        {{ sum }} = fma_rows(a{{ i }}, lookup(table, w{{ i }}, {{ column }}), {{ sum }});
{% else %}
        {{ sum }} = add(lookup(table, w{{ i }}, {{ column }}), {{ sum }});
{% endif %}
        KEEP({{ sum }});
{% endfor %}
{% endfor %}
{% if weigh == "last" and groups_in_unit > 1 and (column + bits) % span == 0 %}
{{ weigh_sums(loop_of, tile, column // span) }}
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
{% set all = loop_of.sums(range(v, loop_of.vectors, 2), m) %}
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
static INLINE void unit_{{ m }}(const uint8_t *unit, const float *grids, long unit_words, const float *t,
                          long t_stride, const float *sums,
                          long sums_stride, float *y, long y_stride, long ahead)
{
    for (int line = 0; line < WORDS_AT; line += 64) prefetch(unit + ahead + line);
    int plane = 0;
{% for loop_of in loops if loop_of.m == m %}
{% set planes = loop_of.vectors // 2 %}
    for (; plane + {{ planes }} <= Q; plane += {{ planes }})
        planes_{{ planes }}_rows_{{ m }}(unit, grids, plane, unit_words, t, t_stride, y, y_stride, ahead);
{% endfor %}
{% if offset %}
    for (int m = 0; m < {{ m }}; m++)
        for (int group = 0; group < GROUPS; group++)
            add_offset(unit, grids, group, sums[m * sums_stride + group], y + m * y_stride);
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
{% for column, bits in cuts %}
{% set cut = loop.index0 %}
{% if bits == lut_bits %}
        build_table(tables + {{ cut }} * TABLE, x + {{ column }});
{% else %}
        build_table(tables + {{ cut }} * TABLE, (const float[TABLE_BITS]){ {%- for bit in range(bits) %}x[{{ column + bit }}]{{ "" if loop.last else ", " }}{% endfor %}}); /* the rest is 0 */
{% endif %}
{% endfor %}
    }
}

{% include "rows/entry.h" %}
