// paper (r0): LUT-GEMM's and nuQmm's kernel as the papers describe it: tables in shared memory, atomicAdd into y.
//
//     y[m, n] += sum_b alpha[g, b, n] sum_j lut_j[bits of plane b] + z[g, n] sum_j lut_j[all ones]      LUT-GEMM Eq. 2
//     lut_j[i] = sum_t (bit t of i ? x : -x)[first + j * MU + t]
//
// A block has LUTS tables, so TILE = LUTS * MU columns (t_w) of one group, and ROWS rows (t_h); its threads share the
// tables and take two rows at a time. grid = (ceil(N / ROWS), groups * tiles in a group, M), THREADS threads, y zeroed.
// LUT-GEMM v3 section 3.3, nuQmm section IV; all arithmetic is in X_TYPE, as theirs. Columns beyond the group or K are
// zeros in the tables, so that whatever bits stand there add nothing.
//
// Parameters: MU 1-8 columns a table · LUTS (l) tables a block · ROWS (t_h), even · THREADS · WHOLE_WORDS 1: TILE and
// groups are whole words and MU divides 32 · X_TYPE, ALPHA_TYPE, OFFSET_TYPE float or __half · HAS_OFFSET 0, 1

#include "../common.cuh"

constexpr int TILE = LUTS * MU;
constexpr int ENTRIES = 1 << MU;
constexpr word_t MASK = ENTRIES - 1;

__device__ __forceinline__ float plus(float a, float b) { return a + b; }
__device__ __forceinline__ __half plus(__half a, __half b) { return __hadd(a, b); }
__device__ __forceinline__ float times(float a, float b) { return a * b; }
__device__ __forceinline__ __half times(__half a, __half b) { return __hmul(a, b); }

__device__ __forceinline__ void add_pair(float *y, float a, float b) {
    atomicAdd(y, a);
    atomicAdd(y + 1, b);
}
__device__ __forceinline__ void add_pair(__half *y, __half a, __half b) {
    atomicAdd(reinterpret_cast<__half2 *>(y), __halves2half2(a, b));
}

// Threads that fill one table: a power of two, so that each doubles the entries it has itself written.
__device__ constexpr int fillers() {
    int count = 1;
    while (2 * count <= ENTRIES && 2 * count * LUTS <= THREADS) count *= 2;
    return count;
}

// The first entries by their definition, the rest by lut[i + 2^t] = lut[i] + 2 x_t.
__device__ __forceinline__ void fill(X_TYPE (*lut)[ENTRIES], const X_TYPE *x, int first, int last) {
    constexpr int COUNT = fillers(), AT_ONCE = THREADS / COUNT;
    const int i = threadIdx.x % COUNT;
    for (int j = threadIdx.x / COUNT; j < LUTS; j += AT_ONCE) {
        X_TYPE values[MU];
        X_TYPE sum = round_to(0.0f, X_TYPE());
#pragma unroll
        for (int t = 0; t < MU; t++) {
            const int k = first + j * MU + t;
            values[t] = k < last ? x[k] : round_to(0.0f, X_TYPE());
            sum = plus(sum, times(round_to(i >> t & 1 ? 1.0f : -1.0f, X_TYPE()), values[t]));
        }
        lut[j][i] = sum;
#pragma unroll
        for (int t = 0; t < MU; t++) {
            if ((1 << t) < COUNT) continue;
            const X_TYPE twice = plus(values[t], values[t]);
            for (int e = i; e < 1 << t; e += COUNT) lut[j][e + (1 << t)] = plus(lut[j][e], twice);
        }
    }
}

// The lookups of one row and plane. words: the plane's word of column 0 of this row; a word further is `stride` on.
__device__ __forceinline__ X_TYPE look_up(X_TYPE (*lut)[ENTRIES], const word_t *words, size_t stride, int first,
                                          int last_word) {
    X_TYPE sum = round_to(0.0f, X_TYPE());
#if WHOLE_WORDS
#pragma unroll
    for (int w = 0; w < TILE / 32; w++) {
        // A ragged last tile may have fewer words: its tables of these columns hold zeros.
        const word_t word = first / 32 + w <= last_word ? words[(first / 32 + w) * stride] : 0;
#pragma unroll
        for (int s = 0; s < 32 / MU; s++) sum = plus(sum, lut[w * (32 / MU) + s][word >> s * MU & MASK]);
    }
#else
#pragma unroll 4
    for (int j = 0; j < LUTS; j++) {
        const int k = first + j * MU, low = min(k / 32, last_word), high = min((k + MU - 1) / 32, last_word);
        const word_t bits = __funnelshift_r(words[low * stride], words[high * stride], k % 32);
        sum = plus(sum, lut[j][bits & MASK]);
    }
#endif
    return sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
lut_gemv_paper(const word_t *planes,         // [ceil(K / 32)][q][stride]
               const ALPHA_TYPE *alpha,      // [G][q][stride]
               const OFFSET_TYPE *offset,    // [G][stride], if HAS_OFFSET
               const X_TYPE *x,              // [M][K]
               X_TYPE *y,                    // [M][N], added to
               int rows,                     // N
               int columns,                  // K
               int stride,                   // N rounded up, rows between two planes
               int q,                        // planes
               int group)                    // g, columns of a group
{
    __shared__ X_TYPE lut[LUTS][ENTRIES];
    const int tiles = (group + TILE - 1) / TILE;
    const int g = blockIdx.y / tiles;
    const int first = g * group + blockIdx.y % tiles * TILE;
    const int last = min(min(first + TILE, (g + 1) * group), columns);
    if (first >= last) return;  // the last group is shorter

    fill(lut, x + static_cast<size_t>(blockIdx.z) * columns, first, last);
    __syncthreads();

    const int last_word = (last - 1) / 32;
    const size_t word_stride = static_cast<size_t>(q) * stride;
    y += static_cast<size_t>(blockIdx.z) * rows;
    const int end = min(rows, static_cast<int>(blockIdx.x + 1) * ROWS);
    for (int n = blockIdx.x * ROWS + 2 * threadIdx.x; n < end; n += 2 * THREADS) {
        X_TYPE even = round_to(0.0f, X_TYPE()), odd = even;  // stride is even: row n + 1 may be read
#if HAS_OFFSET
        X_TYPE sum = even;
#pragma unroll 4
        for (int j = 0; j < LUTS; j++) sum = plus(sum, lut[j][ENTRIES - 1]);
        const float2 z = load2(offset + static_cast<size_t>(g) * stride + n);
        even = times(round_to(z.x, X_TYPE()), sum);
        odd = times(round_to(z.y, X_TYPE()), sum);
#endif
        for (int b = 0; b < q; b++) {
            const float2 a = load2(alpha + (static_cast<size_t>(g) * q + b) * stride + n);
            const word_t *words = planes + static_cast<size_t>(b) * stride + n;
            even = plus(even, times(round_to(a.x, X_TYPE()), look_up(lut, words, word_stride, first, last_word)));
            odd = plus(odd, times(round_to(a.y, X_TYPE()), look_up(lut, words + 1, word_stride, first, last_word)));
        }
        if (n + 1 < rows && rows % 2 == 0)
            add_pair(y + n, even, odd);
        else {  // an odd N: rows of y do not begin at even addresses
            atomicAdd(y + n, even);
            if (n + 1 < rows) atomicAdd(y + n + 1, odd);
        }
    }
}
