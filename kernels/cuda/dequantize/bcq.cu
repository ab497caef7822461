// Binary codes to a dense matrix, so that a dense product can take many rows of x.
//
//     W[n, k] = offset[n, k / g] + sum_b (+ or -) alpha[b, n, k / g],   + where bit k of plane b is 1   LUT-GEMM Eq. 2
//
// A thread has eight columns of a row: one byte of each plane, 16 or 32 bytes of W, side by side with its neighbours'.
// Sums are in double, offset first, then alpha_0, alpha_1, ..., and rounded to float and then to W's type: to the last
// bit what the plain layout's dequantize() gives. grid = (ceil(K / (8 THREADS)), min(N, 65535)), THREADS threads.
//
// Parameters: BITS (q) · THREADS · BLOCKS that shall share an SM · OUT_TYPE float, __half or bfloat_t · ALPHA_TYPE
// float or __half · OFFSET_TYPE float, __half or double · HAS_OFFSET 0, 1.

#include "../common.cuh"

__device__ __forceinline__ double widened(double value) { return value; }
__device__ __forceinline__ double widened(float value) { return value; }
__device__ __forceinline__ double widened(__half value) { return __half2float(value); }

struct alignas(16) Eight {
    OUT_TYPE of[8];
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
dequantize_bcq(const unsigned char *planes,   // [BITS][N][words][4] bytes
               const ALPHA_TYPE *alpha,       // [BITS][N][G]
               const OFFSET_TYPE *offset,     // [N][G], if HAS_OFFSET
               OUT_TYPE *dense,               // [N][K]
               int rows,                      // N
               int columns,                   // K
               int group,                     // g, columns of a group
               int groups)                    // G
{
    const int first = 8 * (blockIdx.x * THREADS + threadIdx.x);
    if (first >= columns) return;
    const size_t octets = static_cast<size_t>((columns + 31) / 32) * 4;
    const int last = min(first + 8, columns);
    const int before = first / group, behind = (last - 1) / group;  // g >= 8, or all of K: two groups at most
    const int split = (before + 1) * group - first;                 // columns of the first
    for (int n = blockIdx.y; n < rows; n += gridDim.y) {
        double sums[8] = {};
#if HAS_OFFSET
        const OFFSET_TYPE *z = offset + static_cast<size_t>(n) * groups;
#pragma unroll
        for (int i = 0; i < 8; i++) sums[i] = widened(z[i < split ? before : behind]);
#endif
#pragma unroll
        for (int b = 0; b < BITS; b++) {
            const size_t plane = static_cast<size_t>(b) * rows + n;
            const unsigned minus = ~static_cast<unsigned>(planes[plane * octets + first / 8]);
            const unsigned low = __float_as_uint(to_float(alpha[plane * groups + before]));
            const unsigned high = __float_as_uint(to_float(alpha[plane * groups + behind]));
#pragma unroll
            for (int i = 0; i < 8; i++)
                sums[i] += __uint_as_float((i < split ? low : high) ^ (minus << (31 - i) & 0x80000000u));
        }
        Eight out;
#pragma unroll
        for (int i = 0; i < 8; i++) out.of[i] = round_to(static_cast<float>(sums[i]), OUT_TYPE());
        OUT_TYPE *at = dense + static_cast<size_t>(n) * columns + first;
        if (columns % 8 == 0) {
            *reinterpret_cast<Eight *>(at) = out;
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++)
                if (first + i < last) at[i] = out.of[i];
        }
    }
}
