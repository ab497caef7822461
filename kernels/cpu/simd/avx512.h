/* Sixteen rows in one 512-bit register. A table of four activations has 16 entries: one register, one vpermps. */
#include <immintrin.h>

#define TABLE_BITS 4
typedef __m512 rows_f;  /* a float of each row */
typedef __m512i rows_w; /* a word of each row */
typedef __m512 table_f; /* 2^TABLE_BITS sums of activations, one for each pattern of signs */

/* The value is in a register here, in this order: stops the compiler from loading it again for every use, and from
   putting off sums until it runs out of registers. */
#define KEEP(value) __asm__ volatile("" : "+v"(value))
#define KEEP_TABLE(value) KEEP(value)

static INLINE rows_w load_words(const void *p) { return _mm512_loadu_si512(p); }
static INLINE rows_f load_f32(const void *p) { return _mm512_loadu_ps(p); }
static INLINE rows_f load_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256(p)); }
static INLINE rows_f load_u8(const void *p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p))); }
static INLINE rows_f load_i16(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(_mm256_loadu_si256(p)));
}
/* 16 bits of each row, widened. */
static INLINE rows_w widened_halves(const void *p) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256(p)); }
/* Words of `size` bytes, 3 or 4, of rows 0-7, and again as rows 8-15; behind those of 3 bytes are 4 more. */
static INLINE rows_w load_fields(const uint8_t *p, int size)
{
    if (size == 4) return _mm512_broadcast_i64x4(_mm256_loadu_si256((const void *)p));
    const __m128i wide = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    const __m256i all = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const void *)p)),
                                                _mm_loadu_si128((const void *)(p + 12)), 1);
    return _mm512_broadcast_i64x4(_mm256_shuffle_epi8(all, _mm256_broadcastsi128_si256(wide)));
}
/* Rows 0-7 shifted by `low`, rows 8-15 by `high`. */
static INLINE rows_w shifted_right(rows_w w, int low, int high)
{
    return _mm512_srlv_epi32(w, _mm512_inserti64x4(_mm512_set1_epi32(low), _mm256_set1_epi32(high), 1));
}
static INLINE void four_f16(const void *p, float *to) { _mm_storeu_ps(to, _mm_cvtph_ps(_mm_loadl_epi64(p))); }
static INLINE void store_f32(float *p, rows_f a) { _mm512_storeu_ps(p, a); }
static INLINE rows_f broadcast(float a) { return _mm512_set1_ps(a); }
static INLINE rows_f add(rows_f a, rows_f b) { return _mm512_add_ps(a, b); }
static INLINE rows_f subtract(rows_f a, rows_f b) { return _mm512_sub_ps(a, b); }
static INLINE rows_f mul(rows_f a, rows_f b) { return _mm512_mul_ps(a, b); }
static INLINE rows_f fma_rows(rows_f a, rows_f b, rows_f c) { return _mm512_fmadd_ps(a, b, c); }

/* (float) of some bits of each word, in place: field * 2^(its lowest bit). The mask leaves bit 31 out. */
static INLINE rows_f masked(rows_w w, int mask)
{
    return _mm512_cvtepi32_ps(_mm512_and_si512(w, _mm512_set1_epi32(mask)));
}
/* (float) of the bits of each word from `shift` up, shift > 0. */
static INLINE rows_f above(rows_w w, int shift) { return _mm512_cvtepi32_ps(_mm512_srli_epi32(w, shift)); }
/* a where bit `bit` of the word is 1, -a where it is 0. */
static INLINE rows_f negated_unless(rows_f a, rows_w w, int bit)
{
    rows_w sign = _mm512_andnot_si512(_mm512_slli_epi32(w, 31 - bit), _mm512_set1_epi32(INT32_MIN));
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(a), sign));
}

static INLINE table_f load_table(const float *p) { return _mm512_load_ps(p); }
/* Entry (bits shift .. shift+3 of its word) for each row; vpermps ignores the higher bits. */
static INLINE rows_f lookup(table_f t, rows_w w, int shift)
{
    return _mm512_permutexvar_ps(shift ? _mm512_srli_epi32(w, shift) : w, t);
}
/* entry i = sum over j of (bit j of i ? +x[j] : -x[j]) */
static INLINE void build_table(float *entries, const float *x)
{
    const rows_f one = _mm512_set1_ps(1), minus = _mm512_set1_ps(-1);
    rows_f t = mul(broadcast(x[0]), _mm512_mask_blend_ps(0xaaaa, minus, one));
    t = fma_rows(broadcast(x[1]), _mm512_mask_blend_ps(0xcccc, minus, one), t);
    t = fma_rows(broadcast(x[2]), _mm512_mask_blend_ps(0xf0f0, minus, one), t);
    t = fma_rows(broadcast(x[3]), _mm512_mask_blend_ps(0xff00, minus, one), t);
    _mm512_store_ps(entries, t);
}

static INLINE rows_w shifted_left(rows_w w, int n) { return _mm512_slli_epi32(w, n); }
{% include "simd/whole.h" %}
