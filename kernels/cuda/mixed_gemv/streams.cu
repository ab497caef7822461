// Weights of column groups of 2, 3 and 4 bits in any number times x: a chunk of a tile has 16 groups of one width.
//
//     y[m, n] = sum over groups of  step (code + second zero) ( sum_k code[n, k] x[m, k]  -  zero sum_k x[m, k] )
//             + sum over outliers of value x[m, column]
//
// ROW_SCALES 1: groups of 4 bits have one scale and zero a row instead, as in blocks.cu. Chunks of 2 bits come first, then those
// of 3, then of 4. Codes of 3 bits are put together under the mantissa of 1024: two bits by one mask, the third by another,
// from a word that two groups share. How they are multiplied: tiles.cuh, whose parameters these are too.
//
// Parameters: HAS_3, HAS_4, ROW_SCALES 0, 1.

constexpr bool WIDE_LAST = false;  // x of all groups in one order
#include "chunks.cuh"
#include "tiles.cuh"

constexpr int WIDEST = HAS_4 ? 4 : HAS_3 ? 3 : 2;
constexpr int SCALES_AT = CODES * WIDEST;  // in a stage, behind the widest codes
static_assert(STAGE_BYTES >= SCALES_AT + scale_bytes(2), "the plan counts other stages");

// Pair j of a group's codes of 3 bits as halves: bits 0, 1 as those of 2 bits, in `two`; bit 2 in `one`, at bit
// 2 + 2 (j % 4) + j / 4 of either half of it, turned right by 8 for the second of two groups.
__device__ __forceinline__ unsigned three_bit_codes(word_t two, word_t one, int j) {
    const unsigned base = j % 4 * 2;
    const unsigned low = and_or(two >> j / 4 * 8, 0x00030003u << base, MANTISSAS);
    return as_word(integers_at(and_or(one >> j / 4, 0x00010001u << (base + 2), low), base));
}

__device__ __forceinline__ void multiply_threes(float4 (&dots)[PAIRS], const word_t (&two)[2], const word_t (&one)[2],
                                                const __half *values, const int (&x)[PAIRS], int at) {
#pragma unroll
    for (int j = 0; j < 8; j += 4) {
        uint4 columns[PAIRS];
        load_columns(columns, values, x, at + 2 * j);
#pragma unroll
        for (int s = 0; s < 2; s++) {
            Operands of;
#pragma unroll
            for (int i = 0; i < 4; i++) of.a[i] = three_bit_codes(two[i % 2], one[i % 2], j + 2 * s + i / 2);
            multiply_pairs(dots, of, columns, s);
        }
    }
}

struct Streams : Chunks {
    const unsigned char *words;  // of all tiles
    static constexpr bool BY_ROW = ROW_SCALES;

    __device__ __forceinline__ Streams(const unsigned char *words, int twos, int threes, int fours)
        : Chunks{twos, threes, fours}, words(words) {}
    __device__ __forceinline__ int width(int chunk) const {  // as the compiler sees it
        return chunk < twos ? 2 : !HAS_4 || (HAS_3 && chunk < twos + threes) ? 3 : 4;
    }
    __device__ __forceinline__ int first_wide(int chunk) const { return BY_ROW && chunk >= twos + threes ? 0 : GROUPS; }

    struct Next {
        const Streams &of;
        const unsigned char *tile;  // of the lane's first 16 bytes
        int chunk, first;
        Turns turns;

        __device__ __forceinline__ Next(const Streams &of, int tiles, int chunks, int first, int last, int lane)
            : of(of), tile(of.words + static_cast<size_t>(blockIdx.x) * of.before(chunks) + lane * 16), chunk(first),
              first(first), turns(tiles, first, last) {}
        __device__ __forceinline__ void fetch(unsigned char *stage, int lane) {
            const int width = of.width(chunk);
            const unsigned char *const from = tile + of.before(chunk);
            if (turns.tiles > 0 && lane < scale_bytes(width) / 16)
                copy_16_async(stage + SCALES_AT + lane * 16, from + CODES * width);
            copy_commit();
            if (turns.tiles > 0) {
#pragma unroll
                for (int bit = 0; bit < WIDEST; bit++)
                    if (bit < width) copy_16_async(stage + bit * CODES + lane * 16, from + bit * CODES);
            }
            copy_commit();
            chunk += WARPS;
            if (!turns.ends_a_tile()) return;
            chunk = first;
            tile += static_cast<size_t>(gridDim.x) * of.before(of.all());
        }
    };

    // Of a lane's four groups, rows r (x) and r + 8 (y).
    struct Scales {
        float2 scale[4], zero[4];

