// small_tables (r2): a table of at most 128 bytes lies in 32 different banks, so that 32 rows of a warp look up different
// entries of it without conflicts, whatever the weights are. They are so small that a block has tables for thousands of
// columns: few slices of K, or one.
//
//     y[m, n] = sum over slices and parts of ( sum_b alpha[g, b, n] sum_f lut_f[field f of a word] + z[g, n] sum_k x[m, k] )
//
// A word is cut into fields of MU bits and one of what is left, 5 5 5 5 5 5 2 or 6 6 6 6 6 2, with a table each. A thread
// has four neighbouring rows, one uint4 of words a plane, a warp 128. PARTS warps share the same rows and have each a part
// of the slice; their sums are added in the order of parts. Weights are loaded AHEAD words before they are looked up. With
// several slices, sums go to `partial`, and the last block of the rows to arrive adds them in the order of slices.
// grid = (ceil(S / 128 / tiles), slices, M), THREADS threads.
//
// Parameters: BITS (q) · MU up to 5, or 6 with half tables · THREADS · PARTS divides the warps · AHEAD words · BLOCKS that
// shall share an SM · X_TYPE float, __half or bfloat_t · TABLE_TYPE, ALPHA_TYPE, OFFSET_TYPE float or __half · HAS_OFFSET
// 0, 1. Groups are whole words, or one group is all of K.

#include "../common.cuh"

constexpr int FIELDS = 32 / MU;                                     // of MU bits
constexpr int REST = 32 % MU;                                       // bits of the last field, or none
constexpr int SIZE = sizeof(TABLE_TYPE);
constexpr int TABLE_BYTES = SIZE << MU;
constexpr int REST_BYTES = REST ? SIZE << REST : 0;
constexpr int WARPS = THREADS / 32;
constexpr int TILE = 128;                                           // rows of a warp
constexpr int TILES = WARPS / PARTS;                                // of a block at a time
constexpr bool SCALES_AHEAD = BITS * sizeof(ALPHA_TYPE) <= 16;      // loaded a group ahead where registers allow it
static_assert(TABLE_BYTES <= 128, "a table lies in different banks");

// ---- tables ----

// The bits of a word from `first` on, as the byte of an entry in the table that begins at byte `start`: a shift, and
// one instruction for `and` and `or`, as tables begin at multiples of their size.
template <int BITS_OF_FIELD>
__device__ __forceinline__ unsigned entry_byte(word_t word, int first, unsigned start) {
    constexpr int LOG = SIZE == 4 ? 2 : 1;
    constexpr word_t MASK = ((1u << BITS_OF_FIELD) - 1) << LOG;
    return ((first < LOG ? word << (LOG - first) : word >> (first - LOG)) & MASK) | start;
}

__device__ __forceinline__ float entry(const unsigned char *lut, unsigned byte) {
    return to_float(*reinterpret_cast<const TABLE_TYPE *>(lut + byte));
}

// start: of the word's first table, and of the table of its last field, as bytes of lut.
__device__ __forceinline__ float look_up(const unsigned char *lut, word_t word, unsigned start, unsigned rest) {
    float sum = 0.0f;
#pragma unroll
    for (int f = 0; f < FIELDS; f++) sum += entry(lut + f * TABLE_BYTES, entry_byte<MU>(word, f * MU, start));
#if 32 % MU
    sum += entry(lut, entry_byte<REST>(word, FIELDS * MU, rest));
#endif
    return sum;
}

// x of the slice as float with zeros behind its end, for whole words; what tables are divided by, a power of two. Its
// barrier is the one between writing and reading `values`.
__device__ __forceinline__ float load_x(float *values, const X_TYPE *x, int first, int last, int words) {
    __shared__ float largest_of_warp[WARPS];
    float largest = 0.0f;
    for (int k = threadIdx.x; k < 32 * words; k += THREADS) {
        values[k] = first + k < last ? to_float(x[first + k]) : 0.0f;
        largest = fmaxf(largest, fabsf(values[k]));
    }
    largest = warp_max(largest);
    if (threadIdx.x % 32 == 0) largest_of_warp[threadIdx.x / 32] = largest;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) largest = fmaxf(largest, largest_of_warp[w]);
    if (sizeof(TABLE_TYPE) == 4 && !Wide<X_TYPE>::value) return 1.0f;
    return unit_below(largest, 12);  // 6 of them: < 2^15
}

