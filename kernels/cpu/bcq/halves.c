/* y[m, n] = sum_k x[m, k] W[n, k],  W[n, k] = sum_b alpha[b, n, group] B_b[n, k] + offset[n, group]

   Lookup tables in 16 bits, for AVX-512: not exact, never the default. The 4 signs of a plane at neighbouring columns
   pick one of the 16 sums those activations can make, rounded to multiples of a scale of the unit. The scale is such
   that 16 columns cannot sum to more than 16 bits hold: four lookups are added in 16 bits, widened to 32 once. A step
   is shift, lookup, add, and for 4 of them two dot products that widen: 12 instructions for 512 signs.
   src/lutlab/kernels/cpu/bcq_gemv.py and row_blocks.py draw the stream of weights. */
{% set parts = ["avx512_halves"] %}
{% include "rows/head.h" %}

{% include "bcq/planes.h" %}
enum {
    TABLE = 32,                /* numbers, each sum twice */
    WORD_LOOKUPS = 8,          /* of 4 columns */
    MOST = 32760,              /* 32767, less what rounding four entries may add */
    SUMS = 2,                  /* floats kept of a unit of x: scale of its tables, sum */
    WORD_READY = WORD_LOOKUPS * TABLE / 2 /* floats' room that a word of columns is prepared into */
};

{% for planes in together %}
/* One row of x times {{ planes }} plane{{ "s" if planes > 1 }} of one unit of 32 rows, from `plane` on. */
static INLINE void add_planes_{{ planes }}(const uint8_t *unit, const float *grids, int plane, long unit_words,
                                const int16_t *table, float scale, float *y,
                                long ahead)
{
    const uint8_t *words = unit + WORDS_AT + plane * 128;
{% for p in range(planes) %}
    rows_i {% for s in range(sums) %}low{{ p }}_{{ s }} = no_rows(), high{{ p }}_{{ s }} = no_rows(){{ ";" if loop.last else ", " }}{% endfor %}

{% endfor %}
    for (long word = 0; word < unit_words; word++, words += WORD_BYTES, table += WORD_LOOKUPS * TABLE) {
        rows_h {% for p in range(planes) %}w{{ p }}, sum{{ p }}{{ ";" if loop.last else ", " }}{% endfor %}

{% for half in range(2) %}
{% for p in range(planes) %}
        w{{ p }} = load_halves(words + {{ 128 * p + 64 * half }});
        KEEP(w{{ p }});
        prefetch(words + ahead + {{ 128 * p + 64 * half }});
{% endfor %}
{% for i in range(4) %}
        {
            const rows_h entries = load_halves(table + {{ 4 * half + i }} * TABLE);
{% for p in range(planes) %}
{% set entry = "look_up_halves(entries, w%d, %d)" % (p, 4 * i) %}
            sum{{ p }} = {{ entry if i == 0 else "add_halves(sum%d, %s)" % (p, entry) }};
{% endfor %}
        }
{% endfor %}
{% for p in range(planes) %}
{% for v, name in ((0, "low"), (1, "high")) %}
        {{ name }}{{ p }}_{{ half % sums }} = add_every_other({{ name }}{{ p }}_{{ half % sums }}, sum{{ p }}, {{ v }});
        KEEP({{ name }}{{ p }}_{{ half % sums }});
{% endfor %}
{% endfor %}
{% endfor %}
    }
{% for p in range(planes) %}{% for v, name in ((0, "low"), (1, "high")) %}
    add_sum(unit, grids, plane + {{ p }}, {{ v }}, scale, {% if sums == 2 %}add(to_floats({{ name }}{{ p }}_0), to_floats({{ name }}{{ p }}_1)){% else %}to_floats({{ name }}{{ p }}_0){% endif %}, y);
{% endfor %}{% endfor %}
}

{% endfor %}
/* One row of x times one unit, offsets included. */
static INLINE void unit_1(const uint8_t *unit, const float *grids, long unit_words, const float *t,
                          long t_stride, const float *sums,
                          long sums_stride, float *y, long y_stride, long ahead)
{
    (void)t_stride, (void)sums_stride, (void)y_stride;
    for (int line = 0; line < WORDS_AT; line += 64) prefetch(unit + ahead + line);
    int plane = 0;
{% for planes in together %}
    for (; plane + {{ planes }} <= Q; plane += {{ planes }})
        add_planes_{{ planes }}(unit, grids, plane, unit_words, (const int16_t *)t, sums[0], y, ahead);
{% endfor %}
{% if offset %}
    add_offset(unit, grids, 0, sums[1], y);
{% endif %}
}

/* Tables, their scale, and sums of activations of `units` units of one row of x. A unit that holds inf or nan gets the
   scale nan; one of nothing but tiny numbers is rounded to multiples of 2^-100 / MOST (arrange() has lifted tiny rows). */
static void prepare(const float *x, long units, long unit_words, float *ready, float *sums)
{
    int16_t *tables = (int16_t *)ready;
    for (long u = 0; u < units; u++, sums += SUMS) {
        const long span = unit_words * WORD_COLUMNS;
        float largest = 0x1p-100f;
        int finite = 1;
        for (long j = 0; j < span; j += 16) {
            float most = 0;
            for (int i = 0; i < 16; i++) most += fabsf(x[j + i]);
            finite &= most <= FLT_MAX;
            largest = most > largest ? most : largest;
        }
        sums[0] = finite ? largest / MOST : NAN;
        sums[1] = sum_of(x, span);
        const float inverse = finite ? 1 / sums[0] : 0;
        for (long j = 0; j < span; j += 4, x += 4, tables += TABLE) build_half_table(tables, x, inverse);
    }
}

{% include "rows/entry.h" %}
