// lane_tables (r3): no bank conflicts. Lane l of every warp has columns 32 l .. 32 l + 31 of a slice, and their four
// tables of 8 columns lie in bank l of shared memory, so that 32 lanes look up 32 banks, whatever the weights are.
//
//     y[m, n] = sum over slices and lanes of ( sum_b alpha[g, b, n] sum_{j < 4} lut_j[byte j of a word] + z[g, n] sum_k x[m, k] )
//
// Entry i of table j of lane l is at byte  j / 2 * 65536 + i * 256 + j % 2 * 128 + l * 4  (float; half: tables 2 and 3 in the
// high halves of 0 and 1). i * 256 + l * 4 is one byte of the word beside one byte of the lane, which __byte_perm puts
// together in one instruction; the rest is a constant of the load. An entry can be two halves, of two rows of x.
//
// A block has the tables of a slice for `tiles` times ROWS rows. A warp takes a tile, item after item of a stream that is
// loaded DEPTH items ahead, and adds its lanes at the end. With several slices, sums go to `partial`, and the last block
// of the rows to arrive adds them in the order of slices. grid = (ceil(S / ROWS / tiles), slices,
// M or pairs of M), THREADS threads.
//
// Parameters: BITS (q) · ROWS 8, 16 or 32 · THREADS 256, 512 or 1024 · BLOCKS that shall share an SM · DEPTH divides
// ROWS / 4 * BITS · TABLE_TYPE float, __half or, for two rows of x, __half2 · X_TYPE float, __half or bfloat_t ·
// ALPHA_TYPE, OFFSET_TYPE float or __half · HAS_OFFSET 0, 1. Groups are whole words, or one group is all of K.

#include "../common.cuh"

constexpr int TABLES = 4;                   // of a word, 8 columns each
constexpr int QUADS = ROWS / 4;             // four rows of a plane are an item
constexpr int ITEMS = QUADS * BITS;         // of a tile
constexpr int WARPS = THREADS / 32;
constexpr int LOW = THREADS == 1024 ? 3 : THREADS == 512 ? 4 : 5;  // bits of an index that one thread runs through

template <class T> struct Entry { typedef T Value; };        // what is stored for a row of x
template <> struct Entry<__half2> { typedef __half Value; };
typedef Entry<TABLE_TYPE>::Value Value;
constexpr int X_ROWS = sizeof(TABLE_TYPE) / sizeof(Value);
static_assert(WARPS << LOW == 256, "the warps fill a table together");
static_assert(ITEMS % DEPTH == 0, "an item of the next tile goes where the same item of this tile was");

// ---- tables ----

// The byte of lut where table j begins.
__device__ constexpr int table_start(int j) {
    return j % 2 * 128 + j / 2 * (sizeof(TABLE_TYPE) == 4 ? 256 * 256 : 2);
}

// index * 256 + lane4, for the index in byte j of the word; lane4 is lane * 4.
__device__ __forceinline__ unsigned entry_byte(word_t word, int j, unsigned lane4) {
    return __byte_perm(word, lane4, 0x5504u | static_cast<unsigned>(j) << 4);
}

struct Lookup { float of[X_ROWS]; };

__device__ __forceinline__ Lookup entry(const unsigned char *lut, word_t word, int j, unsigned lane4) {
    const TABLE_TYPE found = *reinterpret_cast<const TABLE_TYPE *>(lut + table_start(j) + entry_byte(word, j, lane4));
    Lookup out;
#pragma unroll
    for (int r = 0; r < X_ROWS; r++) out.of[r] = to_float(reinterpret_cast<const Value *>(&found)[r]);
    return out;
}

// x of the slice as float with zeros behind its end, column k of lane l at values[k * 33 + l]; what tables are divided by.
__device__ __forceinline__ float load_x(float *values, float *largest_of_warp, const X_TYPE *x, int first, int last) {
    float largest = 0.0f;
    for (int k = threadIdx.x; k < 1024; k += THREADS) {
        const float value = first + k < last ? to_float(x[first + k]) : 0.0f;
        values[k % 32 * 33 + k / 32] = value;
        largest = fmaxf(largest, fabsf(value));
    }
    largest = warp_max(largest);
    if (threadIdx.x % 32 == 0) largest_of_warp[threadIdx.x / 32] = largest;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) largest = fmaxf(largest, largest_of_warp[w]);
    if (sizeof(Value) == 4 && !Wide<X_TYPE>::value) return 1.0f;
    return unit_below(largest, 12);  // 8 of them: < 2^15
}

