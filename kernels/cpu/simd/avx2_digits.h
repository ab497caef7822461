/* Integers of 24 bits as 3 signed bytes: v = d0 + 256 d1 + 65536 d2, d in -128..127, |v| <= 0x7f7f7f. They are the bytes of
   v + 0x808080, each less 128.

   Two planes of a row lie in neighbouring bytes and are looked up in the same table, so that one vpmaddubsw weighs the two,
   adds them and widens the sum to 16 bits. Row 8 i + 4 j + l of 16 (i, j: 0 or 1) has place 8 j + 4 i + l of 16: sums
   widened to 32 bits by interleaving are then in order (kernels/cpu/mixed_gemv.py). */
enum { DIGITS = 3, MOST_DIGITS = 0x7f7f7f, UP_DIGITS = 0x808080 };
typedef struct { __m256i digit[DIGITS]; } digits_h; /* each 16 bits a row, of 16 rows, or two a row of 8 */

static INLINE digits_h no_digits(void)
{
    const __m256i none = _mm256_setzero_si256();
    return (digits_h){ {none, none, none} };
}
/* 16 bits of each of 16 rows, widened. */
static INLINE rows_w widened_halves(const void *p)
{
    const __m256i halves = _mm256_loadu_si256(p), none = _mm256_setzero_si256();
    return BOTH(rows_w, _mm256_unpacklo_epi16(halves, none), _mm256_unpackhi_epi16(halves, none));
}
/* What a table says of each byte, weighed: `weights` is that of even bytes + 256 times that of odd ones, each below 128. */
static INLINE __m256i look_up_pairs(const uint8_t *table, rows_b index, int weights)
{
    return _mm256_maddubs_epi16(_mm256_set1_epi16((short)weights), look_up_bytes(table, index));
}
/* 16 rows' sums of digits put together. */
static INLINE rows_w join_digits(digits_h d)
{
    const __m256i places = _mm256_set1_epi32(1 | 256 << 16), none = _mm256_setzero_si256();
    const rows_w low = interleave_halves(d.digit[0], d.digit[1]), high = interleave_halves(none, d.digit[2]);
    return BOTH(rows_w, _mm256_add_epi32(_mm256_madd_epi16(low.lo, places), high.lo),
                _mm256_add_epi32(_mm256_madd_epi16(low.hi, places), high.hi));
}
/* The same of 8 rows, of which neighbouring sums are of one row. */
static INLINE __m256i join_neighbours(digits_h d)
{
    const __m256i one = _mm256_set1_epi16(1), place = _mm256_set1_epi16(256);
    const __m256i low = _mm256_add_epi32(_mm256_madd_epi16(d.digit[0], one), _mm256_madd_epi16(d.digit[1], place));
    return _mm256_add_epi32(low, _mm256_slli_epi32(_mm256_madd_epi16(d.digit[2], one), 16));
}

/* Signed digits of the 16 sums of 4 activations, as build_byte_tables has them: tables[16 digit + i]. */
static INLINE void build_digit_tables(uint8_t *tables, const float *x, float inverse)
{
    rows_w entries = table_integers(x, inverse, UP_DIGITS);
    for (int digit = 0; digit < DIGITS; digit++) {
        const __m128i bytes = _mm_xor_si128(lowest_bytes(entries, 255), _mm_set1_epi8(-128));
        _mm_store_si128((__m128i *)(tables + 16 * digit), bytes);
        entries = shifted_down(entries, 8);
    }
}
/* The largest |x[j]|, at least `least`, of n floats, n a multiple of 8; nan where one is not finite. */
static INLINE float largest_of(const float *x, long n, float least)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), most_finite = _mm256_set1_ps(FLT_MAX);
    __m256 most = _mm256_set1_ps(least), finite = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    for (long j = 0; j < n; j += 8) {
        const __m256 size = _mm256_andnot_ps(sign, _mm256_loadu_ps(x + j));
        finite = _mm256_and_ps(finite, _mm256_cmp_ps(size, most_finite, _CMP_LE_OQ));
        most = _mm256_max_ps(size, most);
    }
    return largest_lane(most, finite);
}
static INLINE int sum_of_words(__m256i words)
{
    int lanes[8], sum = 0;
    _mm256_storeu_si256((__m256i *)lanes, words);
    for (int lane = 0; lane < 8; lane++) sum += lanes[lane];
    return sum;
}
/* The integers of 8 activations, and their signed digits: byte j of out[3 odd + digit] is of x[2 j + odd]. */
static INLINE __m256i cut_activations(int32_t *out, const float *x, float inverse)
{
    const __m256i up = _mm256_set1_epi32(UP_DIGITS), even_first = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
    const __m256i by_digit = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m256i all = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), _mm256_set1_ps(inverse)));
    __m256i digits = _mm256_xor_si256(_mm256_add_epi32(all, up), up);
    digits = _mm256_shuffle_epi8(_mm256_permutevar8x32_epi32(digits, even_first), by_digit);
    digits = _mm256_permutevar8x32_epi32(digits, _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 3, 7));
    _mm_storeu_si128((__m128i *)out, _mm256_castsi256_si128(digits));
    _mm_storel_epi64((__m128i *)(out + 4), _mm256_extracti128_si256(digits, 1));
    return all;
}
/* Signed digits of 8 activations: out[(3 odd + digit) * 32 + 4 r + j] is that of x[2 j + odd], the same for all 8 r. */
static INLINE void build_activation_digits(uint8_t *out, const float *x, float inverse)
{
    int32_t four[2 * DIGITS];
    cut_activations(four, x, inverse);
    for (int i = 0; i < 2 * DIGITS; i++, out += 32) _mm256_store_si256((__m256i *)out, _mm256_set1_epi32(four[i]));
}
