/* Sixteen rows in vectors of gcc and clang, which turn them into whatever the machine has. Tables as on AVX-512. */
#pragma GCC diagnostic ignored "-Wpsabi" /* every function below is inlined: no vector is ever passed */

#define TABLE_BITS 4
typedef float rows_f __attribute__((vector_size(64)));    /* a float of each row */
typedef int32_t rows_i __attribute__((vector_size(64)));
typedef uint32_t rows_w __attribute__((vector_size(64))); /* a word of each row */
typedef struct { const float *entries; } table_f;         /* 2^TABLE_BITS sums, one for each pattern of signs */

#define KEEP(value) ((void)0) /* left to the compiler */
#define KEEP_TABLE(value) ((void)0)

static INLINE rows_w load_words(const void *p)
{
    rows_w w;
    memcpy(&w, p, sizeof w);
    return w;
}
/* 16 bits of each row, widened. */
static INLINE rows_w widened_halves(const void *p)
{
    typedef uint16_t sixteen __attribute__((vector_size(32)));
    sixteen h;
    memcpy(&h, p, sizeof h);
    return __builtin_convertvector(h, rows_w);
}
/* Words of `size` bytes, 3 or 4, of rows 0-7, and again as rows 8-15; behind those of 3 bytes are 4 more. */
static INLINE rows_w load_fields(const uint8_t *p, int size)
{
    rows_w w;
    for (int r = 0; r < 8; r++) {
        const uint8_t *of = p + r * size;
        w[r] = w[8 + r] = of[0] | of[1] << 8 | of[2] << 16 | (uint32_t)(size == 3 ? 0 : of[3]) << 24;
    }
    return w;
}
/* Rows 0-7 shifted by `low`, rows 8-15 by `high`. */
static INLINE rows_w shifted_right(rows_w w, int low, int high)
{
    for (int r = 0; r < 16; r++) w[r] >>= r < 8 ? low : high;
    return w;
}
static INLINE rows_f load_f32(const void *p)
{
    rows_f a;
    memcpy(&a, p, sizeof a);
    return a;
}
static INLINE void store_f32(float *p, rows_f a) { memcpy(p, &a, sizeof a); }
static INLINE rows_f broadcast(float a) { return (rows_f){a, a, a, a, a, a, a, a, a, a, a, a, a, a, a, a}; }
/* Finite halves: a half's exponent and mantissa, moved into a float's place, read 2^-112 of its value. */
static INLINE rows_f load_f16(const void *p)
{
    typedef uint16_t sixteen __attribute__((vector_size(32)));
    sixteen h;
    memcpy(&h, p, sizeof h);
    rows_w w = __builtin_convertvector(h, rows_w);
    rows_f magnitude = (rows_f)((w & 0x7fff) << 13) * 0x1p112f;
    return (rows_f)((rows_w)magnitude | (w & 0x8000) << 16);
}
static INLINE void four_f16(const void *p, float *to)
{
    uint16_t halves[16] = {0};
    float all[16];
    memcpy(halves, p, 8);
    const rows_f floats = load_f16(halves);
    memcpy(all, &floats, sizeof all);
    memcpy(to, all, 4 * sizeof *to);
}
static INLINE rows_f load_u8(const void *p)
{
    typedef uint8_t sixteen __attribute__((vector_size(16)));
    sixteen b;
    memcpy(&b, p, sizeof b);
    return __builtin_convertvector(b, rows_f);
}
static INLINE rows_f load_i16(const void *p)
{
    typedef int16_t sixteen __attribute__((vector_size(32)));
    sixteen h;
    memcpy(&h, p, sizeof h);
    return __builtin_convertvector(h, rows_f);
}
static INLINE rows_f add(rows_f a, rows_f b) { return a + b; }
static INLINE rows_f subtract(rows_f a, rows_f b) { return a - b; }
static INLINE rows_f mul(rows_f a, rows_f b) { return a * b; }
static INLINE rows_f fma_rows(rows_f a, rows_f b, rows_f c) { return a * b + c; }

/* (float) of some bits of each word, in place: field * 2^(its lowest bit). The mask leaves bit 31 out. */
static INLINE rows_f masked(rows_w w, int mask)
{
    return __builtin_convertvector((rows_i)w & mask, rows_f);
}
/* (float) of the bits of each word from `shift` up, shift > 0. */
static INLINE rows_f above(rows_w w, int shift)
{
    return __builtin_convertvector((rows_i)(w >> shift), rows_f);
}
/* a where bit `bit` of the word is 1, -a where it is 0. */
static INLINE rows_f negated_unless(rows_f a, rows_w w, int bit)
{
    return (rows_f)((rows_w)a ^ (~(w << (31 - bit)) & 0x80000000u));
}

static INLINE table_f load_table(const float *p) { return (table_f){p}; }
/* Entry (bits shift .. shift+3 of its word) for each row. */
static INLINE rows_f lookup(table_f t, rows_w w, int shift)
{
    rows_w index = w >> shift & 15;
    rows_f found;
#pragma GCC unroll 1
    for (int row = 0; row < 16; row++) found[row] = t.entries[index[row]];
    return found;
}
/* entry i = sum over j of (bit j of i ? +x[j] : -x[j]) */
static INLINE void build_table(float *entries, const float *x)
{
    for (int i = 0; i < 16; i++) {
        float sum = i & 1 ? x[0] : -x[0];
        for (int j = 1; j < 4; j++) sum += i >> j & 1 ? x[j] : -x[j];
        entries[i] = sum;
    }
}

static INLINE rows_w shifted_left(rows_w w, int n) { return w << n; }
{% include "simd/whole.h" %}
