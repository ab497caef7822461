/* AVX-512 on a CPU without it: SIMDe (Debian's libsimde-dev) computes each intrinsic by AVX2. A kernel that is compiled
   with this folder in front finds this file under the compiler's own header's name (tests/kernels/simde.py). */
#pragma once
#include_next <immintrin.h>
#include <string.h>
#define SIMDE_ENABLE_NATIVE_ALIASES
#define SIMDE_NO_INLINE /* a kernel compiles in 3 s instead of 27 */
#include <simde/x86/avx512.h>
#pragma GCC diagnostic ignored "-Wpsabi"
#ifndef WITHOUT_VNNI
#define __AVX512VNNI__ 1 /* after SIMDe, which would take it for the CPU's own */
#endif
/* A barrier that keeps a value in a register of 512 bits: there is none. */
#define __asm__
#define volatile(...) ((void)0)
#undef _mm512_madd_epi16 /* SIMDe 0.7.4 has this name stand for the masked one */
#define _mm512_madd_epi16 simde_mm512_madd_epi16

/* Conversions that SIMDe 0.7.4 lacks: AVX2's, once a half. */
typedef struct { __m256i lo, hi; } two_halves;
#define BY_HALVES(name, To, From, to, half, of_lo, of_hi) \
    static inline __attribute__((always_inline)) To name(From a) \
    { \
        half of; \
        memcpy(&of, &a, sizeof of); \
        const to r = {of_lo, of_hi}; \
        To whole; \
        memcpy(&whole, &r, sizeof whole); \
        return whole; \
    }
typedef struct { __m256 lo, hi; } two_floats;
typedef struct { __m128i lo, hi; } two_quarters;
/* 32 bits to their lowest 16 */
static inline __attribute__((always_inline)) __m128i lowest_16(__m256i a)
{
    const __m256i low = _mm256_and_si256(a, _mm256_set1_epi32(0xffff));
    return _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
}
BY_HALVES(by_halves_cvtepi32_ps, __m512, __m512i, two_floats, two_halves, _mm256_cvtepi32_ps(of.lo), _mm256_cvtepi32_ps(of.hi))
BY_HALVES(by_halves_cvtps_epi32, __m512i, __m512, two_halves, two_floats, _mm256_cvtps_epi32(of.lo), _mm256_cvtps_epi32(of.hi))
BY_HALVES(by_halves_cvtph_ps, __m512, __m256i, two_floats, two_quarters, _mm256_cvtph_ps(of.lo), _mm256_cvtph_ps(of.hi))
BY_HALVES(by_halves_cvtps_ph, __m256i, __m512, two_quarters, two_floats, _mm256_cvtps_ph(of.lo, 0), _mm256_cvtps_ph(of.hi, 0))
BY_HALVES(by_halves_cvtepi16_epi32, __m512i, __m256i, two_halves, two_quarters, _mm256_cvtepi16_epi32(of.lo),
          _mm256_cvtepi16_epi32(of.hi))
BY_HALVES(by_halves_cvtepu16_epi32, __m512i, __m256i, two_halves, two_quarters, _mm256_cvtepu16_epi32(of.lo),
          _mm256_cvtepu16_epi32(of.hi))
static inline __attribute__((always_inline)) __m512i by_halves_cvtepu8_epi32(__m128i a)
{
    const two_halves r = {_mm256_cvtepu8_epi32(a), _mm256_cvtepu8_epi32(_mm_srli_si128(a, 8))};
    __m512i whole;
    memcpy(&whole, &r, sizeof whole);
    return whole;
}
BY_HALVES(by_halves_cvtepi32_epi16, __m256i, __m512i, two_quarters, two_halves, lowest_16(of.lo), lowest_16(of.hi))
#define _mm512_cvtepi32_ps by_halves_cvtepi32_ps
#define _mm512_cvtps_epi32 by_halves_cvtps_epi32
#define _mm512_cvtph_ps by_halves_cvtph_ps
#define _mm512_cvtps_ph(a, nearest) by_halves_cvtps_ph(a) /* the one rounding that is asked for */
#define _mm512_cvtepi16_epi32 by_halves_cvtepi16_epi32
#define _mm512_cvtepu16_epi32 by_halves_cvtepu16_epi32
#define _mm512_cvtepu8_epi32 by_halves_cvtepu8_epi32
#define _mm512_cvtepi32_epi16 by_halves_cvtepi32_epi16
