/* Tables, their scale, and sums of activations of `units` units of one row of x. A unit that holds inf or nan gets the
   scale nan; one of nothing but tiny numbers is rounded to multiples of 2^-100 / BIAS (arrange() has lifted tiny rows). */
static void prepare(const float *x, long units, long unit_words, float *ready, float *sums)
{
    uint8_t *tables = (uint8_t *)ready;
    for (long u = 0; u < units; u++, sums += SUMS) {
        const long span = unit_words * WORD_COLUMNS;
        const float largest = largest_of_fours(x, span, 0x1p-100f);
        sums[0] = largest / (BIAS - 8);
{% if offset %}
        sums[1] = sum_of(x, span);
{% endif %}
        const float inverse = largest > 0 ? 1 / sums[0] : 0; /* not where it is nan */
        for (long j = 0; j < span; j += 4, x += 4, tables += DIGITS * 16)
            build_byte_tables(tables, x, inverse, BIAS, {{ digit_bits }}, DIGITS);
    }
}
