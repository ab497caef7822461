// Memory-aligned blocks of 2/4-bit weights to a dense matrix, so that a dense product can take many rows of x.
//
//     W[n, k] = step (code_s + second zero) (code - zero)   or, of 4 bits,   row_scale (code - row_zero)
//
// A thread has a group of 16 channels of a row. Every factor has so few bits that float is exact; then it is rounded to
// W's type. Outliers are not here: their codes are their zero. grid = (ceil(G / THREADS), min(N, 65535)), THREADS threads.
//
// Parameters: THREADS · BLOCKS that shall share an SM · OUT_TYPE float, __half or bfloat_t.

#include "../common.cuh"
#include "sixteen.cuh"

// Of the group of 2 bits at `slot` of a block.
__device__ __forceinline__ void dequantize_narrow(float (&out)[16], word_t word, unsigned meta, unsigned second, float step,
                                                  int slot) {
    const unsigned code = slot == 0 ? meta >> 6 & 15u : slot == 1 ? meta >> 10 & 7u : meta >> 13 & 7u;
    const float scale = step * static_cast<float>(code + (second >> 4 * slot & 15u));
    const float zero = static_cast<float>(meta >> 2 * slot & 3u);
#pragma unroll
    for (int j = 0; j < 16; j++) out[j] = scale * (static_cast<float>(word >> 2 * j & 3u) - zero);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
dequantize_mixed(const word_t *blocks,             // [N][T][4]
                 const word_t *apart,              // [N][T]
                 const unsigned short *meta,       // [N][T]
                 const __half *scale_step,         // [ceil(N / 16)][T][3]
                 const unsigned short *scale_zero, // [ceil(N / 16)][T]
                 const __half *row_scale,          // [N]
                 const word_t *row_zero,           // [ceil(N / 8)], 4 bits each
                 const int *places,                // [G]: 4 t + slot
                 OUT_TYPE *dense,                  // [N][K]
                 int rows,                         // N
                 int columns,                      // K
                 int of_row,                       // T
                 int groups)                       // G
{
    const int group = blockIdx.x * THREADS + threadIdx.x;
    if (group >= groups) return;
    const int block = places[group] / 4, slot = places[group] % 4;
    for (int n = blockIdx.y; n < rows; n += gridDim.y) {
        const size_t at = static_cast<size_t>(n) * of_row + block, band = static_cast<size_t>(n / 16) * of_row + block;
        const word_t word = blocks[at * 4 + slot];
        float out[16];
        if (slot < 3) {
            dequantize_narrow(out, word, meta[at], scale_zero[band], to_float(scale_step[band * 3 + slot]), slot);
        } else {
            const word_t behind = apart[at];
            const float scale = to_float(row_scale[n]), zero = static_cast<float>(row_zero[n / 8] >> n % 8 * 4 & 15u);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                out[j] = scale * (static_cast<float>(word >> 4 * j & 15u) - zero);
                out[j + 8] = scale * (static_cast<float>(behind >> 4 * j & 15u) - zero);
            }
        }
        write_sixteen(dense + static_cast<size_t>(n) * columns, out, group * 16, columns);
    }
}
