/* One row of x times one unit, offsets included: {{ pairs }} planes two and two, the others by themselves. */
static INLINE void unit_1(const uint8_t *unit, const float *grids, long unit_words, const float *t,
                          long t_stride, const float *sums,
                          long sums_stride, float *y, long y_stride, long ahead)
{
    (void)t_stride, (void)sums_stride, (void)y_stride;
    const void *tables = t;
    for (int line = 0; line < WORDS_AT; line += 64) prefetch(unit + ahead + line);
{% if pairs %}
    for (int plane = 0; plane < {{ pairs }}; plane += 2)
        for (long word = 0; word < unit_words; word += PAIR_WORDS) {
            const long left = unit_words - word;
            add_pair(unit, grids, plane, word, left < PAIR_WORDS ? left : PAIR_WORDS, tables, sums[0], y, ahead);
        }
{% endif %}
    for (int plane = {{ pairs }}; plane < Q; plane++) add_plane(unit, grids, plane, unit_words, tables, sums[0], y, ahead);
{% if offset %}
    add_offset(unit, grids, 0, sums[1], y);
{% endif %}
}
