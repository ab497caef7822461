/* Sums of a unit in integers, with AVX2. */
enum {
    TABLE_READY = OCTETS * 2 * DIGITS * 16 / (int)sizeof(float), /* floats' room of a unit's tables */
    DIGITS_READY = OCTETS * 2 * DIGITS * 32 / (int)sizeof(float) /* and of its activations' digits */
};
static INLINE long ready_floats(int q) { return q == 4 ? DIGITS_READY : TABLE_READY; }

/* Tables or digits of `units` units of one row of x. The scale of a unit's integers leaves room for every sum of 32 bits. A
   unit that holds inf or nan gets the scale nan; one of nothing but tiny numbers is rounded to multiples of
   2^-100 / 0x7f7f7f (arrange() has lifted tiny rows). */
static __attribute__((noinline)) void prepare(int q, const float *x, long units, float *ready, sums_of_unit *sums)
{
    uint8_t *to = (uint8_t *)ready;
    for (; units > 0; units--, sums++) {
        float largest = 0x1p-100f, absolute = 0;
        for (long j = 0; j < G; j += 4) {
            float most = 0, all = 0;
            for (int i = 0; i < 4; i++) {
                const float size = fabsf(x[j + i]);
                all += size;
                most = size > most ? size : most;
            }
            absolute += all;
            most = q == 4 ? most : all;
            largest = most > largest ? most : largest;
        }
        const int finite = absolute <= FLT_MAX;
        const float most_code = (float)((1 << q) - 1);
        const float by_entry = largest / (MOST_DIGITS - 8), by_sum = absolute * (most_code * 0x1.01p-31f);
        const float unit = by_entry > by_sum ? by_entry : by_sum, inverse = finite ? 1 / unit : 0;
        const float all = sum_of(x, G);
        sums->unit = finite ? (q == 4 ? unit : unit / 2) : NAN;
        sums->center = q < 4 ? all * (most_code / 2) : has_scales(q) ? 0 : -8 * all;
        sums->part = -all / 16;
        for (long j = 0; j < G; j += q == 4 ? 8 : 4, x += q == 4 ? 8 : 4) {
            if (q == 4) build_activation_digits(to, x, inverse);
            else build_digit_tables(to, x, inverse);
            to += DIGITS * (q == 4 ? 64 : 16);
        }
    }
}

/* sums += what 16 rows' bytes at 8 columns look up; p: two planes of a row in neighbouring bytes, or one of two rows. */
static INLINE void add_lookups(digits_h *sums, rows_b bytes, const uint8_t *tables, int weights)
{
    const rows_b low = low_nibbles(bytes), high = high_nibbles(bytes);
    for (int digit = 0; digit < DIGITS; digit++) {
        const uint8_t *table = tables + 16 * digit;
        sums->digit[digit] = add_halves(sums->digit[digit], look_up_pairs(table, low, weights));
        KEEP_TABLE(sums->digit[digit]);
        sums->digit[digit] = add_halves(sums->digit[digit], look_up_pairs(table + 16 * DIGITS, high, weights));
        KEEP_TABLE(sums->digit[digit]);
    }
}
/* Sums of 32 rows of a unit of 2 or 3 planes. 16 bits hold those of 64 columns. */
static INLINE void sum_planes(int q, const uint8_t *words, const uint8_t *tables, float *to, long ahead)
{
    rows_w all[2];
    for (int from = 0; from < OCTETS; from += 8) {
        digits_h sums[2] = {no_digits(), no_digits()};
        for (int octet = from; octet < OCTETS && octet < from + 8; octet++, words += q * 32, tables += 2 * DIGITS * 16) {
            const rows_b first = load_row_bytes(words), second = load_row_bytes(words + 32);
            for (int line = 0; line < q * 32; line += 64) prefetch(words + ahead + line);
            add_lookups(&sums[0], first, tables, 1 | 2 << 8);
            add_lookups(&sums[1], second, tables, 1 | 2 << 8);
            if (q == 3) { /* the third planes of rows 0-15 and of rows 16-31 in neighbouring bytes */
                const rows_b third = load_row_bytes(words + 64);
                add_lookups(&sums[0], third, tables, 4);
                add_lookups(&sums[1], third, tables, 4 << 8);
            }
        }
        for (int v = 0; v < 2; v++) {
            const rows_w some = join_digits(sums[v]);
            all[v] = from ? BOTH(rows_w, _mm256_add_epi32(all[v].lo, some.lo), _mm256_add_epi32(all[v].hi, some.hi)) : some;
        }
    }
    for (int v = 0; v < 2; v++)
        store_f32(to + v * 16, BOTH(rows_f, _mm256_cvtepi32_ps(all[v].lo), _mm256_cvtepi32_ps(all[v].hi)));
}
/* Sums of 32 rows of a unit of codes of 4 bits, 8 rows after the other. 16 bits hold those of 32 columns. */
static INLINE void sum_codes(const uint8_t *words, const uint8_t *digits, float *to, long ahead)
{
    const __m256i *of_x = (const __m256i *)digits;
    for (int v = 0; v < 4; v++) {
        __m256i all = _mm256_setzero_si256();
        for (int from = 0; from < OCTETS; from += 4) {
            digits_h sums = no_digits();
            for (int octet = from; octet < OCTETS && octet < from + 4; octet++) {
                const uint8_t *here = words + octet * ROWS * 4 + v * 32;
                const rows_b codes = load_row_bytes(here);
                if (v % 2 == 0) prefetch(here + ahead);
                const rows_b even = low_nibbles(codes), odd = high_nibbles(codes);
#pragma GCC unroll 8
                for (int i = 0; i < 2 * DIGITS; i++) {
                    __m256i *sum = &sums.digit[i % DIGITS];
                    *sum = add_halves(*sum, _mm256_maddubs_epi16(i < DIGITS ? even : odd, of_x[octet * 2 * DIGITS + i]));
                    KEEP_TABLE(*sum);
                }
            }
            all = _mm256_add_epi32(all, join_neighbours(sums));
        }
        _mm256_storeu_ps(to + v * 8, _mm256_cvtepi32_ps(all));
    }
}
/* 16 bits of each of rows 16 v ..., widened. */
static INLINE rows_w halves_of(const uint8_t *p, int v) { return widened_halves(p + v * 32); }

