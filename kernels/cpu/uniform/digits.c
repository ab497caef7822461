/* y[m, n] = sum_k x[m, k] W[n, k],  W[n, k] = scale[n, group] (code[n, k] - zero_point[n, group])

   Codes of 4 bits times integers, for AVX2: activations are rounded to 24 bits (one scale a unit) and cut into 3 signed
   bytes; a vpmaddubsw multiplies 32 codes by one byte of each of their activations, and adds two and two. Sums of integers
   are exact; in the end of a unit the three sums of a row are converted and put together. zero_point meets the sum of the
   rounded activations (QIGen Eq. 2). A code and an activation cost less this way than conversion and FMA.
   src/lutlab/kernels/cpu/uniform_gemv.py and row_blocks.py draw the stream of weights. */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>
#define INLINE inline __attribute__((always_inline))
{% include "simd/" ~ simd ~ ".h" %}
{% include "simd/" ~ simd ~ "_bytes.h" %}
{% include "simd/" ~ simd ~ "_digits.h" %}

{% include "rows/activations.h" %}

{% include "uniform/units.h" %}
enum {
    SCALED_AT = 6,             /* floats' room of 3 bytes of each activation; then scaled ones, for many rows of x */
    WORD_READY = SCALED_AT + WORD_COLUMNS, /* that a word of columns is prepared into */
    SUMS = 3,                  /* floats kept of a unit of x: scale of its integers, their sum, sum of activations */
    SUM_AT = 2,
    EXACT_WORDS = 4            /* columns of which are summed in 16 bits: 2 * 4 * 2 * 15 * 128 < 2^15 */
};

/* y += scale (unit of x * (a + 256 b + 65536 c) - zero_point * sum of x), of 8 rows from row 8 `eight` on. */
static INLINE void add_unit(const uint8_t *unit, int eight, __m256i a, __m256i b, __m256i c, const float *sums, float *y)
{
    y += 8 * eight;
    const uint8_t *at = unit + eight * {{ 8 * scale_size }};
    const __m256 scale = {{ "_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at))" if scale == "f16" else "_mm256_loadu_ps((const float *)at)" }};
    const __m256 zero = eight_i16((const __m128i *)(unit + {{ scale_bytes }}) + eight);
    __m256 sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(b), _mm256_set1_ps(256), _mm256_cvtepi32_ps(a));
    sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(c), _mm256_set1_ps(65536), sum);
    sum = _mm256_fnmadd_ps(zero, _mm256_set1_ps(sums[1]), _mm256_mul_ps(sum, _mm256_set1_ps(sums[0])));
    _mm256_storeu_ps(y, _mm256_fmadd_ps(scale, sum, _mm256_loadu_ps(y)));
}

{% for loop_of in integer_loops %}
/* {{ loop_of.m }} row{{ "s" if loop_of.m > 1 }} of x times one unit, zero points included. */
static INLINE void unit_{{ loop_of.m }}(const uint8_t *unit, long unit_words, const float *x, long x_stride, const float *sums,
                          long sums_stride, float *y, long y_stride, long ahead)
{
    (void)x_stride, (void)sums_stride, (void)y_stride;
    const __m256i none = _mm256_setzero_si256(), ones = _mm256_set1_epi16(1);
    for (int line = 0; line < WORDS_AT; line += 64) prefetch(unit + ahead + line);
    for (int eight = 0; eight < 4; eight += {{ loop_of.vectors }}) { /* rows at a time */
        const uint8_t *words = unit + WORDS_AT + 32 * eight;
        const int32_t *here = (const int32_t *)x;
        __m256i all_{{ loop_of.sums() | join(" = none, all_") }} = none;
        for (long left = unit_words; left > 0; left -= EXACT_WORDS) {
            __m256i {{ loop_of.sums() | join(" = none, ") }} = none;
            __m256i digit;
            rows_b {% for v in range(loop_of.vectors) %}codes{{ v }}, nibbles{{ v }}{{ ";" if loop.last else ", " }}{% endfor %}

{% for word in range(4) %}
            if ({{ word }} < left) {
{% for v in range(loop_of.vectors) %}
                codes{{ v }} = load_row_bytes(words + {{ 32 * v }});
                KEEP_TABLE(codes{{ v }});
{% endfor %}
                {{ "" if loop_of.vectors > 1 else "if (eight % 2 == 0) " }}prefetch(words + ahead);
{% for odd in range(2) %}
{% for v in range(loop_of.vectors) %}
                nibbles{{ v }} = {{ "high" if odd else "low" }}_nibbles(codes{{ v }});
{% endfor %}
{% for m in range(loop_of.m) %}{% for d in range(3) %}
                digit = _mm256_set1_epi32(here[{{ m ~ " * x_stride + " if m }}{{ 3 * odd + d }}]);
{% for v in range(loop_of.vectors) %}
{% set sum = loop_of.sum(v, m, d) %}
                {{ sum }} = add_halves({{ sum }}, _mm256_maddubs_epi16(nibbles{{ v }}, digit));
                KEEP_TABLE({{ sum }});
{% endfor %}
{% endfor %}{% endfor %}
{% endfor %}
                words += WORD_BYTES, here += WORD_READY;
            }
{% endfor %}
{% for sum in loop_of.sums() %}
            all_{{ sum }} = _mm256_add_epi32(all_{{ sum }}, _mm256_madd_epi16({{ sum }}, ones));
{% endfor %}
        }
{% for m in range(loop_of.m) %}{% for v in range(loop_of.vectors) %}
        add_unit(unit, eight + {{ v }}, all_{{ loop_of.sums([v], m) | join(", all_") }}, sums{{ " + %d * sums_stride" % m if m }}, y{{ " + %d * y_stride" % m if m }});
{% endfor %}{% endfor %}
    }
}

{% endfor %}
{% include "uniform/convert.h" %}

/* Bytes, their scale, and sums of activations of `units` units of one row of x. A unit that holds inf or nan gets the
   scale nan; one of nothing but tiny numbers is rounded to multiples of 2^-100 / MOST_DIGITS (arrange() has lifted tiny
   rows). A sum of 256 integers is less than 2^31. */
static void prepare(const float *x, long units, long unit_words, float *ready, float *sums)
{
    for (long u = 0; u < units; u++, sums += SUMS) {
        const float largest = largest_of(x, unit_words * WORD_COLUMNS, 0x1p-100f);
        sums[0] = largest / (MOST_DIGITS - 8);
        const float inverse = largest > 0 ? 1 / sums[0] : 0; /* not where it is nan */
        __m256i sum = _mm256_setzero_si256();
        sums[2] = sum_of(x, unit_words * WORD_COLUMNS);
        for (long word = 0; word < unit_words; word++, x += WORD_COLUMNS, ready += WORD_READY) {
            sum = _mm256_add_epi32(sum, cut_activations((int32_t *)ready, x, inverse));
            scale_activations(x, ready + SCALED_AT);
        }
        sums[1] = sums[0] * (float)sum_of_words(sum);
    }
}

{% include "uniform/dequantize.h" %}

{% include "rows/entry.h" %}
