// Memory-aligned blocks of 2/4/16-bit weights times x (Li et al., ICCAD 2024, section 5, Algorithm 1, Fig. 8).
//
//     y[m, n] = sum over groups of 2 bits of  step (code + second zero) ( sum_k code[n, k] x[m, k]  -  zero sum_k x[m, k] )
//             + row_scale[n] ( sum over groups of 4 bits of sum_k code[n, k] x[m, k]  -  row_zero[n] sum_k x[m, k] )
//             + sum over outliers of value x[m, column]
//
// Three groups of 2 bits and one of 4 are a block of 64 columns of a row; a lane has one of a chunk's four. How they are
// multiplied: tiles.cuh, whose parameters these are.

constexpr bool WIDE_LAST = true;  // of a block's groups
#include "tiles.cuh"

constexpr int CHUNK = 4;                     // blocks
constexpr int CODE_BYTES = 16 * CHUNK * 20;  // of a tile and chunk: blocks [2][32] uint4, apart [32][2]
constexpr int META_BYTES = 16 * CHUNK * 2;   // meta [32][2]; behind it, of each block, 3 steps and its second zeros
constexpr int SCALE_BYTES = META_BYTES + CHUNK * 8;
constexpr int CHUNK_BYTES = CODE_BYTES + SCALE_BYTES;
static_assert(CHUNK_BYTES == STAGE_BYTES, "the plan counts other stages");

struct Blocks {
    const unsigned char *codes, *scales;  // of all tiles
    static constexpr bool BY_ROW = true;

    __device__ __forceinline__ int first_wide(int chunk) const { return GROUPS - 1; }

    struct Next {
        const unsigned char *codes, *scales;  // of the lane's first 16 bytes
        int further;                          // chunks from behind the last of a tile to the first of the next
        Turns turns;

        __device__ __forceinline__ Next(const Blocks &of, int tiles, int chunks, int first, int last, int lane)
            : turns(tiles, first, last) {
            const size_t at = static_cast<size_t>(blockIdx.x) * chunks + first;
            codes = of.codes + at * CODE_BYTES + lane * 16;
            scales = of.scales + at * SCALE_BYTES + lane * 16;
            further = gridDim.x * chunks - turns.each * WARPS;
        }
        __device__ __forceinline__ void fetch(unsigned char *stage, int lane) {
            if (turns.tiles > 0) ::fetch<SCALE_BYTES>(stage + CODE_BYTES + lane * 16, scales, lane);
            copy_commit();
            if (turns.tiles > 0) ::fetch<CODE_BYTES>(stage + lane * 16, codes, lane);
            copy_commit();
            codes += WARPS * CODE_BYTES;
            scales += WARPS * SCALE_BYTES;
            if (!turns.ends_a_tile()) return;
            codes += static_cast<ptrdiff_t>(further) * CODE_BYTES;
            scales += static_cast<ptrdiff_t>(further) * SCALE_BYTES;
        }
    };

    // Of groups a, b, c of a lane's block, rows r (x) and r + 8 (y).
    struct Scales {
        float2 scale[3], zero[3];

        __device__ __forceinline__ void decode(const Blocks &, const unsigned char *stage, int, int lane) {
            const unsigned meta = reinterpret_cast<const unsigned *>(stage + CODE_BYTES)[lane];
            const uint2 second = reinterpret_cast<const uint2 *>(stage + CODE_BYTES + META_BYTES)[lane % 4];
            const unsigned steps[3] = {second.x, second.x >> 16, second.y};
            const unsigned codes[3] = {meta >> 6 & 0x000f000fu, meta >> 10 & 0x00070007u, meta >> 13 & 0x00070007u};
#pragma unroll
            for (int g = 0; g < 3; g++) {
                scale[g] = second_order(codes[g], second.y >> (16 + 4 * g), steps[g]);
                zero[g] = __half22float2(integers_at(and_or(meta >> 2 * g, 0x00030003u, MANTISSAS), 0));
            }
        }
        __device__ __forceinline__ void multiply(Sums &sums, const Blocks &, const unsigned char *stage, int, const __half *values,
                                                 const int (&x)[PAIRS], const float *totals, int lane) const {
            const uint4 low = reinterpret_cast<const uint4 *>(stage)[lane], high = reinterpret_cast<const uint4 *>(stage)[32 + lane];
            const uint2 apart = reinterpret_cast<const uint2 *>(stage + 1024)[lane];
            const word_t words[3][2] = {{low.x, high.x}, {low.y, high.y}, {low.z, high.z}};
#pragma unroll
            for (int g = 0; g < 3; g++) {
                float4 dots[PAIRS] = {};
                multiply_words<2>(dots, words[g][0], words[g][1], values, x, g * GROUP);
                sums.add_scaled(dots, scale[g], zero[g], totals + g);
            }
            multiply_words<4>(sums.wide, low.w, high.w, values, x, 3 * GROUP);
            multiply_words<4>(sums.wide, apart.x, apart.y, values, x, 3 * GROUP + 8);
        }
    };
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
mixed_gemv_blocks(const unsigned char *codes,     // [T][chunks] of CODE_BYTES, T = ceil(N / 16)
                  const unsigned char *scales,    // [T][chunks] of SCALE_BYTES
                  const __half *row_scale,        // [N]
                  const word_t *row_zero,         // [ceil(N / 8)], 4 bits each
                  const int *source,              // [chunks][CHUNK][GROUPS]
                  const int *outlier_first,       // [N + 1], if AHEAD
                  const unsigned *outliers,       // value << 16 | column in the order of slots, if AHEAD
                  const X_TYPE *x,                // [M][K]
                  X_TYPE *y,                      // [M][N]
                  float *partial,                 // [M][slices][N], if there are several slices
                  unsigned *arrived,              // [ceil(M / BATCH)][T], zeros
                  int rows,                       // N
                  int columns,                    // K
                  int all,                        // M
                  int chunks,
                  int slice)                      // chunks of a slice
{
    DYNAMIC_SHARED(unsigned char, shared);
    multiply_tiles(Blocks{codes, scales}, RowScales{row_scale, row_zero}, OutlierBuffers{outlier_first, outliers}, source, x, y,
                   partial, arrived, Sizes{rows, columns, all, chunks, slice}, shared);
}
