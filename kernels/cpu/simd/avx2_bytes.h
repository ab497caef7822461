/* Bytes of 32 rows in one 256-bit register: tables of 16 bytes (vpshufb), one nibble of a row's byte is an index.

   Row 16 h + 8 i + 4 j + l of a block (h, i, j: 0 or 1) is byte 16 j + 8 i + 2 l + h: even bytes, widened to 16 and then
   32 bits by interleaving with zeros, are rows 0-7, 8-15 in order, odd ones rows 16-31 (formats/bcq_rows.py). */
typedef __m256i rows_b; /* a byte of each row */
typedef __m256i rows_h; /* 16 bits of every other row */

static INLINE rows_b load_row_bytes(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
static INLINE rows_b low_nibbles(rows_b b) { return _mm256_and_si256(b, _mm256_set1_epi8(15)); }
static INLINE rows_b high_nibbles(rows_b b) { return low_nibbles(_mm256_srli_epi16(b, 4)); }
static INLINE rows_b look_up_bytes(const uint8_t *table, rows_b index)
{
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_load_si128((const __m128i *)table)), index);
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

/* Digits of the 16 sums of 4 activations: tables[16 digit + i] is digit `digit` in base 64 of
   bias + round(inverse * sum over j of (bit j of i ? +x[j] : -x[j])), which is below 64^digits. */
static INLINE void build_byte_tables(uint8_t *tables, const float *x, float inverse, int bias, int digits)
{
    rows_w entries = table_integers(x, inverse, bias);
    for (int digit = 0; digit < digits; digit++) {
        _mm_store_si128((__m128i *)(tables + 16 * digit), lowest_bytes(entries, 63));
        entries = shifted_down(entries, 6);
    }
}
