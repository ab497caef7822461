/* y[m, n] = sum_k x[m, k] W[n, k],  W[n, k] = sum_b alpha[b, n, group] B_b[n, k] + offset[n, group]

   Lookup tables of integers of 24 bits, for AVX2: the 4 signs of a plane at neighbouring columns pick one of the 16 sums
   those activations can make, in 3 bytes (one scale a unit), each in a table of its own. Bytes are added up in 16 bits: of
   a plane by itself those of even and odd places, rows 0-15 and 16-31, apart; of two planes whose alphas are one and two
   times the same (LUT-GEMM Eq. 5), which lie in neighbouring bytes, by one vpmaddubsw that weighs, adds and widens. Sums
   of integers are exact; in the end the bytes are put together, converted and multiplied by scale and alpha.
   src/lutlab/kernels/cpu/bcq_gemv.py and row_blocks.py draw the stream of weights. */
{% set parts = ["avx2_bytes"] %}
{% include "rows/head.h" %}

{% include "bcq/planes.h" %}
enum {
    DIGITS = 3,
    BIAS = 1 << 23,                /* added to entries, so that they are not negative */
    WORD_LOOKUPS = 8,              /* of 4 columns */
    LOOKUP_BYTES = DIGITS * 16,
    SUMS = 2,                      /* floats kept of a unit of x: scale of its tables, sum */
    WORD_READY = WORD_LOOKUPS * LOOKUP_BYTES / (int)sizeof(float), /* floats' room that a word of columns is prepared into */
    PAIR_WORDS = 8                 /* 3 * 255 times their lookups are less than 2^16 */
};

/* What sums of the highest bytes begin with, so that no bias is left of `lookups` entries in the end. */
static INLINE rows_h less_bias(long lookups) { return _mm256_set1_epi16((short)-(BIAS / 65536 * lookups)); }

/* One row of x times plane `plane` of one unit of 32 rows. A call of its own, or the registers that its callers need
   are missing in the loop. */
static __attribute__((noinline)) void add_plane(const uint8_t *unit, const float *grids, int plane, long unit_words,
                                                const uint8_t *table,
                                                float scale, float *y, long ahead)
{
    const uint8_t *words = unit + WORDS_AT + plane * 128;
    const rows_h none = _mm256_setzero_si256(), of_odd = _mm256_set1_epi16(1 << 8);
    const rows_h less = less_bias(unit_words * WORD_LOOKUPS);
    rows_h both0 = none, both1 = none, both2 = add_halves(less, _mm256_slli_epi16(less, 8));
    rows_h odd0 = none, odd1 = none, odd2 = less;
    for (long word = 0; word < unit_words; word++, words += WORD_BYTES, table += WORD_LOOKUPS * LOOKUP_BYTES) {
        rows_b bytes, index, found;
{% for lookup in range(8) %}
{% if lookup % 2 == 0 %}
        bytes = load_row_bytes(words + {{ 16 * lookup }});
{% if lookup % 4 == 0 %}
        prefetch(words + ahead + {{ 16 * lookup }});
{% endif %}
{% endif %}
        index = {{ "high" if lookup % 2 else "low" }}_nibbles(bytes);
{% for d in range(3) %}
        found = look_up_bytes(table + {{ lookup }} * LOOKUP_BYTES + {{ [0, 2, 1][d] * 16 }}, index);
        both{{ d }} = add_halves(both{{ d }}, found);
        odd{{ d }} = add_halves(odd{{ d }}, _mm256_maddubs_epi16(found, of_odd));
        KEEP_TABLE(both{{ d }});
        KEEP_TABLE(odd{{ d }});
{% endfor %}
{% endfor %}
    }
    add_sum(unit, grids, plane, 0, scale,
            three_bytes(without_odd(both0, odd0), without_odd(both1, odd1), without_odd(both2, odd2)), y);
    add_sum(unit, grids, plane, 1, scale, three_bytes(odd0, odd1, odd2), y);
}

{% if pairs %}
/* The same of planes `plane` and `plane` + 1, of `count` <= PAIR_WORDS words from `word` on. */
static __attribute__((noinline)) void add_pair(const uint8_t *unit, const float *grids, int plane, long word, long count,
                                               const uint8_t *table,
                                               float scale, float *y, long ahead)
{
    const uint8_t *words = unit + WORDS_AT + word * WORD_BYTES + plane * 128;
    const rows_h none = _mm256_setzero_si256(), weights = _mm256_set1_epi16(1 | 2 << 8);
    const rows_h less = less_bias(3 * count * WORD_LOOKUPS);
    rows_h low0 = none, low1 = none, low2 = less, high0 = none, high1 = none, high2 = less; /* rows of bytes 0-7, 8-15 of 16 */
    table += word * WORD_LOOKUPS * LOOKUP_BYTES;
    for (; count > 0; count--, words += WORD_BYTES, table += WORD_LOOKUPS * LOOKUP_BYTES) {
        rows_b first, second, low, high, low_index, high_index, entries;
{% for lookup in range(8) %}
{% if lookup % 2 == 0 %}
        first = load_row_bytes(words + {{ 16 * lookup }}), second = load_row_bytes(words + {{ 128 + 16 * lookup }});
        prefetch(words + ahead + {{ 32 * lookup }});
        low = _mm256_unpacklo_epi8(first, second), high = _mm256_unpackhi_epi8(first, second);
{% endif %}
{% set nibbles = "high_nibbles" if lookup % 2 else "low_nibbles" %}
        low_index = {{ nibbles }}(low), high_index = {{ nibbles }}(high);
{% for d in range(3) %}
        entries = load_byte_table(table + {{ lookup }} * LOOKUP_BYTES + {{ [0, 2, 1][d] * 16 }});
        low{{ d }} = add_halves(low{{ d }}, _mm256_maddubs_epi16(_mm256_shuffle_epi8(entries, low_index), weights));
        high{{ d }} = add_halves(high{{ d }}, _mm256_maddubs_epi16(_mm256_shuffle_epi8(entries, high_index), weights));
        KEEP_TABLE(low{{ d }});
        KEEP_TABLE(high{{ d }});
{% endfor %}
{% endfor %}
    }
    /* Rows 16 h + 8 i + ..., h alternating: those of i = 0, 1. */
    const rows_f i0 = three_bytes(low0, low1, low2), i1 = three_bytes(high0, high1, high2);
    for (int v = 0; v < 2; v++) add_sum(unit, grids, plane, v, scale, v ? odd_floats(i0, i1) : even_floats(i0, i1), y);
}
{% endif %}

{% include "bcq/unit.h" %}
{% include "bcq/byte_tables.h" %}

{% include "rows/entry.h" %}
