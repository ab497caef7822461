// uniform_mma (r5): uniform codes, made halves in registers and multiplied by tensor cores, up to 8 or 16 rows at once.
//
//     y[m, n] = sum over groups of s[g, n] ( sum_k code[n, k] x[m, k]  -  zero[g, n] sum_k x[m, k] )       Eq. 5
//
// A code is put under the mantissa of 1024 (a half whose last bit is 1) by one mask a part, and one fused multiply-add
// takes the 1024 away: codes and half activations are exact, products and sums are float32. bfloat16 activations are
// divided by a power of two (`unit`, of a row and slice) that brings the largest to 2^14 .. 2^15: as halves they are exact
// down to 2^-31 of it, and in error by less than 2^-38 of it below. A warp has 16 rows of W, and reads its codes a chunk
// ahead, in the order of its operands (lut_gemv/uniform_mma.py). The block has SLICE columns of x in shared memory, as the
// lanes want them: of each 32 columns, lane l % 4 finds its 8 side by side.
// With several slices, sums go to `partial`, and the last block of the rows to arrive adds them in the order of slices.
// grid = (ceil(N / (16 WARPS)), slices, ceil(M / (8 TILES))), 32 WARPS threads.
//
// Parameters: BITS (q) · UNITS of 64 columns a chunk · FLUSH columns after which scales are applied, 32, 64 or 128 ·
// GROUP flushes a group, 0: one group is all of K · SLICE columns, whole chunks · TILES of 8 rows of x, 1 or 2 · WARPS ·
// BLOCKS that shall share an SM · X_TYPE __half or bfloat_t · SCALE_TYPE float or __half.

#include "../common.cuh"
#include "half_mma.cuh"

constexpr int COLUMNS = 64 * UNITS;          // of a chunk
constexpr int WORDS = BITS * UNITS;          // of a lane and chunk
constexpr int VECTORS = WORDS / 4;
constexpr int FLUSHES = COLUMNS / FLUSH;
constexpr int ROWS = 16 * WARPS;
constexpr int STRIDE = SLICE + 32;           // halves between rows of x: 64 bytes more, and their banks differ
constexpr int STEP = BITS < 2 ? 1 : BITS < 4 ? 2 : BITS < 8 ? 4 : 8;  // bits of a code's first part
constexpr int SET = BITS == 7 ? 1 : 8 / STEP;                         // pairs that share a rotation

// Adds the part of WIDTH bits from bit FIRST of pair `pair`'s two codes, at its base; `words` begin with the part's.
template <int WIDTH, int FIRST>
__device__ __forceinline__ unsigned add_part(unsigned codes, const word_t *words, int pair) {
    constexpr int TURNS = STEP / WIDTH * (16 / (STEP * SET));  // of a word
    const int set = pair / SET, i = set % TURNS;
    const unsigned turn = i % (STEP / WIDTH) * WIDTH + i / (STEP / WIDTH) * STEP * SET;
    const unsigned mask = ((1u << WIDTH) - 1u) * 0x00010001u << (FIRST + pair % SET * STEP);
    const word_t word = words[set / TURNS];
    return and_or(turn ? __funnelshift_r(word, word, turn) : word, mask, codes);
}

// Two codes as halves, exactly.
__device__ __forceinline__ unsigned two_codes(const word_t *words, int pair) {
    unsigned codes = add_part<STEP, 0>(MANTISSAS, words, pair);
    if (BITS == 3) codes = add_part<1, 2>(codes, words + 2, pair);
    if (BITS == 5) codes = add_part<1, 4>(codes, words + 4, pair);
    if (BITS == 6 || BITS == 7) codes = add_part<2, 4>(codes, words + 4, pair);
    if (BITS == 7) codes = add_part<1, 6>(codes, words + 6, pair);
    return as_word(integers_at(codes, pair % SET * STEP));
}

struct alignas(4 * sizeof(SCALE_TYPE)) Scales {
    SCALE_TYPE of[4];  // s of rows r and r + 8, zero of both
};
struct Chunk {
    uint4 words[VECTORS];
    Scales scales[FLUSHES];
};

// Where a warp's codes and scales lie.
struct Source {
    const uint4 *words;    // of the lane, its tile's first chunk
    const Scales *scales;  // of the lane's rows, first group
    int tiles, groups;