// The tables of a lane, the entries whose high bits are the number of the warp: sums of +x or -x, all of x divided by
// unit. Returns the sum of the lane's 32 columns.
__device__ __forceinline__ float fill(unsigned char *lut, const float *values, float unit, int warp, int lane) {
    const float per_unit = 1.0f / unit;
    float total = 0.0f;
#pragma unroll
    for (int j = 0; j < TABLES; j++) {
        float part[8], sums[1 << LOW];
#pragma unroll
        for (int t = 0; t < 8; t++) {
            part[t] = values[(j * 8 + t) * 33 + lane] * per_unit;
            total += part[t];
        }
        sums[0] = 0.0f;
#pragma unroll
        for (int t = LOW; t < 8; t++) sums[0] += warp >> (t - LOW) & 1 ? part[t] : -part[t];
#pragma unroll
        for (int t = 0; t < LOW; t++)
#pragma unroll
            for (int i = 0; i < 1 << LOW; i++) {
                if (i >> t) continue;
                sums[i | 1 << t] = sums[i] + part[t];
                sums[i] -= part[t];
            }
#pragma unroll
        for (int i = 0; i < 1 << LOW; i++) {
            unsigned char *at = lut + table_start(j) + entry_byte(warp << LOW | i, 0, 4 * lane);
            *reinterpret_cast<Value *>(at) = round_to(sums[i], Value());
        }
    }
    return total;
}

// ---- the stream ----

struct Item { uint4 words; Four<ALPHA_TYPE> alpha; };  // four rows of a plane

// Where a lane finds its next item of the stream, and how far items lie apart.
struct Stream {
    const uint4 *words;
    const ALPHA_TYPE *alpha;
    int words_apart, alpha_apart;

    __device__ __forceinline__ Item load() {
        const Item item = {load_stream(words), load_four(alpha)};
        skip(1);
        return item;
    }
    __device__ __forceinline__ void skip(int items) {
        words += static_cast<ptrdiff_t>(items) * words_apart;
        alpha += static_cast<ptrdiff_t>(items) * alpha_apart;
    }
};

__device__ __forceinline__ Lookup look_up(const unsigned char *lut, word_t word, unsigned lane4) {
    Lookup found[TABLES];
#pragma unroll
    for (int j = 0; j < TABLES; j++) found[j] = entry(lut, word, j, lane4);
#pragma unroll
    for (int r = 0; r < X_ROWS; r++)
        found[0].of[r] = (found[0].of[r] + found[1].of[r]) + (found[2].of[r] + found[3].of[r]);
    return found[0];
}

__device__ __forceinline__ void add_scaled(float *sums, float4 scale, const float (&values)[4]) {
    sums[0] = fmaf(scale.x, values[0], sums[0]);
    sums[1] = fmaf(scale.y, values[1], sums[1]);
    sums[2] = fmaf(scale.z, values[2], sums[2]);
    sums[3] = fmaf(scale.w, values[3], sums[3]);
}

