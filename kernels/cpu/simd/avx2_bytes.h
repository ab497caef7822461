/* Bytes of 32 rows in one 256-bit register: tables of 16 bytes (vpshufb), one nibble of a row's byte is an index.

   Row 16 h + 8 i + 4 j + l of a block (h, i, j: 0 or 1) is byte 16 j + 8 i + 2 l + h: even bytes, widened to 16 and then
   32 bits by interleaving with zeros, are rows 0-7, 8-15 in order, odd ones rows 16-31 (kernels/cpu/bcq_gemv.py). */
typedef __m256i rows_b; /* a byte of each row */
typedef __m256i rows_h; /* 16 bits of every other row */

static INLINE rows_b load_row_bytes(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
static INLINE rows_b low_nibbles(rows_b b) { return _mm256_and_si256(b, _mm256_set1_epi8(15)); }
static INLINE rows_b high_nibbles(rows_b b) { return low_nibbles(_mm256_srli_epi16(b, 4)); }
static INLINE rows_b load_byte_table(const uint8_t *table)
{
    return _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)table));
}
static INLINE rows_b look_up_bytes(const uint8_t *table, rows_b index)
{
    return _mm256_shuffle_epi8(load_byte_table(table), index);
}
static INLINE rows_b add_bytes(rows_b a, rows_b b) { return _mm256_add_epi8(a, b); }
static INLINE rows_h add_halves(rows_h a, rows_h b) { return _mm256_add_epi16(a, b); }
static INLINE rows_h odd_bytes(rows_b b) { return _mm256_srli_epi16(b, 8); }
/* Sums of even bytes, of which `both` also holds those of odd bytes 256 times, modulo 2^16. */
static INLINE rows_h without_odd(rows_h both, rows_h odd) { return _mm256_sub_epi16(both, _mm256_slli_epi16(odd, 8)); }

static INLINE rows_w interleave_halves(rows_h low, rows_h high)
{
    return BOTH(rows_w, _mm256_unpacklo_epi16(low, high), _mm256_unpackhi_epi16(low, high));
}
/* Words of 16 rows, those of even or odd bytes, from their four bytes, 32 rows apart. */
static INLINE rows_w load_words_of_bytes(const uint8_t *p, int odd)
{
    rows_w w = BOTH(rows_w, _mm256_setzero_si256(), _mm256_setzero_si256());
    for (int j = 0; j < 4; j++) {
        const rows_b b = load_row_bytes(p + 32 * j);
        const rows_h h = odd ? odd_bytes(b) : _mm256_and_si256(b, _mm256_set1_epi16(255));
        const rows_w byte = interleave_halves(h, _mm256_setzero_si256());
        w = BOTH(rows_w, _mm256_or_si256(w.lo, _mm256_slli_epi32(byte.lo, 8 * j)),
                 _mm256_or_si256(w.hi, _mm256_slli_epi32(byte.hi, 8 * j)));
    }
    return w;
}
/* low + 64 high of each row, both below 2^15 */
static INLINE rows_w two_digits(rows_h low, rows_h high)
{
    const __m256i places = _mm256_set1_epi32(1 | 64 << 16);
    const rows_w both = interleave_halves(low, high);
    return BOTH(rows_w, _mm256_madd_epi16(both.lo, places), _mm256_madd_epi16(both.hi, places));
}
/* (float)(low + 4096 high - bias), in 32 bits, what is beyond them dropped on the way */
static INLINE rows_f four_digits(rows_w low, rows_w high, int bias)
{
    const __m256i less = _mm256_set1_epi32(bias);
    const __m256i lo = _mm256_add_epi32(low.lo, _mm256_slli_epi32(high.lo, 12));
    const __m256i hi = _mm256_add_epi32(low.hi, _mm256_slli_epi32(high.hi, 12));
    return BOTH(rows_f, _mm256_cvtepi32_ps(_mm256_sub_epi32(lo, less)), _mm256_cvtepi32_ps(_mm256_sub_epi32(hi, less)));
}
/* (float)(sums of bytes 0 + 256 of bytes 1 + 65536 of bytes 2) of 16 rows, in 32 bits. */
static INLINE rows_f three_bytes(rows_h byte0, rows_h byte1, rows_h byte2)
{
    const rows_w outer = interleave_halves(byte0, byte2), inner = interleave_halves(_mm256_setzero_si256(), byte1);
    const __m256i lo = _mm256_add_epi32(outer.lo, _mm256_srli_epi32(inner.lo, 8));
    const __m256i hi = _mm256_add_epi32(outer.hi, _mm256_srli_epi32(inner.hi, 8));
    return BOTH(rows_f, _mm256_cvtepi32_ps(lo), _mm256_cvtepi32_ps(hi));
}
/* Every other float of a, then of b: the first one of two, or the second. */
static INLINE rows_f even_floats(rows_f a, rows_f b)
{
    return BOTH(rows_f, _mm256_shuffle_ps(a.lo, a.hi, 0x88), _mm256_shuffle_ps(b.lo, b.hi, 0x88));
}
static INLINE rows_f odd_floats(rows_f a, rows_f b)
{
    return BOTH(rows_f, _mm256_shuffle_ps(a.lo, a.hi, 0xdd), _mm256_shuffle_ps(b.lo, b.hi, 0xdd));
}

