// float_sums (r1): paper.cu with sums in float32, loads of 16 bytes, columns in slices, no atomicAdd: every y the same.
//
//     y[m, n] = sum over slices of ( sum_b alpha[g, b, n] sum_j lut_j[bits of plane b] + z[g, n] sum_k x[m, k] )
//
// A block has the tables of SLICE columns, for ROWS rows; a thread takes four neighbouring rows at a time, one uint4 of
// words a plane. x is divided by a power of two (`unit`) that brings the largest entry near 2^15, so that half tables neither
// overflow nor lose small activations, and float tables do not overflow where x has the range of a float. With several slices, sums go to `partial`, and the last block of the rows
// to arrive adds them in the order of slices. grid = (ceil(S / ROWS), slices, M), THREADS threads.
//
// Parameters: BITS (q) · MU 1, 2, 4 or 8 · SLICE whole words · ROWS multiple of 4 · THREADS · BLOCKS that shall share an
// SM · X_TYPE float, __half or bfloat_t · TABLE_TYPE, ALPHA_TYPE, OFFSET_TYPE float or __half · HAS_OFFSET 0, 1. Groups are
// whole words, or one group is all of K.

#include "../common.cuh"

constexpr int ENTRIES = 1 << MU;
constexpr int LOOKUPS = 32 / MU;           // of a word
constexpr int TABLES = SLICE / MU;
constexpr int LOW = MU < 4 ? MU : 4;       // bits of an index that one thread runs through
constexpr int AHEAD = 4;                   // words of a plane that are loaded before they are looked up
constexpr int PLANES_AHEAD = BITS < 4 ? BITS : 2;  // planes whose code stands in a row, so that loads can begin early
constexpr word_t MASK = ENTRIES - 1;

// x of the slice as float with zeros behind its end, and what tables are divided by: a power of two. Its barrier is the
// one between writing and reading `values`.
__device__ __forceinline__ float load_x(float *values, const X_TYPE *x, int first, int last) {
    __shared__ float largest_of_warp[THREADS / 32];
    float largest = 0.0f;
    for (int k = threadIdx.x; k < SLICE; k += THREADS) {
        values[k] = first + k < last ? to_float(x[first + k]) : 0.0f;
        largest = fmaxf(largest, fabsf(values[k]));
    }
    largest = warp_max(largest);
    if (threadIdx.x % 32 == 0) largest_of_warp[threadIdx.x / 32] = largest;
    __syncthreads();
    for (int w = 0; w < THREADS / 32; w++) largest = fmaxf(largest, largest_of_warp[w]);
    if (sizeof(TABLE_TYPE) == 4 && !Wide<X_TYPE>::value) return 1.0f;
    return unit_below(largest, 12);  // 8 of them: < 2^15
}

// lut[table][index] = sum of +x or -x; word_sums: of x, for the offset; all of x divided by unit.
__device__ __forceinline__ void fill(TABLE_TYPE *lut, float *word_sums, const float *values, float unit) {
    const float per_unit = 1.0f / unit;
    for (int item = threadIdx.x; item < TABLES << (MU - LOW); item += THREADS) {
        const int table = item >> (MU - LOW), high = item & ((1 << (MU - LOW)) - 1);
        float part[MU], start = 0.0f;
#pragma unroll
        for (int t = 0; t < MU; t++) part[t] = values[table * MU + t] * per_unit;
#pragma unroll
        for (int t = LOW; t < MU; t++) start += high >> (t - LOW) & 1 ? part[t] : -part[t];
        TABLE_TYPE *entries = lut + table * ENTRIES + (high << LOW);
#pragma unroll
        for (int i = 0; i < 1 << LOW; i++) {
            float sum = start;
#pragma unroll
            for (int t = 0; t < LOW; t++) sum += i >> t & 1 ? part[t] : -part[t];
            entries[i] = round_to(sum, TABLE_TYPE());
        }
    }
    for (int w = threadIdx.x; w < SLICE / 32; w += THREADS) {
        float sum = 0.0f;
        for (int i = 0; i < 32; i++) sum += values[w * 32 + (i + w) % 32] * per_unit;  // turned: every lane its own bank
        word_sums[w] = sum;
    }
}

// The index is shifted to where it counts bytes at once: a shift and an and, no multiplication.
__device__ __forceinline__ float look_up(const TABLE_TYPE *lut, word_t word) {
    constexpr int LOG = sizeof(TABLE_TYPE) == 4 ? 2 : 1;
    float sum = 0.0f;
#pragma unroll
    for (int s = 0; s < LOOKUPS; s++) {
        const word_t bytes = (s * MU < LOG ? word << (LOG - s * MU) : word >> (s * MU - LOG)) & (MASK << LOG);
        const unsigned char *table = reinterpret_cast<const unsigned char *>(lut + s * ENTRIES);
        sum += to_float(*reinterpret_cast<const TABLE_TYPE *>(table + bytes));
    }
    return sum;
}