// A table of BITS_OF_FIELD columns, by a warp: lane i has the entries i and i + 32. The sum of the columns in lane 31,
// all of whose signs are positive.
template <int BITS_OF_FIELD>
__device__ __forceinline__ float fill(unsigned char *table, const float *x, const float (&signs)[5], int lane) {
    TABLE_TYPE *const entries = reinterpret_cast<TABLE_TYPE *>(table);
    float sum = 0.0f;
#pragma unroll
    for (int t = 0; t < (BITS_OF_FIELD < 5 ? BITS_OF_FIELD : 5); t++) sum = fmaf(signs[t], x[t], sum);
    const float sixth = BITS_OF_FIELD == 6 ? x[BITS_OF_FIELD - 1] : 0.0f;
    if (lane < 1 << BITS_OF_FIELD) entries[lane] = round_to(sum - sixth, TABLE_TYPE());
    if (BITS_OF_FIELD == 6) entries[lane + 32] = round_to(sum + sixth, TABLE_TYPE());
    return sum + sixth;
}

// The tables of a word, by a warp; word_sum: of x, for the offset; all of x divided by unit.
__device__ __forceinline__ void fill(unsigned char *tables, unsigned char *rest, float *word_sum, const float *values,
                                     float unit, int lane) {
    const float per_unit = 1.0f / unit;
    float x[32], signs[5], total = 0.0f;
#pragma unroll
    for (int t = 0; t < 32; t += 4) {
        const float4 four = load4(values + t);
        x[t] = four.x * per_unit, x[t + 1] = four.y * per_unit;
        x[t + 2] = four.z * per_unit, x[t + 3] = four.w * per_unit;
    }
#pragma unroll
    for (int t = 0; t < 5; t++) signs[t] = lane >> t & 1 ? 1.0f : -1.0f;
#pragma unroll
    for (int f = 0; f < FIELDS; f++) total += fill<MU>(tables + f * TABLE_BYTES, x + f * MU, signs, lane);
#if 32 % MU
    total += fill<REST>(rest, x + FIELDS * MU, signs, lane);
#endif
    if (lane == 31) *word_sum = total;
}

// ---- products ----

__device__ __forceinline__ void add_scaled(float4 &sum, float4 scale, float4 value) {
    sum.x = fmaf(scale.x, value.x, sum.x);
    sum.y = fmaf(scale.y, value.y, sum.y);
    sum.z = fmaf(scale.z, value.z, sum.z);
    sum.w = fmaf(scale.w, value.w, sum.w);
}

// All planes of the word at `at`, of four rows; moves to the next word.
__device__ __forceinline__ void load_word(uint4 (&planes)[BITS], const uint4 *&at, int stride) {
#pragma unroll
    for (int b = 0; b < BITS; b++, at += stride / 4) planes[b] = load_stream(at);
}

// alpha of a group, of four rows and all planes, as it is loaded.
struct Scales {
    Four<ALPHA_TYPE> planes[BITS];