/* The largest of 8; nan where `finite` lacks a bit. */
static INLINE float largest_lane(__m256 most, __m256 finite)
{
    float lanes[8];
    _mm256_storeu_ps(lanes, most);
    for (int lane = 1; lane < 8; lane++) lanes[0] = lanes[lane] > lanes[0] ? lanes[lane] : lanes[0];
    return _mm256_movemask_ps(finite) == 255 ? lanes[0] : NAN;
}
/* The largest |x[j]| + |x[j + 1]| + |x[j + 2]| + |x[j + 3]|, at least `least`, of n floats, n a multiple of 32; nan where
   one is not finite. */
static INLINE float largest_of_fours(const float *x, long n, float least)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), most_finite = _mm256_set1_ps(FLT_MAX);
    __m256 most = _mm256_set1_ps(least), finite = _mm256_castsi256_ps(_mm256_set1_epi32(-1));
    for (long j = 0; j < n; j += 32, x += 32) {
        const __m256 a = _mm256_loadu_ps(x), b = _mm256_loadu_ps(x + 8), c = _mm256_loadu_ps(x + 16), d = _mm256_loadu_ps(x + 24);
        const __m256 ab01 = _mm256_unpacklo_ps(a, b), ab23 = _mm256_unpackhi_ps(a, b); /* a0 b0 a1 b1, a2 b2 a3 b3 */
        const __m256 cd01 = _mm256_unpacklo_ps(c, d), cd23 = _mm256_unpackhi_ps(c, d);
        __m256 all = _mm256_andnot_ps(sign, _mm256_shuffle_ps(ab01, cd01, 0x44));
        all = _mm256_add_ps(all, _mm256_andnot_ps(sign, _mm256_shuffle_ps(ab01, cd01, 0xee)));
        all = _mm256_add_ps(all, _mm256_andnot_ps(sign, _mm256_shuffle_ps(ab23, cd23, 0x44)));
        all = _mm256_add_ps(all, _mm256_andnot_ps(sign, _mm256_shuffle_ps(ab23, cd23, 0xee)));
        finite = _mm256_and_ps(finite, _mm256_cmp_ps(all, most_finite, _CMP_LE_OQ));
        most = _mm256_max_ps(all, most);
    }
    return largest_lane(most, finite);
}

/* bias + round(inverse * sum over j of (bit j of i ? +x[j] : -x[j])): i = 0-3, 8-11 and 4-7, 12-15, as packing to bytes
   wants them. */
static INLINE rows_w table_integers(const float *x, float inverse, int bias)
{
    const __m256 x2 = _mm256_set1_ps(x[2]), scale = _mm256_set1_ps(inverse);
    __m256 t = _mm256_mul_ps(_mm256_set1_ps(x[0]), _mm256_setr_ps(-1, 1, -1, 1, -1, 1, -1, 1));
    t = _mm256_fmadd_ps(_mm256_set1_ps(x[1]), _mm256_setr_ps(-1, -1, 1, 1, -1, -1, 1, 1), t);
    t = _mm256_fmadd_ps(_mm256_set1_ps(x[3]), _mm256_setr_ps(-1, -1, -1, -1, 1, 1, 1, 1), t);
    const __m256i up = _mm256_set1_epi32(bias);
    return BOTH(rows_w, _mm256_add_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(_mm256_sub_ps(t, x2), scale)), up),
                _mm256_add_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(_mm256_add_ps(t, x2), scale)), up));
}
/* The lowest byte of table_integers, in the order of i; mask: bits of it. */
static INLINE __m128i lowest_bytes(rows_w entries, int mask)
{
    const __m256i bits = _mm256_set1_epi32(mask);
    const __m256i halves = _mm256_packus_epi32(_mm256_and_si256(entries.lo, bits), _mm256_and_si256(entries.hi, bits));
    return _mm256_castsi256_si128(_mm256_permute4x64_epi64(_mm256_packus_epi16(halves, halves), 0xd8));
}
static INLINE rows_w shifted_down(rows_w w, int n)
{
    return BOTH(rows_w, _mm256_srli_epi32(w.lo, n), _mm256_srli_epi32(w.hi, n));
}

/* Digits of the 16 sums of 4 activations: tables[16 place + i] is a digit in base 2^bits of
   bias + round(inverse * sum over j of (bit j of i ? +x[j] : -x[j])), which is below 2^(bits digits); at the places are
   digits 0, 2, 1 and, where there is one, 3: two of them leave a register together. */
static INLINE void build_byte_tables(uint8_t *tables, const float *x, float inverse, int bias, int bits, int digits)
{
    const rows_w entries = table_integers(x, inverse, bias);
    const __m256i two = _mm256_set1_epi32((1 << 2 * bits) - 1), one = _mm256_set1_epi16((1 << bits) - 1);
    const __m256i low = _mm256_packus_epi32(_mm256_and_si256(entries.lo, two), _mm256_and_si256(entries.hi, two));
    const __m256i high = _mm256_packus_epi32(_mm256_srli_epi32(entries.lo, 2 * bits), _mm256_srli_epi32(entries.hi, 2 * bits));
    const __m256i even = _mm256_packus_epi16(_mm256_and_si256(low, one), _mm256_and_si256(high, one));
    const __m256i odd = _mm256_packus_epi16(_mm256_srli_epi16(low, bits), _mm256_srli_epi16(high, bits));
    _mm256_storeu_si256((__m256i *)tables, _mm256_permute4x64_epi64(even, 0xd8));
    const __m256i last = _mm256_permute4x64_epi64(odd, 0xd8);
    if (digits == 4) _mm256_storeu_si256((__m256i *)(tables + 32), last);
    else _mm_store_si128((__m128i *)(tables + 32), _mm256_castsi256_si128(last));
}