        __device__ __forceinline__ void decode(const Streams &of, const unsigned char *stage, int chunk, int lane) {
            const int width = of.width(chunk);
            if (BY_ROW && width == 4) return;
            stage += SCALES_AT;
            const unsigned codes = reinterpret_cast<const unsigned *>(stage)[lane];
            unsigned zeros;
            if (width == 2) {
                const unsigned both = reinterpret_cast<const unsigned short *>(stage + 128)[lane];  // a byte a row
                zeros = (both & 0xffu) | (both & 0xff00u) << 8;
            } else {
                zeros = reinterpret_cast<const unsigned *>(stage + 128)[lane];
            }
            const unsigned char *const behind = stage + 128 + zero_bytes(width);
            const uint2 steps = reinterpret_cast<const uint2 *>(behind)[lane % 4];
            const unsigned second = reinterpret_cast<const unsigned short *>(behind + 32)[lane % 4];
            const unsigned mask = ((1u << width) - 1u) * 0x00010001u;
#pragma unroll
            for (int g = 0; g < 4; g++) {
                scale[g] = second_order(codes >> 4 * g & 0x000f000fu, second >> 4 * g, (g < 2 ? steps.x : steps.y) >> g % 2 * 16);
                zero[g] = __half22float2(integers_at((zeros >> width * g & mask) | MANTISSAS, 0));
            }
        }
        __device__ __forceinline__ void multiply(Sums &sums, const Streams &of, const unsigned char *stage, int chunk,
                                                 const __half *values, const int (&x)[PAIRS], const float *totals, int lane) const {
            const int width = of.width(chunk);
            const uint4 *const vectors = reinterpret_cast<const uint4 *>(stage) + lane;
            if (HAS_4 && width == 4) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const uint4 low = vectors[half * 64], high = vectors[half * 64 + 32];
                    const word_t words[4][2] = {{low.x, high.x}, {low.y, high.y}, {low.z, high.z}, {low.w, high.w}};
#pragma unroll
                    for (int g = 0; g < 2; g++) {
                        float4 dots[PAIRS] = {};
                        float4(&into)[PAIRS] = BY_ROW ? sums.wide : dots;
                        multiply_words<4>(into, words[2 * g][0], words[2 * g][1], values, x, (2 * half + g) * GROUP);
                        multiply_words<4>(into, words[2 * g + 1][0], words[2 * g + 1][1], values, x, (2 * half + g) * GROUP + 8);
                        if (!BY_ROW) sums.add_scaled(dots, scale[2 * half + g], zero[2 * half + g], totals + 2 * half + g);
                    }
                }
                return;
            }
            const uint4 low = vectors[0], high = vectors[32];
            const uint4 ones = HAS_3 && width == 3 ? vectors[64] : make_uint4(0, 0, 0, 0);
            const word_t words[4][2] = {{low.x, high.x}, {low.y, high.y}, {low.z, high.z}, {low.w, high.w}};
            const word_t thirds[2][2] = {{ones.x, ones.z}, {ones.y, ones.w}};
#pragma unroll
            for (int g = 0; g < 4; g++) {
                float4 dots[PAIRS] = {};
                if (HAS_3 && width == 3) {
                    word_t one[2];
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        one[i] = g % 2 ? __funnelshift_r(thirds[g / 2][i], thirds[g / 2][i], 8) : thirds[g / 2][i];
                    multiply_threes(dots, words[g], one, values, x, g * GROUP);
                } else {
                    multiply_words<2>(dots, words[g][0], words[g][1], values, x, g * GROUP);
                }
                sums.add_scaled(dots, scale[g], zero[g], totals + g);
            }
        }
    };
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
mixed_gemv_streams(const unsigned char *words,    // [T] of the bytes of all chunks, T = ceil(N / 16)
                   const __half *row_scale,       // [N], if ROW_SCALES
                   const word_t *row_zero,        // [ceil(N / 8)], 4 bits each, if ROW_SCALES
                   const int *source,             // [chunks][4][GROUPS]
                   const int *outlier_first,      // [N + 1], if AHEAD
                   const unsigned *outliers,      // value << 16 | column in the order of slots, if AHEAD
                   const X_TYPE *x,               // [M][K]
                   X_TYPE *y,                     // [M][N]
                   float *partial,                // [M][slices][N], if there are several slices
                   unsigned *arrived,             // [ceil(M / BATCH)][T], zeros
                   int rows,                      // N
                   int columns,                   // K
                   int all,                       // M
                   int slice,                     // chunks of a slice
                   int twos,                      // chunks of a tile by width
                   int threes,
                   int fours)
{
    DYNAMIC_SHARED(unsigned char, shared);
    multiply_tiles(Streams(words, twos, threes, fours), RowScales{row_scale, row_zero}, OutlierBuffers{outlier_first, outliers},
                   source, x, y, partial, arrived, Sizes{rows, columns, all, twos + threes + fours, slice}, shared);
}