    __device__ __forceinline__ Scales(const ALPHA_TYPE *alpha, int group, int stride) {
#pragma unroll
        for (int b = 0; b < BITS; b++) planes[b] = load_four(alpha + (static_cast<size_t>(group) * BITS + b) * stride);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
lut_gemv_small_tables(const word_t *planes,         // [ceil(K / 32)][BITS][stride]
                      const ALPHA_TYPE *alpha,      // [G][BITS][stride]
                      const OFFSET_TYPE *offset,    // [G][stride], if HAS_OFFSET
                      const X_TYPE *x,              // [M][K]
                      X_TYPE *y,                    // [M][N]
                      float *partial,               // [M][slices][stride], if there are several slices
                      unsigned *arrived,            // [M][blocks of rows], zeros
                      int rows,                     // N
                      int columns,                  // K
                      int stride,                   // N rounded up, rows between two planes
                      int group_words,              // words of a group
                      int words,                    // of a slice
                      int tiles)                    // of 128 rows, of a block
{
    DYNAMIC_SHARED(unsigned char, lut);                         // [words][FIELDS] tables
    unsigned char *const rests = lut + words * FIELDS * TABLE_BYTES;                    // [words] tables of last fields
    float *const values = reinterpret_cast<float *>(rests + (words * REST_BYTES + 15) / 16 * 16);  // [32 * words] x
    float *const word_sums = values + 32 * words;               // [words]
    __shared__ float4 parts[2][WARPS][32];                      // sums of every other pass
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slices = gridDim.y;
    const int first = blockIdx.y * words, all_words = (columns + 31) / 32, last = min(first + words, all_words);
    x += static_cast<size_t>(blockIdx.z) * columns;
    y += static_cast<size_t>(blockIdx.z) * rows;
    partial += static_cast<size_t>(blockIdx.z) * slices * stride;

    const float unit = load_x(values, x, first * 32, columns, words);
    for (int w = warp; w < words; w += WARPS)
        fill(lut + w * FIELDS * TABLE_BYTES, rests + w * REST_BYTES, word_sums + w, values + 32 * w, unit, lane);
    __syncthreads();

    const int of_part = (words + PARTS - 1) / PARTS, from = first + warp % PARTS * of_part, to = min(from + of_part, last);
    const int start = blockIdx.x * tiles * TILE, end = min(start + tiles * TILE, stride);
    const uint4 *const part = reinterpret_cast<const uint4 *>(planes + static_cast<size_t>(from) * BITS * stride);
    // Lanes behind the last row do what those of the last rows do, and nobody looks at it.
    int n = min(start + warp / PARTS * TILE + 4 * lane, end - 4);
    const uint4 *at = part + n / 4;
    uint4 ahead[AHEAD][BITS];
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        if (from + i < to) load_word(ahead[i], at, stride);

    for (int pass = 0, row = start; row < end; pass ^= 1, row += TILES * TILE) {
        int group = from / group_words, left = (group + 1) * group_words - from;  // words of the group
        Scales scales(alpha + n, min(group, (all_words - 1) / group_words), stride);
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f), shift = sum, sums[BITS];
        float total = 0.0f;
#pragma unroll
        for (int b = 0; b < BITS; b++) sums[b] = sum;
        for (int word = from; word < to; word += AHEAD)
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const int w = word + i;
                if (w >= to) break;
                const unsigned table = (w - first) * FIELDS * TABLE_BYTES;
                const unsigned rest = words * FIELDS * TABLE_BYTES + (w - first) * REST_BYTES;
#pragma unroll
                for (int b = 0; b < BITS; b++) {
                    sums[b].x += look_up(lut, ahead[i][b].x, table, rest);
                    sums[b].y += look_up(lut, ahead[i][b].y, table, rest);
                    sums[b].z += look_up(lut, ahead[i][b].z, table, rest);
                    sums[b].w += look_up(lut, ahead[i][b].w, table, rest);
                }
                if (w + AHEAD < to) load_word(ahead[i], at, stride);
                total += word_sums[w - first];
                if (--left > 0 && w + 1 < to) continue;
                if (!SCALES_AHEAD) scales = Scales(alpha + n, group, stride);
#pragma unroll
                for (int b = 0; b < BITS; b++) {
                    add_scaled(sum, widen(scales.planes[b]), sums[b]);
                    sums[b] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                }
#if HAS_OFFSET
                add_scaled(shift, load4(offset + static_cast<size_t>(group) * stride + n), make_float4(total, total, total, total));
#endif
                total = 0.0f;
                left = group_words;
                group++;
                if (SCALES_AHEAD && w + 1 < to) scales = Scales(alpha + n, group, stride);
            }
        shift = make_float4((shift.x + sum.x) * unit, (shift.y + sum.y) * unit, (shift.z + sum.z) * unit, (shift.w + sum.w) * unit);
        n = min(n + TILES * TILE, end - 4);
        at = part + n / 4;
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            if (from + i < to && row + TILES * TILE < end) load_word(ahead[i], at, stride);
        parts[pass][warp][lane] = shift;
        __syncthreads();  // the sums of the pass after the next are written behind the next one's barrier
        for (int i = threadIdx.x; i < TILES * TILE && row + i < end; i += THREADS) {
            const float *sums_of_parts = reinterpret_cast<const float *>(parts[pass][i / TILE * PARTS]) + i % TILE;
            float all = 0.0f;
#pragma unroll
            for (int p = 0; p < PARTS; p++) all += sums_of_parts[p * TILE];
            if (slices > 1)
                __stcg(partial + static_cast<size_t>(blockIdx.y) * stride + row + i, all);
            else if (row + i < rows)
                y[row + i] = round_to(all, X_TYPE());
        }
    }

    if (slices == 1 || !last_to_arrive(arrived + blockIdx.z * gridDim.x + blockIdx.x, slices)) return;
    add_slices(y, partial, slices, stride, start, min(end, rows));
}
