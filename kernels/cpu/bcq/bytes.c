{% set bias = 2 ** (6 * digits - 1) %}
{% set places = [0, 2, 1, 3] %}
/* y[m, n] = sum_k x[m, k] W[n, k],  W[n, k] = sum_b alpha[b, n, group] B_b[n, k] + offset[n, group]

   Lookup tables in bytes, for AVX2: the 4 signs of a plane at neighbouring columns pick one of the 16 sums those
   activations can make, an integer of {{ digits }} digits in base 64 ({{ 6 * digits }} bits, one scale a unit), each digit in a table of its
   own. Four digits added are still a byte, so that only one sum in four is widened to 16 bits. Sums of integers are
   exact; at the end of a unit the digits are put together, converted and multiplied by scale and alpha.
   src/lutlab/kernels/cpu/bcq_gemv.py and row_blocks.py draw the stream of weights. */
{% set parts = ["avx2_bytes"] %}
{% include "rows/head.h" %}

{% include "bcq/planes.h" %}
enum {
    DIGITS = {{ digits }},
    WORD_LOOKUPS = 8,              /* of 4 columns */
    BIAS = {{ bias }},{{ " " * (22 - bias | string | length) }}/* added to entries, so that they are not negative */
    SUMS = 2,                      /* floats kept of a unit of x: scale of its tables, sum */
    WORD_READY = WORD_LOOKUPS * DIGITS * 16 / (int)sizeof(float) /* floats' room that a word of columns is prepared into */
};

/* One row of x times plane `plane` of one unit of 32 rows. A call of its own, or the registers that its callers need
   are missing in the loop. */
static __attribute__((noinline)) void add_plane(const uint8_t *unit, const float *grids, int plane, long unit_words,
                                                const uint8_t *table,
                                                float scale, float *y, long ahead)
{
    const uint8_t *words = unit + WORDS_AT + plane * 128;
    rows_h {% for d in range(digits) %}both{{ d }} = _mm256_setzero_si256(), odd{{ d }} = both{{ d }}{{ ";" if loop.last else ", " }}{% endfor %}

    for (long word = 0; word < unit_words; word++, words += WORD_BYTES, table += WORD_LOOKUPS * DIGITS * 16) {
        rows_b sum;
{% for half in range(2) %}
{% set i = "i%d_" % half %}
        const rows_b first{{ half }} = load_row_bytes(words + {{ 64 * half }}), second{{ half }} = load_row_bytes(words + {{ 64 * half + 32 }});
        prefetch(words + ahead + {{ 64 * half }});
        const rows_b {{ i }}0 = low_nibbles(first{{ half }}), {{ i }}1 = high_nibbles(first{{ half }});
        const rows_b {{ i }}2 = low_nibbles(second{{ half }}), {{ i }}3 = high_nibbles(second{{ half }});
{% for d in range(digits) %}
{% set at = 4 * half * digits + places[d] %}
        sum = look_up_bytes(table + {{ 16 * at }}, {{ i }}0);
{% for j in range(1, 4) %}
        sum = add_bytes(sum, look_up_bytes(table + {{ 16 * (at + j * digits) }}, {{ i }}{{ j }}));
        KEEP_TABLE(sum);
{% endfor %}
        both{{ d }} = add_halves(both{{ d }}, sum);
        odd{{ d }} = add_halves(odd{{ d }}, odd_bytes(sum));
        KEEP_TABLE(both{{ d }});
        KEEP_TABLE(odd{{ d }});
{% endfor %}
{% endfor %}
    }
    const int bias = (int)((unsigned)BIAS * (unsigned)(unit_words * WORD_LOOKUPS));
    for (int v = 0; v < 2; v++) {
        const rows_h none = _mm256_setzero_si256();
{% for d in range(digits) %}
        const rows_h digit{{ d }} = v ? odd{{ d }} : without_odd(both{{ d }}, odd{{ d }});
{% endfor %}
        const rows_f sum = four_digits(two_digits(digit0, digit1), two_digits(digit2, {{ "digit3" if digits == 4 else "none" }}), bias);
        (void)none;
        add_sum(unit, grids, plane, v, scale, sum, y);
    }
}

{% set pairs = 0 %}
{% include "bcq/unit.h" %}
{% include "bcq/byte_tables.h" %}

{% include "rows/entry.h" %}
