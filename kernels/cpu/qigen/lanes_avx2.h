/* Eight lanes of 32 bits: the instructions of QIGen's Table 1, and the few more that 3 bits and 16-bit zeros need. */
#include <immintrin.h>

typedef __m256 floats;
typedef __m256i ints;

static inline floats load(const float *p) { return _mm256_loadu_ps(p); }
static inline ints load_words(const int32_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
static inline floats load_shorts(const int16_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)p)));
}
static inline void store(float *p, floats a) { _mm256_storeu_ps(p, a); }
static inline floats broadcast(float a) { return _mm256_set1_ps(a); }
static inline floats add(floats a, floats b) { return _mm256_add_ps(a, b); }
static inline floats fmadd(floats a, floats b, floats c) { return _mm256_fmadd_ps(a, b, c); }
static inline floats fnmadd(floats a, floats b, floats c) { return _mm256_fnmadd_ps(a, b, c); }
static inline floats multiply(floats a, floats b) { return _mm256_mul_ps(a, b); }
static inline ints and_bits(ints a, int32_t mask) { return _mm256_and_si256(a, _mm256_set1_epi32(mask)); }
static inline ints or_bits(ints a, ints b) { return _mm256_or_si256(a, b); }
static inline ints srli(ints a, int by) { return _mm256_srli_epi32(a, by); }
static inline ints slli(ints a, int by) { return _mm256_slli_epi32(a, by); }
static inline floats cvt_int_float(ints a) { return _mm256_cvtepi32_ps(a); }
