/* The instructions of kernels/cpu/simd/avx512.h on gcc's vectors: what that header says is then run on any CPU. */
typedef float emulated_f __attribute__((vector_size(64)));
typedef int32_t emulated_i __attribute__((vector_size(64)));
#pragma GCC diagnostic ignored "-Wpsabi"
#define __m512 emulated_f
#define __m512i emulated_i
#define __m256i emulated_half
typedef struct { uint16_t v[16]; } emulated_half;
#define EACH for (int i = 0; i < 16; i++)
#define _MM_HINT_T0 3
#define _mm_prefetch(p, hint) __builtin_prefetch(p)
static inline __m256i _mm256_loadu_si256(const void *p) { emulated_half r; memcpy(&r, p, 32); return r; }
static inline __m512i _mm512_loadu_si512(const void *p) { __m512i r; memcpy(&r, p, 64); return r; }
static inline __m512 _mm512_loadu_ps(const void *p) { __m512 r; memcpy(&r, p, 64); return r; }
static inline __m512 _mm512_load_ps(const void *p) { if ((uintptr_t)p % 64) abort(); return _mm512_loadu_ps(p); }
static inline void _mm512_storeu_ps(void *p, __m512 a) { memcpy(p, &a, 64); }
static inline void _mm512_store_ps(void *p, __m512 a) { if ((uintptr_t)p % 64) abort(); memcpy(p, &a, 64); }
static inline __m512 _mm512_cvtph_ps(__m256i h)
{
    __m512 r;
    EACH
    {
        int e = h.v[i] >> 10 & 31, m = h.v[i] & 1023;
        float f = e ? ldexpf(1024 + m, e - 25) : ldexpf(m, -24);
        r[i] = h.v[i] >> 15 ? -f : f;
    }
    return r;
}
static inline __m512i _mm512_cvtepi16_epi32(__m256i h) { __m512i r; EACH r[i] = (int16_t)h.v[i]; return r; }
static inline __m512 _mm512_cvtepi32_ps(__m512i a) { __m512 r; EACH r[i] = (float)a[i]; return r; }
static inline __m512 _mm512_set1_ps(float a) { __m512 r; EACH r[i] = a; return r; }
static inline __m512i _mm512_set1_epi32(int a) { __m512i r; EACH r[i] = a; return r; }
static inline __m512 _mm512_add_ps(__m512 a, __m512 b) { return a + b; }
static inline __m512 _mm512_sub_ps(__m512 a, __m512 b) { return a - b; }
static inline __m512 _mm512_mul_ps(__m512 a, __m512 b) { return a * b; }
static inline __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) { __m512 r; EACH r[i] = fmaf(a[i], b[i], c[i]); return r; }
static inline __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }
static inline __m512i _mm512_andnot_si512(__m512i a, __m512i b) { return ~a & b; }
static inline __m512i _mm512_xor_si512(__m512i a, __m512i b) { return a ^ b; }
static inline __m512i _mm512_srli_epi32(__m512i a, int n) { __m512i r; EACH r[i] = (int)((uint32_t)a[i] >> n); return r; }
static inline __m512i _mm512_slli_epi32(__m512i a, int n) { __m512i r; EACH r[i] = (int)((uint32_t)a[i] << n); return r; }
static inline __m512i _mm512_castps_si512(__m512 a) { return (__m512i)a; }
static inline __m512 _mm512_castsi512_ps(__m512i a) { return (__m512)a; }
static inline __m512 _mm512_permutexvar_ps(__m512i at, __m512 a) { __m512 r; EACH r[i] = a[at[i] & 15]; return r; }
static inline __m512 _mm512_mask_blend_ps(unsigned mask, __m512 a, __m512 b) { __m512 r; EACH r[i] = mask >> i & 1 ? b[i] : a[i]; return r; }
/* 16 bits of 32 rows: simd/avx512_halves.h */
typedef int16_t emulated_h __attribute__((vector_size(64)));
#define HALVES for (int i = 0; i < 32; i++)
static inline __m512i _mm512_load_si512(const void *p) { if ((uintptr_t)p % 64) abort(); return _mm512_loadu_si512(p); }
static inline __m512i _mm512_setzero_si512(void) { __m512i r; EACH r[i] = 0; return r; }
static inline __m512i _mm512_or_si512(__m512i a, __m512i b) { return a | b; }
static inline __m512i _mm512_add_epi32(__m512i a, __m512i b) { __m512i r; EACH r[i] = (int)((uint32_t)a[i] + (uint32_t)b[i]); return r; }
static inline __m512i _mm512_cvtps_epi32(__m512 a) { __m512i r; EACH r[i] = fabsf(a[i]) < 0x1p31f ? (int)rintf(a[i]) : INT32_MIN; return r; }
static inline __m256i _mm512_cvtepi32_epi16(__m512i a) { emulated_half r; EACH r.v[i] = (uint16_t)a[i]; return r; }
static inline void _mm256_storeu_si256(void *p, __m256i a) { memcpy(p, &a, 32); }
static inline __m512i _mm512_srli_epi16(__m512i a, int n) { emulated_h h = (emulated_h)a; HALVES h[i] = (int16_t)((uint16_t)h[i] >> n); return (__m512i)h; }
static inline __m512i _mm512_add_epi16(__m512i a, __m512i b) { emulated_h h = (emulated_h)a, k = (emulated_h)b; HALVES h[i] = (int16_t)(uint16_t)((uint16_t)h[i] + (uint16_t)k[i]); return (__m512i)h; }
static inline __m512i _mm512_permutexvar_epi16(__m512i at, __m512i a) { emulated_h r, h = (emulated_h)a, k = (emulated_h)at; HALVES r[i] = h[k[i] & 31]; return (__m512i)r; }
static inline __m512i _mm512_madd_epi16(__m512i a, __m512i b)
{
    emulated_h h = (emulated_h)a, k = (emulated_h)b;
    __m512i r;
    EACH r[i] = h[2 * i] * k[2 * i] + h[2 * i + 1] * k[2 * i + 1];
    return r;
}
static inline __m512i _mm512_dpwssd_epi32(__m512i sum, __m512i a, __m512i b) { return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b)); }