    __device__ __forceinline__ uint4 vector(int chunk, int v) const { return load_stream(words + (chunk * VECTORS + v) * 32); }
    __device__ __forceinline__ Scales of_flush(int chunk, int f) const {
        const int g = GROUP ? min((chunk * FLUSHES + f) / (GROUP ? GROUP : 1), groups - 1) : 0;
        return scales[g * tiles * 8];
    }
    __device__ __forceinline__ void load(Chunk &chunk, int index) const {
#pragma unroll
        for (int v = 0; v < VECTORS; v++) chunk.words[v] = vector(index, v);
#pragma unroll
        for (int f = 0; f < FLUSHES; f++) chunk.scales[f] = of_flush(index, f);
    }
};

// Multiplies a chunk by its columns of x and adds to the sums, and loads chunk `next` in its place; x and totals begin at
// the chunk. With few scales each register is loaded again once it is used up, so that a whole chunk is under way all the
// time; with many the compiler runs out of registers over that, and all loads stand in front.
__device__ __forceinline__ void multiply(float4 *sums, Chunk &chunk, const Source &from, int next, const __half *const *x,
                                         const float *totals) {
    constexpr bool IN_PLACE = FLUSH == 128;
    Chunk ahead;
    if (!IN_PLACE) from.load(ahead, next);
    word_t words[WORDS];
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        words[4 * v] = chunk.words[v].x;
        words[4 * v + 1] = chunk.words[v].y;
        words[4 * v + 2] = chunk.words[v].z;
        words[4 * v + 3] = chunk.words[v].w;
    }
#pragma unroll
    for (int f = 0; f < FLUSHES; f++) {
        float4 dots[TILES];
#pragma unroll
        for (int t = 0; t < TILES; t++) dots[t] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int part = f * FLUSH / 32; part < (f + 1) * FLUSH / 32; part++) {
            uint4 columns[TILES];
#pragma unroll
            for (int t = 0; t < TILES; t++) columns[t] = *reinterpret_cast<const uint4 *>(x[t] + 32 * part);
#pragma unroll
            for (int s = 0; s < 2; s++) {
                Operands of;
#pragma unroll
                for (int r = 0; r < 4; r++) of.a[r] = two_codes(words + part / 2 * BITS, (part % 2 * 2 + s) * 4 + r);
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    of.b[0] = s ? columns[t].z : columns[t].x;
                    of.b[1] = s ? columns[t].w : columns[t].y;
                    dots[t] = multiply_add(of, dots[t]);
                }
            }
            if (IN_PLACE && part % 2) {
                const int unit = part / 2;
#pragma unroll
                for (int v = 0; v < VECTORS; v++)
                    if (4 * v + 4 > unit * BITS && 4 * v + 4 <= (unit + 1) * BITS) chunk.words[v] = from.vector(next, v);
            }
        }
        const SCALE_TYPE *const of = chunk.scales[f].of;
        const float4 scale = make_float4(to_float(of[0]), to_float(of[1]), to_float(of[2]), to_float(of[3]));
        if (IN_PLACE) chunk.scales[f] = from.of_flush(next, f);
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            const float2 total = load2(totals + (f * TILES + t) * 8);
            sums[t].x = fmaf(scale.x, fmaf(-scale.z, total.x, dots[t].x), sums[t].x);
            sums[t].y = fmaf(scale.x, fmaf(-scale.z, total.y, dots[t].y), sums[t].y);
            sums[t].z = fmaf(scale.y, fmaf(-scale.w, total.x, dots[t].z), sums[t].z);
            sums[t].w = fmaf(scale.y, fmaf(-scale.w, total.y, dots[t].w), sums[t].w);
        }
    }
    if (!IN_PLACE) chunk = ahead;
}