/* Words of metadata of 8 rows and, in higher fields, of the next ones. */
static INLINE __m256i load_meta(int q, const uint8_t *meta)
{
    if (q > 2) return _mm256_loadu_si256((const __m256i *)meta);
    const __m128i wide = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    const __m256i both = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)meta)),
                                                 _mm_loadu_si128((const __m128i *)(meta + 12)), 1);
    return _mm256_shuffle_epi8(both, _mm256_broadcastsi128_si256(wide));
}
/* Steps of rows 0-15 and 16-31, and these times zero. In a loop of its own, so that they come from memory: a load fills a
   register with one number, two shuffles would. */
static INLINE void decode_steps(const uint8_t *steps, long units, float *factors)
{
    for (; units > 0; units--, steps += 8, factors += 4) {
        const __m128 step_zero = _mm_cvtph_ps(_mm_loadl_epi64((const __m128i *)steps));
        _mm_storeu_ps(factors, _mm_blend_ps(step_zero, _mm_mul_ps(step_zero, _mm_movelh_ps(step_zero, step_zero)), 12));
    }
}
/* y += scale (unit sum + center - zero_point sum of x) of `units` units. */
static INLINE void scale_units(int q, const uint8_t *meta, const uint8_t *steps, long units, const float *found,
                               const sums_of_unit *sums, float *y, long ahead)
{
    float factors[units * 4], *factor = factors;
    if (has_scales(q)) decode_steps(steps, units, factors);
    __m256 all[4];
    for (int v = 0; v < 4; v++) all[v] = _mm256_setzero_ps(); /* sums of sums lose less than one long sum */
    for (; units > 0; units--, meta += meta_bytes(q), steps += steps_bytes(q), found += ROWS, sums++, factor += 4) {
        const __m256 unit = _mm256_broadcast_ss(&sums->unit), center = _mm256_broadcast_ss(&sums->center);
        if (!has_scales(q)) {
            for (int v = 0; v < 4; v++)
                all[v] = _mm256_add_ps(all[v], _mm256_fmadd_ps(_mm256_loadu_ps(found + 8 * v), unit, center));
            continue;
        }
        prefetch(meta + ahead);
        prefetch(steps + ahead);
        const __m256i words = load_meta(q, meta);
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) { /* a zero point stays in its place, 16 times as large, as `all` is divided */
            const __m256i fields = v ? _mm256_srli_epi32(words, v * field_bits(q)) : words;
            const __m256i code = _mm256_and_si256(fields, _mm256_set1_epi32(15));
            const __m256i point = _mm256_and_si256(fields, _mm256_set1_epi32(q == 2 ? 3 << 4 : 15 << 4));
            __m256 sum = _mm256_fmadd_ps(_mm256_loadu_ps(found + 8 * v), unit, center);
            sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(point), _mm256_broadcast_ss(&sums->part), sum);
            const __m256 step = _mm256_broadcast_ss(factor + v / 2), more = _mm256_broadcast_ss(factor + 2 + v / 2);
            all[v] = _mm256_fmadd_ps(_mm256_fmadd_ps(_mm256_cvtepi32_ps(code), step, more), sum, all[v]);
        }
    }
    for (int v = 0; v < 4; v++) _mm256_storeu_ps(y + 8 * v, _mm256_add_ps(_mm256_loadu_ps(y + 8 * v), all[v]));
}

/* y += 32 rows of `units` units times x: sums of all units, then their scales, so that neither waits for the other. */
static INLINE void add_units(int q, const uint8_t *words, const uint8_t *meta, const uint8_t *steps, long units,
                             const float *ready, const sums_of_unit *sums, float *y, long ahead)
{
    float found[units * ROWS];
    for (long u = 0; u < units; u++, words += words_bytes(q), ready += ready_floats(q)) {
        if (q == 4) sum_codes(words, (const uint8_t *)ready, found + u * ROWS, ahead);
        else sum_planes(q, words, (const uint8_t *)ready, found + u * ROWS, ahead);
    }
    scale_units(q, meta, steps, units, found, sums, y, ahead);
}

/* sum of values (float16) times x; behind the values is room for a vector of numbers. */
static INLINE float sum_of_products(const uint8_t *values, const float *x, long count)
{
    static const int32_t masks[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
    __m256 sum = _mm256_setzero_ps();
    for (; count > 0; count -= 8, values += 16, x += 8) {
        const __m256i mask = _mm256_loadu_si256((const __m256i *)(masks + 8 - (count < 8 ? count : 8)));
        sum = _mm256_fmadd_ps(_mm256_maskload_ps(x, mask), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)values)), sum);
    }
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(sum), _mm256_extractf128_ps(sum, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
