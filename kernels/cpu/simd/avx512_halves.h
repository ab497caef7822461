/* 16 bits of 32 rows in one 512-bit register: tables of 16 numbers of 16 bits, held twice (vpermw), so that of its five
   bits of an index the highest does not matter. Row 16 h + l of a block is in the 16 bits 2 l + h. */
typedef __m512i rows_h; /* 16 bits of each row */
typedef rows_w rows_i;  /* an integer of 32 bits of each of 16 rows */

static INLINE rows_h load_halves(const void *p) { return _mm512_loadu_si512(p); }
/* Entry (bits shift .. shift+3 of its 16) for each row. */
static INLINE rows_h look_up_halves(rows_h table, rows_h w, int shift)
{
    return _mm512_permutexvar_epi16(shift ? _mm512_srli_epi16(w, shift) : w, table);
}
static INLINE rows_h add_halves(rows_h a, rows_h b) { return _mm512_add_epi16(a, b); } /* modulo 2^16 */
static INLINE rows_i no_rows(void) { return _mm512_setzero_si512(); }
/* sum + the numbers of rows 0-15 (h = 0) or 16-31 (h = 1) */
static INLINE rows_i add_every_other(rows_i sum, rows_h numbers, int h)
{
    const __m512i these = _mm512_set1_epi32(h ? 1 << 16 : 1);
#ifdef __AVX512VNNI__
    return _mm512_dpwssd_epi32(sum, numbers, these);
#else
    return _mm512_add_epi32(sum, _mm512_madd_epi16(numbers, these));
#endif
}
static INLINE rows_f to_floats(rows_i sum) { return _mm512_cvtepi32_ps(sum); }

/* Words of rows 0-15 (h = 0) or 16-31 from their two halves, 32 rows apart. */
static INLINE rows_w load_words_of_halves(const uint8_t *p, int h)
{
    const __m512i first = _mm512_loadu_si512(p), second = _mm512_loadu_si512(p + 64);
    const __m512i low = _mm512_set1_epi32(0xffff);
    if (h) return _mm512_or_si512(_mm512_srli_epi32(first, 16), _mm512_andnot_si512(low, second));
    return _mm512_or_si512(_mm512_and_si512(low, first), _mm512_slli_epi32(second, 16));
}

/* table[i] = table[16 + i] = round(inverse * sum over j of (bit j of i ? +x[j] : -x[j])) */
static INLINE void build_half_table(int16_t *table, const float *x, float inverse)
{
    float sums[16] __attribute__((aligned(64)));
    build_table(sums, x);
    const __m256i all = _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(mul(load_f32(sums), broadcast(inverse))));
    _mm256_storeu_si256((void *)table, all);
    _mm256_storeu_si256((void *)(table + 16), all);
}