// The slice of m rows of x as halves, zeros behind its end, the total of each row and flush, and of bfloat16 the units.
__device__ __forceinline__ void load_x(__half *values, float *totals, float *units, const X_TYPE *x, int m, int first,
                                       int columns) {
    X_TYPE *const raw = reinterpret_cast<X_TYPE *>(values);  // as it is read, until it is a half in the same place
    __shared__ unsigned largest[Wide<X_TYPE>::value ? 8 * TILES * WARPS : 1];  // bits of |x|, in the order of floats
    const int warp = threadIdx.x / 32;
    for (int n = 0; n < m; n++) {
        unsigned bits = 0;
        for (int k = threadIdx.x; k < SLICE; k += 32 * WARPS) {
            const int at = k / 32 * 32 + k % 16 / 4 * 8 + k % 32 / 16 * 4 + k % 4;
            const int column = first + k;
            const X_TYPE value = column < columns ? x[static_cast<size_t>(n) * columns + column] : round_to(0.0f, X_TYPE());
            raw[n * STRIDE + at] = value;
            if (Wide<X_TYPE>::value) bits = max(bits, __float_as_uint(fabsf(to_float(value))));
        }
        if (!Wide<X_TYPE>::value) continue;
        bits = __reduce_max_sync(0xffffffffu, bits);
        if (threadIdx.x % 32 == 0) largest[n * WARPS + warp] = bits;
    }
    __syncthreads();
    for (int item = warp; item < SLICE / FLUSH * 8 * TILES; item += WARPS) {
        const int flush = item / (8 * TILES), n = item % (8 * TILES);
        float total = 0.0f, unit = 1.0f;
        if (Wide<X_TYPE>::value && n < m) {
            unsigned bits = 0;
            for (int w = 0; w < WARPS; w++) bits = max(bits, largest[n * WARPS + w]);
            unit = unit_below(__uint_as_float(bits), 15);
        }
        if (n < m)
            for (int k = threadIdx.x % 32; k < FLUSH; k += 32) {
                const int at = n * STRIDE + flush * FLUSH + k;
                if (Wide<X_TYPE>::value) values[at] = round_to(to_float(raw[at]) * (1.0f / unit), __half());
                total += to_float(values[at]);
            }
        total = warp_sum(total);
        if (threadIdx.x % 32 == 0) totals[item] = total;
        if (Wide<X_TYPE>::value && flush == 0 && threadIdx.x % 32 == 0) units[n] = unit;
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
lut_gemv_uniform_mma(const uint4 *words,          // [T][chunks][VECTORS][32], T = ceil(N / 16)
                     const Scales *scales,        // [G][T][8]
                     const X_TYPE *x,             // [M][K]
                     X_TYPE *y,                   // [M][N]
                     float *partial,              // [M][slices][ROWS gridDim.x], if there are several slices
                     unsigned *arrived,           // [ceil(M / (8 TILES))][gridDim.x], zeros
                     int rows,                    // N
                     int columns,                 // K
                     int all,                     // M
                     int chunks,
                     int groups)                  // G
{
    DYNAMIC_SHARED(__half, values);      // [rows of x][STRIDE]
    __shared__ float totals[SLICE / FLUSH * 8 * TILES], units[8 * TILES];
    const int from = blockIdx.z * 8 * TILES, m = min(all - from, 8 * TILES), slices = gridDim.y;
    const int lane = threadIdx.x % 32, tiles = (rows + 15) / 16, tile = blockIdx.x * WARPS + threadIdx.x / 32;
    const int first = blockIdx.y * (SLICE / COLUMNS), last = min(first + SLICE / COLUMNS, chunks);
    const bool busy = tile < tiles;

    Chunk chunk;
    const Source source = {words + static_cast<size_t>(tile) * chunks * VECTORS * 32 + lane,
                           scales + static_cast<size_t>(tile) * 8 + lane / 4, tiles, groups};
    if (busy) source.load(chunk, first);
    load_x(values, totals, units, x + static_cast<size_t>(from) * columns, m, first * COLUMNS, columns);

    float4 sums[TILES];
    const __half *at[TILES];
    for (int t = 0; t < TILES; t++) {
        sums[t] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        at[t] = values + min(t * 8 + lane / 4, m - 1) * STRIDE + lane % 4 * 8;  // rows that are not there: any
    }
    const float *total = totals + lane % 4 * 2;
    if (busy)
        for (int index = first; index < last; index++) {
            multiply(sums, chunk, source, min(index + 1, last - 1), at, total);
            for (int t = 0; t < TILES; t++) at[t] += COLUMNS;
            total += FLUSHES * TILES * 8;
        }

    const int stride = ROWS * gridDim.x, row = tile * 16 + lane / 4;
    for (int t = 0; t < TILES; t++) {
        const float values_of[4] = {sums[t].x, sums[t].y, sums[t].z, sums[t].w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int n = t * 8 + lane % 4 * 2 + i % 2, own = row + i / 2 * 8;
            if (n >= m) continue;
            const float value = Wide<X_TYPE>::value ? values_of[i] * units[n] : values_of[i];
            put(y, partial, from + n, own, rows, slices, stride, value);
        }
    }
    if (slices > 1 && last_to_arrive(arrived + blockIdx.z * gridDim.x + blockIdx.x, slices))
        add_put(y, partial, from, m, blockIdx.x * ROWS, ROWS, rows, slices, stride);
}
