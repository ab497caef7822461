{% for loop_of in loops %}
/* {{ loop_of.m }} row{{ "s" if loop_of.m > 1 }} of x times one unit, zero points included. */
static INLINE void unit_{{ loop_of.m }}(const uint8_t *unit, long unit_words, const float *x, long x_stride, const float *sums,
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
        const rows_f scale{{ v }} = load_scale(unit, {{ v }}), offset{{ v }} = load_offset(unit, {{ v }});
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