// The sum over all lanes of sums[lane % ROWS], in every lane: each step halves the rows that a lane carries.
__device__ __forceinline__ float transpose_sum(float (&sums)[ROWS], int lane) {
#pragma unroll
    for (int half = ROWS / 2; half > 0; half /= 2)
#pragma unroll
        for (int i = 0; i < ROWS / 2; i++) {
            if (i >= half) continue;
            const bool upper = lane & half;
            const float give = upper ? sums[i] : sums[i + half], keep = upper ? sums[i + half] : sums[i];
            sums[i] = keep + __shfl_xor_sync(0xffffffffu, give, half);
        }
#pragma unroll
    for (int lanes = ROWS; lanes < 32; lanes *= 2) sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], lanes);
    return sums[0];
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
lut_gemv_lane_tables(const uint4 *planes,          // [slices][S / 4][BITS][words] of four rows
                     const ALPHA_TYPE *alpha,      // [slices][S / 4][BITS][scales][4]
                     const OFFSET_TYPE *offset,    // [slices][S / 4][scales][4], if HAS_OFFSET
                     const X_TYPE *x,              // [M][K]
                     X_TYPE *y,                    // [M][N]
                     float *partial,               // [M][slices][S], if there are several slices
                     unsigned *arrived,            // [M][blocks of rows], zeros
                     int m,                        // M
                     int rows,                     // N
                     int columns,                  // K
                     int stride,                   // S: N rounded up to 32
                     int group,                    // g, columns of a group
                     int words,                    // of a slice, at most 32
                     int scales,                   // groups stored for a slice
                     int tiles)                    // of a block
{
    DYNAMIC_SHARED(unsigned char, lut);   // [TABLE_BYTES * TABLES]
    __shared__ float values[32 * 33], largest_of_warp[X_ROWS][WARPS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, slices = gridDim.y, slice = blockIdx.y;
    const int first = slice * words * 32, last = min(first + words * 32, columns);
    const int end = min(static_cast<int>(blockIdx.x + 1) * tiles, stride / ROWS);
    const int x_row = blockIdx.z * X_ROWS, x_rows = min(X_ROWS, m - x_row);
    x += static_cast<size_t>(x_row) * columns;
    y += static_cast<size_t>(x_row) * rows;
    partial += static_cast<size_t>(x_row) * slices * stride;

    // Lanes behind the last word read its words and scales, and look them up in tables of zeros.
    const int mine = min(lane, words - 1);
    const int scale = min(first + mine * 32, columns - 1) / group - first / group;
    int tile = blockIdx.x * tiles + warp;
    const size_t quad = (static_cast<size_t>(slice) * (stride / ROWS) + tile) * QUADS;
    Stream stream = {planes + quad * BITS * words + mine, alpha + (quad * BITS * scales + scale) * 4, words, scales * 4};
#if HAS_OFFSET
    offset += (quad * scales + scale) * 4;
#endif
    Item ahead[DEPTH];
    if (tile < end) {
#pragma unroll
        for (int i = 0; i < DEPTH; i++) ahead[i] = stream.load();
    }

    float unit[X_ROWS];
    [[maybe_unused]] float total[X_ROWS];
#pragma unroll
    for (int r = 0; r < X_ROWS; r++) {  // of a pair that is one row, this row twice
        unit[r] = load_x(values, largest_of_warp[r], x + static_cast<size_t>(min(r, x_rows - 1)) * columns, first, last);
        total[r] = fill(lut + r * sizeof(Value), values, unit[r], warp, lane);
        __syncthreads();
    }

    for (; tile < end; tile += WARPS) {
        const bool more = tile + WARPS < end;
        float sums[X_ROWS][ROWS] = {};
#if HAS_OFFSET
        Four<OFFSET_TYPE> shifts[QUADS];
#pragma unroll
        for (int i = 0; i < QUADS; i++) shifts[i] = load_four(offset + i * scales * 4);
        offset += WARPS * QUADS * scales * 4;
#endif
#pragma unroll
        for (int i = 0; i < ITEMS; i++) {
            Item &item = ahead[i % DEPTH];
            const Lookup lookups[4] = {look_up(lut, item.words.x, 4 * lane), look_up(lut, item.words.y, 4 * lane),
                                       look_up(lut, item.words.z, 4 * lane), look_up(lut, item.words.w, 4 * lane)};
            const float4 by = widen(item.alpha);
#pragma unroll
            for (int r = 0; r < X_ROWS; r++) {
                const float values[4] = {lookups[0].of[r], lookups[1].of[r], lookups[2].of[r], lookups[3].of[r]};
                add_scaled(sums[r] + i / BITS * 4, by, values);
            }
            if (i + DEPTH == ITEMS) stream.skip((WARPS - 1) * ITEMS);
            if (i + DEPTH < ITEMS || more) item = stream.load();
        }
#if HAS_OFFSET
#pragma unroll
        for (int r = 0; r < X_ROWS; r++) {
            const float totals[4] = {total[r], total[r], total[r], total[r]};
#pragma unroll
            for (int i = 0; i < QUADS; i++) add_scaled(sums[r] + i * 4, widen(shifts[i]), totals);
        }
#endif
        const int n = tile * ROWS + lane;
#pragma unroll
        for (int r = 0; r < X_ROWS; r++) {
            const float sum = transpose_sum(sums[r], lane) * unit[r];
            if (lane >= ROWS || r >= x_rows) continue;
            if (slices > 1)
                __stcg(partial + (static_cast<size_t>(r) * slices + slice) * stride + n, sum);
            else if (n < rows)
                y[static_cast<size_t>(r) * rows + n] = round_to(sum, X_TYPE());
        }
    }

    if (slices == 1 || !last_to_arrive(arrived + blockIdx.z * gridDim.x + blockIdx.x, slices)) return;
    for (int r = 0; r < x_rows; r++) {
        add_slices(y, partial, slices, stride, blockIdx.x * tiles * ROWS, min(end * ROWS, rows));
        y += rows;
        partial += static_cast<size_t>(slices) * stride;
    }
}