// Adds the lookups of COUNT words of a plane, of four rows each.
template <int COUNT>
__device__ __forceinline__ void add_words(float4 &sum, const TABLE_TYPE *lut, const word_t *words, size_t stride) {
    uint4 loaded[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) loaded[i] = load_stream(reinterpret_cast<const uint4 *>(words + i * stride));
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const TABLE_TYPE *at = lut + i * LOOKUPS * ENTRIES;
        sum.x += look_up(at, loaded[i].x);
        sum.y += look_up(at, loaded[i].y);
        sum.z += look_up(at, loaded[i].z);
        sum.w += look_up(at, loaded[i].w);
    }
}

__device__ __forceinline__ void add_scaled(float4 &sum, float4 scale, float4 value) {
    sum.x = fmaf(scale.x, value.x, sum.x);
    sum.y = fmaf(scale.y, value.y, sum.y);
    sum.z = fmaf(scale.z, value.z, sum.z);
    sum.w = fmaf(scale.w, value.w, sum.w);
}

__device__ __forceinline__ void store(X_TYPE *y, float4 sum, int n, int rows) {
    const float values[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (n + i < rows) y[n + i] = round_to(values[i], X_TYPE());
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
lut_gemv_float_sums(const word_t *planes,         // [ceil(K / 32)][BITS][stride]
                    const ALPHA_TYPE *alpha,      // [G][BITS][stride]
                    const OFFSET_TYPE *offset,    // [G][stride], if HAS_OFFSET
                    const X_TYPE *x,              // [M][K]
                    X_TYPE *y,                    // [M][N]
                    float *partial,               // [M][slices][stride], if there are several slices
                    unsigned *arrived,            // [M][blocks of rows], zeros
                    int rows,                     // N
                    int columns,                  // K
                    int stride,                   // N rounded up, rows between two planes
                    int group)                    // g, columns of a group
{
    DYNAMIC_SHARED(TABLE_TYPE, lut);      // [TABLES][ENTRIES]
    __shared__ float values[SLICE], word_sums[SLICE / 32];
    const int slices = gridDim.y, first = blockIdx.y * SLICE, last = min(first + SLICE, columns);
    x += static_cast<size_t>(blockIdx.z) * columns;
    y += static_cast<size_t>(blockIdx.z) * rows;
    partial += static_cast<size_t>(blockIdx.z) * slices * stride;

    const float unit = load_x(values, x, first, last);
    fill(lut, word_sums, values, unit);
    __syncthreads();

    const size_t word_stride = static_cast<size_t>(BITS) * stride;
    const int start = blockIdx.x * ROWS + 4 * threadIdx.x, end = min(stride, static_cast<int>(blockIdx.x + 1) * ROWS);
    for (int n = start; n < end; n += 4 * THREADS) {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f), shift = sum;
        for (int k = first, next; k < last; k = next) {  // the parts of groups that are in this slice
            const int g = k / group;
            next = min(last, (g + 1) * group);
            const int from = k / 32, to = (next + 31) / 32;
#pragma unroll PLANES_AHEAD
            for (int b = 0; b < BITS; b++) {
                const word_t *words = planes + static_cast<size_t>(from) * word_stride + static_cast<size_t>(b) * stride + n;
                const TABLE_TYPE *tables = lut + (from - first / 32) * LOOKUPS * ENTRIES;
                float4 plane = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                int w = from;
                for (; w + AHEAD <= to; w += AHEAD) {
                    add_words<AHEAD>(plane, tables, words, word_stride);
                    words += AHEAD * word_stride;
                    tables += AHEAD * LOOKUPS * ENTRIES;
                }
                for (; w < to; w++) {
                    add_words<1>(plane, tables, words, word_stride);
                    words += word_stride;
                    tables += LOOKUPS * ENTRIES;
                }
                add_scaled(sum, load4(alpha + (static_cast<size_t>(g) * BITS + b) * stride + n), plane);
            }
#if HAS_OFFSET
            float total = 0.0f;
            for (int w = from; w < to; w++) total += word_sums[w - first / 32];
            add_scaled(shift, load4(offset + static_cast<size_t>(g) * stride + n), make_float4(total, total, total, total));
#endif
        }
        shift = make_float4((shift.x + sum.x) * unit, (shift.y + sum.y) * unit, (shift.z + sum.z) * unit, (shift.w + sum.w) * unit);
        if (slices == 1)
            store(y, shift, n, rows);
        else
            __stcg(reinterpret_cast<float4 *>(partial + static_cast<size_t>(blockIdx.y) * stride + n), shift);
    }
    if (slices == 1 || !last_to_arrive(arrived + blockIdx.z * gridDim.x + blockIdx.x, slices)) return;
    for (int n = start; n < end; n += 4 * THREADS) {
        float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (int s = 0; s < slices; s++) {
            const float4 part = __ldcg(reinterpret_cast<const float4 *>(partial + static_cast<size_t>(s) * stride + n));
            add_scaled(sum, make_float4(1.0f, 1.0f, 1.0f, 1.0f), part);
        }
        store(y, sum, n, rows);
    }
}
