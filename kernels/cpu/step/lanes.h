/* {{ lanes }} floats in a vector of gcc and clang, one register of this machine; the last of a row may be fewer. */
#pragma GCC diagnostic ignored "-Wpsabi" /* every function below is inlined: no vector is ever passed */
{% if simd != "portable" %}
#include <immintrin.h>
{% endif %}

enum { LANES = {{ lanes }} };
typedef float lanes_f __attribute__((vector_size(4 * LANES)));
typedef int32_t lanes_i __attribute__((vector_size(4 * LANES)));
typedef uint16_t lanes_h __attribute__((vector_size(2 * LANES)));
typedef uint16_t float16, bfloat16; /* their bits */
typedef float float32;

static INLINE lanes_f all(float a) { return (lanes_f){} + a; }
static INLINE lanes_f load_float32(const float *p)
{
    lanes_f a;
    memcpy(&a, p, sizeof a);
    return a;
}
static INLINE void store_float32(float *p, lanes_f a) { memcpy(p, &a, sizeof a); }
/* At most the first n of a vector, `rest` behind them. */
static INLINE lanes_f load_or(const float *p, long n, lanes_f rest)
{
    if (n >= LANES) return load_float32(p);
    memcpy(&rest, p, n * sizeof *p);
    return rest;
}
static INLINE lanes_f load_some(const float *p, long n) { return load_or(p, n, all(0)); }
static INLINE void store_some(float *p, lanes_f a, long n)
{
    if (n >= LANES) store_float32(p, a);
    else memcpy(p, &a, n * sizeof *p);
}
{% if simd == "avx2" %}
static INLINE lanes_f load_bfloat16(const bfloat16 *p) /* a conversion of vectors is slower here, by gcc 12 */
{
    return (lanes_f)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16);
}
{% else %}
static INLINE lanes_f load_bfloat16(const bfloat16 *p)
{
    lanes_h a;
    memcpy(&a, p, sizeof a);
    return (lanes_f)(__builtin_convertvector(a, lanes_i) << 16);
}
{% endif %}
/* To the nearest, ties to even; NaN stays NaN. */
static INLINE void store_bfloat16(bfloat16 *p, lanes_f a)
{
    for (int i = 0; i < LANES; i++) {
        uint32_t bits;
        memcpy(&bits, (float *)&a + i, sizeof bits);
        p[i] = a[i] != a[i] ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    }
}
{% if simd == "avx512" %}
static INLINE lanes_f load_float16(const float16 *p) { return (lanes_f)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)p)); }
static INLINE void store_float16(float16 *p, lanes_f a)
{
    _mm256_storeu_si256((void *)p, _mm512_cvtps_ph((__m512)a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
{% elif simd == "avx2" %}
static INLINE lanes_f load_float16(const float16 *p) { return (lanes_f)_mm256_cvtph_ps(_mm_loadu_si128((const void *)p)); }
static INLINE void store_float16(float16 *p, lanes_f a)
{
    _mm_storeu_si128((void *)p, _mm256_cvtps_ph((__m256)a, _MM_FROUND_TO_NEAREST_INT));
}
{% else %}
/* A half's exponent and mantissa, moved into a float's place, read 2^-112 of its value; inf and NaN get a float's exponent. */
static INLINE lanes_f load_float16(const float16 *p)
{
    lanes_h h;
    memcpy(&h, p, sizeof h);
    const lanes_i w = __builtin_convertvector(h, lanes_i);
    const lanes_f magnitude = (lanes_f)((w & 0x7fff) << 13) * 0x1p112f;
    return (lanes_f)((lanes_i)magnitude | (w & 0x8000) << 16 | (((w & 0x7c00) == 0x7c00) & 0x7f800000));
}
/* To the nearest, ties to even: the addition of a power of two rounds a subnormal half, that of bits a normal one. */
static INLINE void store_float16(float16 *p, lanes_f a)
{
    for (int i = 0; i < LANES; i++) {
        const float magnitude = fabsf(a[i]), small = magnitude + 0.5f;
        uint32_t bits, small_bits;
        memcpy(&bits, &magnitude, sizeof bits);
        memcpy(&small_bits, &small, sizeof bits);
        const uint32_t normal = (bits + 0xfff + (bits >> 13 & 1) - (112u << 23)) >> 13;
        const uint32_t half = magnitude < 0x1p-14f ? small_bits - 0x3f000000 : magnitude < 65520 ? normal : 0x7c00;
        p[i] = (magnitude != magnitude ? 0x7e00 : half) | (signbit(a[i]) ? 0x8000 : 0);
    }
}
{% endif %}

static INLINE lanes_f choose(lanes_i mask, lanes_f yes, lanes_f no)
{
    return (lanes_f)(((lanes_i)yes & mask) | ((lanes_i)no & ~mask));
}
static INLINE int any_of(lanes_i mask)
{
    int found = 0;
    for (int i = 0; i < LANES; i++) found |= mask[i];
    return found;
}
static INLINE lanes_f magnitude_of(lanes_f a) { return (lanes_f)((lanes_i)a & INT32_MAX); }
static INLINE float sum_of_lanes(lanes_f a)
{
    float part[LANES];
    store_float32(part, a);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) part[i] += part[i + half];
    return part[0];
}
{% macro pairs(from, step) %}{% for i in range(0, lanes, 4) %}{% for v in (0, lanes) %}{{ v + i + from }}, {{ v + i + from + step }}{{ ", " if not loop.last }}{% endfor %}{{ ", " if not loop.last }}{% endfor %}{% endmacro %}
/* Each two lanes of a and of b added: quarters of four sums stand together. */
static INLINE lanes_f add_pairs(lanes_f a, lanes_f b)
{
    return __builtin_shufflevector(a, b, {{ pairs(0, 2) }}) + __builtin_shufflevector(a, b, {{ pairs(1, 2) }});
}
/* out[0..3] = the sums of four vectors. */
static INLINE void four_sums(lanes_f a, lanes_f b, lanes_f c, lanes_f d, float *out)
{
    const lanes_f all_four = add_pairs(add_pairs(a, b), add_pairs(c, d));
    float part[LANES];
    store_float32(part, all_four);
    for (int i = 0; i < 4; i++) {
        out[i] = part[i];
        for (int from = 4; from < LANES; from += 4) out[i] += part[from + i];
    }
}

/* e^x, to two units in the last place (Cephes): 2^n e^r, n whole, |r| <= ln(2) / 2. Below -87 it is 0; NaN stays NaN. */
static INLINE lanes_f exp_of(lanes_f x)
{
    const lanes_f low = all(-87), high = all(88), magic = all(0x1.8p23f); /* added, it leaves n in the lowest bits */
    const lanes_i none = x < low;
    x = choose(x > high, high, x);
    const lanes_f shifted = x * 0x1.715476p0f + magic, n = shifted - magic;
    const lanes_f r = x - n * 0.693359375f - n * -2.12194440e-4f;
    lanes_f p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1;
    const lanes_f power = (lanes_f)(((lanes_i)shifted - (lanes_i)magic + 127) << 23);
    return choose(none, all(0), p * power);
}
/* 1 / (1 + e^-x) */
static INLINE lanes_f sigmoid_of(lanes_f x) { return 1 / (1 + exp_of(-x)); }
/* The error function, to two units in the last place: a polynomial near 0, 1 - e^(a polynomial) beyond. */
static INLINE lanes_f erf_of(lanes_f x)
{
    const lanes_f t = magnitude_of(x), s = x * x;
    lanes_f far = t * -1.72853470e-5f + 3.83197126e-4f;
    const lanes_f more = t * -3.88396438e-3f + 2.42546219e-2f;
    far = far * s + more;
    far = far * t - 1.06777877e-1f;
    far = far * t - 6.34846687e-1f;
    far = far * t - 1.28717512e-1f;
    far = 1 - exp_of(far * t - t);
    far = (lanes_f)((lanes_i)far | ((lanes_i)x & INT32_MIN));
    lanes_f near = s * -5.96761703e-4f + 4.99119423e-3f;
    near = near * s - 2.67681349e-2f;
    near = near * s + 1.12819925e-1f;
    near = near * s - 3.76125336e-1f;
    near = near * s + 1.28379166e-1f;
    near = near * x + x;
    return choose(t > 0.927734375f, far, near);
}
