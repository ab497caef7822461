// Tensor cores on halves: D = A B + C of a warp, A 16 x 16 and B 16 x 8 halves, C and D 16 x 8 floats.
//
// Fragments are those of PTX's mma.m16n8k16. With r = lane / 4, c = lane % 4: a[0], a[2] are row r, columns 2c, 2c + 1
// and 2c + 8, 2c + 9; a[1], a[3] the same of row r + 8; b[0], b[1] column r, rows 2c, 2c + 1 and 2c + 8, 2c + 9; C and D
// rows r (x, y) and r + 8 (z, w), columns 2c and 2c + 1.
//
// How it rounds is nowhere promised. Fasi et al. (PeerJ CS 7:e330, 2021) and the model of microsoft/MMA-Sim found: products
// are exact; they and C are cut off, not rounded, at 2^-F of the power of two of the largest, then added exactly, and the
// sum is cut to 24 bits. A subnormal half counts there as 2^-14, however small it is. F is 24 on sm_80 and sm_86, which
// add k = 0 .. 7 first and then 8 .. 15; 25 on sm_90, which adds all 16 at once. The host's twin does what sm_80 does.

#include "../common.cuh"

struct Operands {
    unsigned a[4], b[2];
};

#ifdef __CUDACC__
__device__ __forceinline__ float4 multiply_add(const Operands &of, float4 c) {
    float4 d;
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%10, %11, %12, %13};"
        : "=f"(d.x), "=f"(d.y), "=f"(d.z), "=f"(d.w)
        : "r"(of.a[0]), "r"(of.a[1]), "r"(of.a[2]), "r"(of.a[3]), "r"(of.b[0]), "r"(of.b[1]), "f"(c.x), "f"(c.y),
          "f"(c.z), "f"(c.w));
    return d;
}
#else
static inline float half_of(unsigned pair, int k) {
    return to_float(__ushort_as_half(static_cast<unsigned short>(pair >> 16 * (k % 2))));
}
// A number: `digits` 2^(exponent - `fraction`). What is cut off is counted from the exponent.
struct Number {
    int64_t digits;
    int exponent;
};
static inline Number number_of_half(unsigned bits) {  // fraction 10
    const int e = static_cast<int>(bits >> 10 & 31), digits = static_cast<int>(bits & 1023) + (e ? 1024 : 0);
    return {bits >> 15 & 1 ? -digits : digits, (e ? e : 1) - 15};
}
static inline Number number_of_float(float value) {  // fraction 23
    const unsigned bits = __float_as_uint(value);
    const int e = static_cast<int>(bits >> 23 & 255), digits = static_cast<int>(bits & 0x7fffff) + (e ? 0x800000 : 0);
    return {bits >> 31 ? -digits : digits, (e ? e : 1) - 127};
}
static inline int64_t cut_off(Number number, int fraction, int exponent) {
    const int up = number.exponent - exponent - fraction;
    return up >= 0 ? number.digits << up : up > -60 ? number.digits / (int64_t(1) << -up) : 0;
}
static inline float cut_off_sum(const Number *a, const Number *b, float c) {  // c + a[0] b[0] + ... + a[7] b[7]
    constexpr int F = 24;
    const Number plus = number_of_float(c);
    int exponent = plus.digits ? plus.exponent : -1000;
    for (int k = 0; k < 8; k++)
        if (a[k].digits && b[k].digits) exponent = max(exponent, a[k].exponent + b[k].exponent);
    int64_t sum = plus.digits ? cut_off(plus, 23, exponent - F) : 0;
    for (int k = 0; k < 8; k++)
        if (a[k].digits && b[k].digits)
            sum += cut_off({a[k].digits * b[k].digits, a[k].exponent + b[k].exponent}, 20, exponent - F);
    int64_t last = 1;  // of the 24 bits
    while (sum / last >= 1 << 24 || sum / last <= -(1 << 24)) last *= 2;
    return sum ? ldexpf(static_cast<float>(sum / last * last), exponent - F) : 0.0f;
}
static inline float4 multiply_add(const Operands &mine, float4 c) {
    const auto all = cuda_on_host::lanes(0xffffffffu, mine);
    const int row = threadIdx.x % 32 / 4 * 4, column = threadIdx.x % 4 * 8;
    float d[4] = {c.x, c.y, c.z, c.w};
    for (int half = 0; half < 2; half++) {
        Number a[2][8], b[2][8];
        bool finite = true;
        for (int k = 0; k < 8; k++) {
            const Operands left = all[row + k / 2];
            for (int i = 0; i < 2; i++) {
                const unsigned of_a = left.a[i + 2 * half] >> 16 * (k % 2), of_b = all[column + 4 * i + k / 2].b[half] >> 16 * (k % 2);
                a[i][k] = number_of_half(of_a);
                b[i][k] = number_of_half(of_b);
                finite = finite && (of_a >> 10 & 31) < 31 && (of_b >> 10 & 31) < 31;
            }
        }
        for (int i = 0; i < 4; i++) {
            if (finite && d[i] - d[i] == 0.0f) {
                d[i] = cut_off_sum(a[i / 2], b[i % 2], d[i]);
                continue;
            }
            for (int k = 0; k < 8; k++)  // inf and nan
                d[i] += half_of(all[row + k / 2].a[i / 2 + 2 * half], k) * half_of(all[column + i % 2 * 4 + k / 2].b[half], k);
        }
    }
    return make_float4(d[0], d[1], d[2], d[3]);
}
#endif

__device__ __forceinline__ unsigned as_word(__half2 pair) { return *reinterpret_cast<unsigned *>(&pair); }
__device__ __forceinline__ __half2 as_halves(unsigned word) { return *reinterpret_cast<__half2 *>(&word); }

// ---- integers as halves ----

constexpr unsigned MANTISSAS = 0x64006400u;  // two halves of 1024, whose mantissas are empty: 10 bits

// (value & mask) | with, in one instruction; with two constants the compiler would take two.
#ifdef __CUDACC__
__device__ __forceinline__ unsigned and_or(unsigned value, unsigned mask, unsigned with) {
    unsigned out;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(value), "r"(mask), "r"(with));
    return out;
}
#else
static inline unsigned and_or(unsigned value, unsigned mask, unsigned with) { return (value & mask) | with; }
#endif

// Two integers n < 2^(10 - base) from bit `base` of MANTISSAS on: as halves, exactly. 1024 + n 2^base, times 2^-base,
// less 1024 2^-base.
__device__ __forceinline__ __half2 integers_at(unsigned halves, unsigned base) {
    const __half scale = __ushort_as_half(static_cast<unsigned short>((15 - base) << 10));           // 2^-base
    const __half less = __ushort_as_half(static_cast<unsigned short>(0x8000u | (25 - base) << 10));  // -2^(10 - base)
    return __hfma2(as_halves(halves), __half2half2(scale), __half2half2(less));
}
