/* Sixteen rows in two 256-bit registers. A table of three activations has 8 entries: one register, one vpermps. */
#include <immintrin.h>

#define TABLE_BITS 3
typedef struct { __m256 lo, hi; } rows_f;  /* a float of each row */
typedef struct { __m256i lo, hi; } rows_w; /* a word of each row */
typedef __m256 table_f;                    /* 2^TABLE_BITS sums of activations, one for each pattern of signs */
#define BOTH(type, low, high) ((type){low, high})

/* The value is in a register here, in this order: stops the compiler from loading it again for every use, and from
   putting off sums until it runs out of registers. */
#define KEEP(value) __asm__ volatile("" : "+x"((value).lo), "+x"((value).hi))
#define KEEP_TABLE(value) __asm__ volatile("" : "+x"(value))

static INLINE rows_w load_words(const void *p)
{
    const __m256i *halves = p;
    return BOTH(rows_w, _mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1));
}
static INLINE rows_f load_f32(const void *p)
{
    const float *f = p;
    return BOTH(rows_f, _mm256_loadu_ps(f), _mm256_loadu_ps(f + 8));
}
static INLINE rows_f load_f16(const void *p)
{
    const __m128i *halves = p;
    return BOTH(rows_f, _mm256_cvtph_ps(_mm_loadu_si128(halves)), _mm256_cvtph_ps(_mm_loadu_si128(halves + 1)));
}
static INLINE __m256 eight_i16(const __m128i *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_loadu_si128(p)));
}
static INLINE rows_f load_u8(const void *p)
{
    const __m128i bytes = _mm_loadu_si128(p);
    return BOTH(rows_f, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
                _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8))));
}
static INLINE rows_f load_i16(const void *p)
{
    const __m128i *halves = p;
    return BOTH(rows_f, eight_i16(halves), eight_i16(halves + 1));
}
static INLINE void store_f32(float *p, rows_f a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
static INLINE rows_f broadcast(float a) { return BOTH(rows_f, _mm256_set1_ps(a), _mm256_set1_ps(a)); }
static INLINE rows_f add(rows_f a, rows_f b)
{
    return BOTH(rows_f, _mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi));
}
static INLINE rows_f subtract(rows_f a, rows_f b)
{
    return BOTH(rows_f, _mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi));
}
static INLINE rows_f mul(rows_f a, rows_f b)
{
    return BOTH(rows_f, _mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi));
}
static INLINE rows_f fma_rows(rows_f a, rows_f b, rows_f c)
{
    return BOTH(rows_f, _mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi));
}

/* (float) of some bits of each word, in place: field * 2^(its lowest bit). The mask leaves bit 31 out. */
static INLINE rows_f masked(rows_w w, int mask)
{
    const __m256i m = _mm256_set1_epi32(mask);
    return BOTH(rows_f, _mm256_cvtepi32_ps(_mm256_and_si256(w.lo, m)), _mm256_cvtepi32_ps(_mm256_and_si256(w.hi, m)));
}
/* (float) of the bits of each word from `shift` up, shift > 0. */
static INLINE rows_f above(rows_w w, int shift)
{
    return BOTH(rows_f, _mm256_cvtepi32_ps(_mm256_srli_epi32(w.lo, shift)),
                _mm256_cvtepi32_ps(_mm256_srli_epi32(w.hi, shift)));
}
static INLINE __m256 eight_negated(__m256 a, __m256i w, int bit)
{
    const __m256i sign = _mm256_set1_epi32(INT32_MIN);
    return _mm256_xor_ps(a, _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_slli_epi32(w, 31 - bit), sign)));
}
/* a where bit `bit` of the word is 1, -a where it is 0. */
static INLINE rows_f negated_unless(rows_f a, rows_w w, int bit)
{
    return BOTH(rows_f, eight_negated(a.lo, w.lo, bit), eight_negated(a.hi, w.hi, bit));
}

static INLINE table_f load_table(const float *p) { return _mm256_load_ps(p); }
static INLINE __m256 eight_lookups(table_f t, __m256i w, int shift)
{
    return _mm256_permutevar8x32_ps(t, shift ? _mm256_srli_epi32(w, shift) : w);
}
/* Entry (bits shift .. shift+2 of its word) for each row; vpermps ignores the higher bits. */
static INLINE rows_f lookup(table_f t, rows_w w, int shift)
{
    return BOTH(rows_f, eight_lookups(t, w.lo, shift), eight_lookups(t, w.hi, shift));
}
/* entry i = sum over j of (bit j of i ? +x[j] : -x[j]) */
static INLINE void build_table(float *entries, const float *x)
{
    __m256 t = _mm256_mul_ps(_mm256_set1_ps(x[0]), _mm256_setr_ps(-1, 1, -1, 1, -1, 1, -1, 1));
    t = _mm256_fmadd_ps(_mm256_set1_ps(x[1]), _mm256_setr_ps(-1, -1, 1, 1, -1, -1, 1, 1), t);
    t = _mm256_fmadd_ps(_mm256_set1_ps(x[2]), _mm256_setr_ps(-1, -1, -1, -1, 1, 1, 1, 1), t);
    _mm256_store_ps(entries, t);
}

/* Eight of the rows: half as many registers. */
enum { PARTS = 2 };
typedef __m256 part_f;
typedef __m256i part_w;
#define PART(rows, part) ((part) ? (rows).hi : (rows).lo)
static INLINE part_f negated(part_f a) { return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f)); }
static INLINE part_f add_part(part_f a, part_f b) { return _mm256_add_ps(a, b); }
static INLINE void store_part(float *p, part_f a) { _mm256_storeu_ps(p, a); }
static INLINE part_w shifted_left(part_w w, int n)
{
    return n == 1 ? _mm256_add_epi32(w, w) : _mm256_slli_epi32(w, n); /* four adds can start in a cycle, two shifts */
}
/* plus where bit 31 is 1, minus where it is 0 */
static INLINE part_f by_sign(part_f minus, part_f plus, part_w w)
{
    return _mm256_blendv_ps(minus, plus, _mm256_castsi256_ps(w));
}
