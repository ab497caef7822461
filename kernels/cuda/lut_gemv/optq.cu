// OPTQ's way, the baseline of LUT-GEMM's tables: dequantize 2 to 4 bit codes with a table of pairs, then multiply.
//
//     y[m, n] = sum_k s[g, n] (code[n, k] - zero[g, n]) x[m, k]
//
// Our own code for the structure of GPTQ's 3-bit matrix-vector kernel: a thread has one row, a block THREADS rows and
// COLUMNS columns of x in shared memory; a table of all pairs of codes, once a bank so that lanes never collide, turns
// 2 q bits into two halves; products are summed in half over 32 columns, then in float; atomicAdd into y, which must be
// zero. Not deterministic. grid = (ceil(N / THREADS), ceil(K / COLUMNS), M), THREADS threads.
//
// Parameters: BITS (q) 2, 3 or 4 · COLUMNS multiple of 32 · THREADS multiple of 32 · SCALE_TYPE float or __half.

#include "../common.cuh"

constexpr int PAIRS = 1 << 2 * BITS;
constexpr word_t MASK = PAIRS - 1;

extern "C" __global__ void __launch_bounds__(THREADS)
lut_gemv_optq(const word_t *words,         // [ceil(K / 32)][BITS][stride]: 32 codes in a stream of bits
              const SCALE_TYPE *scales,    // [G][2][stride]: s, zero
              const __half *x,             // [M][K]
              __half *y,                   // [M][N], zeros
              int rows,                    // N
              int columns,                 // K
              int stride,                  // N rounded up
              int group)                   // g, columns of a group: a multiple of 32, or all
{
    __shared__ __half2 table[PAIRS][32];
    __shared__ __half2 values[COLUMNS / 2];
    const int first = blockIdx.y * COLUMNS, last = min(first + COLUMNS, columns), lane = threadIdx.x % 32;
    x += static_cast<size_t>(blockIdx.z) * columns;
    y += static_cast<size_t>(blockIdx.z) * rows;
    for (int pair = threadIdx.x / 32; pair < PAIRS; pair += THREADS / 32)
        table[pair][lane] = __floats2half2_rn(static_cast<float>(pair & ((1 << BITS) - 1)), static_cast<float>(pair >> BITS));
    for (int i = threadIdx.x; i < COLUMNS / 2; i += THREADS) {
        const int k = first + 2 * i;
        values[i] = __halves2half2(k < last ? x[k] : __float2half_rn(0.0f), k + 1 < last ? x[k + 1] : __float2half_rn(0.0f));
    }
    __syncthreads();
    const int n = blockIdx.x * THREADS + threadIdx.x;
    if (n >= rows) return;

    float sum = 0.0f;
    for (int k = first; k < last; k += 32) {
        word_t codes[BITS + 1];
#pragma unroll
        for (int i = 0; i < BITS; i++) codes[i] = words[(static_cast<size_t>(k / 32) * BITS + i) * stride + n];
        codes[BITS] = 0;
        const SCALE_TYPE *at = scales + static_cast<size_t>(k / group) * 2 * stride + n;
        const __half2 scale = __float2half2_rn(to_float(at[0])), zero = __float2half2_rn(to_float(at[stride]));
        const __half2 *part = values + (k - first) / 2;
        __half2 dot = __float2half2_rn(0.0f);
#pragma unroll
        for (int i = 0; i < 16; i++) {
            const int bit = 2 * BITS * i;
            const word_t pair = __funnelshift_r(codes[bit / 32], codes[bit / 32 + 1], bit % 32) & MASK;
            dot = __hfma2(__hmul2(scale, __hsub2(table[pair][lane], zero)), part[i], dot);
        }
        sum += __half2float(__low2half(dot)) + __half2float(__high2half(dot));
    }
    atomicAdd(&y[n], __float2half_rn(sum));
}
