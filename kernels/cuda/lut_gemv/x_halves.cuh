// Rows of x as operands of tensor cores that multiply bits where they stand in a word (half_bits.cu).
//
//     x[k] = unit X[k],  unit the power of two of a row and a block of 128 columns with max |X| < 2^15
//     B at bit k's place = X[k] as a half, divided by what the bit is there, of what it is at place 6
//
// Alone in a half, the bit at place 6 .. 13 is 2^-18, 2^-17, 2^-16, 2^-15, 2^-14, 2^-13, 2^-11, 2^-7. Word s of 16 holds x
// for bits i and i + 16 of a word of weights, s = (i - 6) mod 16, the other way round for i < 6: word s meets place
// 6 + s % 8 of the weights, for s >= 8 of the weights rotated by 8. A float32 x is two halves, X and what it lacks times
// 2^11, in neighbouring columns of B. PARTS groups of columns share a block; each has X_ROWS columns of B of its own.
//
// A block of columns: words [4][FRAGMENTS] uint4, lane 4 v + w has those of word w of row v · [PAIRS] float4, of two
// columns of B each: t = -sum_k X[k] / 2^19 of both, unit 2^14 of both.
//
// Parameters: PARTS 1, 2, 4 · TILES of 8 columns of B, 1, 2 or 4 · WARPS · X_BYTES as the plan counts them · X_TYPE float,
// __half or bfloat_t.

#include "../common.cuh"
#include "half_mma.cuh"

constexpr int HALVES = sizeof(X_TYPE) == 4 ? 2 : 1;          // of an x
constexpr int X_ROWS = 8 * TILES / PARTS;                    // of x, HALVES for each; columns of B that a part has
constexpr int AT_ONCE = X_ROWS / HALVES;
constexpr int FRAGMENTS = X_ROWS * 4;
constexpr int PAIRS = TILES * 4;
static_assert(X_BYTES == 4 * FRAGMENTS * 16 + PAIRS * 16, "the plan counts other bytes of x");

// The place of word s, and the power of two that a bit is there, of what it is at place 6.
__device__ constexpr int place(int s) { return 6 + s % 8; }
__device__ __forceinline__ int more_than_at_6(int s) { return s % 8 + (s % 8 > 5) + 3 * (s % 8 > 6); }

// What a lane has of a row of x in a block of columns, i = 2 (lane % 8): columns i, i + 1 and i + 16, i + 17 of word
// lane / 8, as words of B have them: of[0], of[1] for the lower halves, of[2], of[3] for the upper. Zero from `end` on.
struct LaneOfX {
    X_TYPE of[4];

    __device__ __forceinline__ void load(const X_TYPE *row, int start, int end, bool even, int lane) {
        struct alignas(2 * sizeof(X_TYPE)) Two {
            X_TYPE of[2];
        };
        const int i = lane % 8 * 2, turned = i < 6 ? 16 : 0, at = start + lane / 8 * 32 + i;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int k = at + (h ? 16 - turned : turned);
            if (even && k + 1 < end) {
                const Two two = *reinterpret_cast<const Two *>(row + k);
                of[2 * h] = two.of[0];
                of[2 * h + 1] = two.of[1];
            } else {
                of[2 * h] = k < end ? row[k] : round_to(0.0f, X_TYPE());
                of[2 * h + 1] = k + 1 < end ? row[k + 1] : round_to(0.0f, X_TYPE());
            }
        }
    }
};

// A row of x in a block of columns, by a warp: its words of B, t and unit.
__device__ __forceinline__ void write_x(uint4 *fragments, float4 *pairs, const LaneOfX &x, int row, int lane) {
    float values[4];
    unsigned bits = 0;  // of the largest |x|: as numbers they are in the order of floats, then inf, then nan
#pragma unroll
    for (int k = 0; k < 4; k++) {
        values[k] = to_float(x.of[k]);
        bits = max(bits, __float_as_uint(fabsf(values[k])));
    }
    bits = __reduce_max_sync(0xffffffffu, bits);
    const float unit = unit_below(__uint_as_float(bits), 15);
    const float per_unit = __uint_as_float(0x7f000000u - __float_as_uint(unit));  // 1 / unit: the exponent negated

    float total = 0.0f;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        values[k] *= per_unit;
        total += values[k];
    }
#pragma unroll
    for (int lanes = 1; lanes < 32 / PARTS; lanes *= 2) total += __shfl_xor_sync(0xffffffffu, total, lanes);

    const int s = (lane % 8 * 2 + 10) % 16;  // of the first of two words
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        unsigned words[2];
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const int more = more_than_at_6(s + k);
            const float scale = power_of_two(-more);
            const __half2 pair = __floats2half2_rn(values[k] * scale, values[k + 2] * scale);
            words[k] = as_word(pair);
            if (h + 1 < HALVES) {  // what is left, as large as X
                const float2 kept = __half22float2(pair);
                values[k] = values[k] * 2048.0f - kept.x * power_of_two(11 + more);
                values[k + 2] = values[k + 2] * 2048.0f - kept.y * power_of_two(11 + more);
            }
        }
        uint4 *const at = fragments + s / 4 * FRAGMENTS + (row * HALVES + h) * 4 + lane / 8;
        reinterpret_cast<uint2 *>(at)[s % 4 / 2] = make_uint2(words[0], words[1]);
    }
    if (lane % (32 / PARTS) != 0) return;
#pragma unroll
    for (int h = 0; h < HALVES; h++) {
        const int column = lane / (32 / PARTS) * X_ROWS + row * HALVES + h;
        float *const pair = reinterpret_cast<float *>(pairs + column / 2) + column % 2;
        pair[0] = h ? 0.0f : total * -power_of_two(-19);
        pair[2] = unit * (h ? 8.0f : 16384.0f);
    }
}

// The slice of m rows of x. A run of blocks begins at a multiple of `span` columns and has no more than these.
__device__ __forceinline__ void load_x(uint4 *fragments, float4 *pairs, const X_TYPE *x, int m, int first, int count,
                                       int columns, int span, int run) {
    constexpr int AHEAD = AT_ONCE < 4 ? AT_ONCE : 4;  // rows whose loads are under way
    constexpr int TURNS = AT_ONCE / AHEAD;
    const int lane = threadIdx.x % 32;
    const bool even = columns % 2 == 0 && reinterpret_cast<size_t>(x) % (2 * sizeof(X_TYPE)) == 0;
    for (int item = threadIdx.x / 32; item < count * TURNS; item += WARPS) {
        const int block = item / TURNS, row = item % TURNS * AHEAD;
        const int group = (first + block) / run * span, start = group + (first + block) % run * 128;
        const int end = min(min(start + 128, group + span), columns);
        LaneOfX ahead[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            ahead[a].load(x + static_cast<size_t>(min(row + a, m - 1)) * columns, start, end, even, lane);
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (row + a < m) write_x(fragments + block * 4 * FRAGMENTS, pairs + block * PAIRS, ahead[a], row + a, lane);
    }
}
