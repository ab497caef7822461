// Column groups of 2, 3 and 4 bits, in tiles and chunks (mixed_gemv/chunks.cuh), to a dense matrix for dense products.
//
//     W[n, k] = step (code_s + second zero) (code - zero)   or, with ROW_SCALES, of 4 bits   row_scale (code - row_zero)
//
// A thread has a piece of 16 channels of a row. Every factor has so few bits that float is exact; then it is rounded to
// W's type. Outliers are not here: their codes are their zero. grid = (ceil(16 C / THREADS), min(N, 65535)), THREADS
// threads.
//
// Parameters: THREADS · BLOCKS that shall share an SM · ROW_SCALES 0, 1 · OUT_TYPE float, __half or bfloat_t.

#include "../common.cuh"
#include "../mixed_gemv/chunks.cuh"
#include "sixteen.cuh"

// Place of a piece in a chunk, for a row of a tile.
struct Place {
    int half, lane, c, g;  // row r or r + 8; lane 4 r + c, which has four pieces

    __device__ __forceinline__ Place(int row, int piece)
        : half(row / 8), lane(row % 8 * 4 + piece / 4), c(piece / 4), g(piece % 4) {}
};

__device__ __forceinline__ word_t word_at(const unsigned char *at) { return *reinterpret_cast<const word_t *>(at); }
__device__ __forceinline__ unsigned short_at(const unsigned char *at) { return *reinterpret_cast<const unsigned short *>(at); }

__device__ __forceinline__ void read_codes(float (&codes)[16], const unsigned char *chunk, int width, const Place &of) {
    const unsigned char *const at = chunk + of.half * 512 + of.lane * 16;
    if (width == 4) {
        const unsigned char *const both = at + of.g / 2 * 1024 + of.g % 2 * 8;
        const word_t words[2] = {word_at(both), word_at(both + 4)};
#pragma unroll
        for (int j = 0; j < 16; j++) codes[j] = static_cast<float>(words[j % 8 / 4] >> (j % 4 * 4 + j / 8 * 16) & 15u);
        return;
    }
    const word_t two = word_at(at + of.g * 4);
    word_t one = width == 3 ? word_at(chunk + 1024 + of.lane * 16 + of.half * 8 + of.g / 2 * 4) : 0u;
    if (of.g % 2) one = __funnelshift_r(one, one, 8);
#pragma unroll
    for (int j = 0; j < 16; j++) {
        const unsigned third = one >> (2 + j % 4 * 2 + j % 8 / 4 + j / 8 * 16) & 1u;
        codes[j] = static_cast<float>((two >> 2 * j & 3u) | third << 2);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
dequantize_mixed_chunks(const unsigned char *words,  // [T] of the bytes of all chunks
                        const __half *row_scale,     // [N], if ROW_SCALES
                        const word_t *row_zero,      // [ceil(N / 8)], 4 bits each, if ROW_SCALES
                        const int *source,           // [16 C]: the 16 channels of a piece, -1 where it is none
                        OUT_TYPE *dense,             // [N][K]
                        int rows,                    // N
                        int columns,                 // K
                        int twos,                    // chunks of a tile by width
                        int threes,
                        int fours)
{
    const Chunks of{twos, threes, fours};
    const int piece = blockIdx.x * THREADS + threadIdx.x;
    if (piece >= of.all() * 16 || source[piece] < 0) return;
    const int chunk = piece / 16, width = of.width(chunk);
    for (int n = blockIdx.y; n < rows; n += gridDim.y) {
        const Place place(n % 16, piece % 16);
        const unsigned char *const at = words + static_cast<size_t>(n / 16) * of.before(of.all()) + of.before(chunk);
        float out[16], scale, zero;
        read_codes(out, at, width, place);
        if (width == 4 && ROW_SCALES) {
            scale = to_float(row_scale[n]);
            zero = static_cast<float>(row_zero[n / 8] >> n % 8 * 4 & 15u);
        } else {
            const unsigned char *const scales = at + CODES * width, *const zeros = scales + 128;
            const unsigned char *const behind = zeros + zero_bytes(width);
            const unsigned code = word_at(scales + place.lane * 4) >> (4 * place.g + 16 * place.half) & 15u;
            const unsigned second = short_at(behind + 32 + place.c * 2) >> 4 * place.g & 15u;
            const unsigned step = short_at(behind + place.c * 8 + place.g * 2);
            scale = to_float(__ushort_as_half(static_cast<unsigned short>(step))) * static_cast<float>(code + second);
            const unsigned first = width == 2 ? short_at(zeros + place.lane * 2) >> (2 * place.g + 8 * place.half) & 3u
                                              : word_at(zeros + place.lane * 4) >> (width * place.g + 16 * place.half);
            zero = static_cast<float>(first & ((1u << width) - 1u));
        }
#pragma unroll
        for (int j = 0; j < 16; j++) out[j] = scale * (out[j] - zero);
        write_sixteen(dense + static_cast<size_t>(n) * columns, out, source[piece] * 16, columns);
    }
}
