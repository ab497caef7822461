// Tiles of 16 rows of 2/4/16-bit weights times x: what blocks.cu and streams.cu share, which differ in what a chunk of a
// tile is and say so by a class Weights.
//
// A warp takes a tile and a chunk of 256 columns at a time: lane 4 r + c has 64 of them, four groups of 16, of rows r and
// r + 8. Their codes are made halves and multiplied by tensor cores, which add the 4 lanes of a row; x stands in B so that
// they do not: column 2 c + s of B has slot s of x in the rows of lane c and zeros in all others, and of the sums a lane
// gets just columns 2 c and 2 c + 1: those of its own groups, whose scales are its own. Codes and half x are exact,
// products and sums float32. Groups of 4 bits with a scale a row ("wide") are summed over all chunks before their scale.
//
// ASYNC 1: a warp has a ring of STAGES chunks to which cp.async copies, scales of a chunk in a batch before its codes; it
// dequantizes the scales while the codes are under way, and multiplies while the next chunks are. ASYNC 0: it copies a
// chunk, waits for all of it, dequantizes scales, multiplies: what asynchrony buys is the difference.
// The warps of a block take the chunks of its slice in turn, of one tile after the other, and add their sums in order.
// Outliers of a row are taken by 2 WARPS threads, which load the first AHEAD of theirs when the tile begins.
// Several slices: their sums go to `partial`, and the last block to arrive adds them in the order of slices.
// grid = (blocks that share the tiles, slices, ceil(M / BATCH)), 32 WARPS threads.
//
// Parameters: ASYNC 0, 1 · STAGES (1 where not ASYNC) of STAGE_BYTES · WARPS a power of two up to 16 · BLOCKS that shall
// share an SM · BATCH 1 .. 4, of float x 1, 2 · AHEAD outliers of a thread, 0: there are none · X_TYPE float, __half or
// bfloat_t.

#include "../common.cuh"
#include "../lut_gemv/half_mma.cuh"
#include "outliers.cuh"
#include "x_groups.cuh"

constexpr int LANES_OF_ROW = 4;  // of a chunk: each has GROUPS groups

// ---- dequantizing ----

// step (code + second) of rows r and r + 8, whose codes are the halves of a word; second in 4 bits, step in the lower 16.
__device__ __forceinline__ float2 second_order(unsigned codes, unsigned second, unsigned step) {
    const unsigned levels = codes + (second & 15u) * 0x00010001u;  // at most 30
    const float2 of = __half22float2(integers_at(levels | MANTISSAS, 0));
    const float by = to_float(__ushort_as_half(static_cast<unsigned short>(step)));
    return make_float2(of.x * by, of.y * by);
}

// Pair j of a word's codes of WIDTH bits as halves: those at bits WIDTH j of its lower and of its upper half.
template <int WIDTH>
__device__ __forceinline__ unsigned two_codes(word_t word, int j) {
    constexpr int HERE = 10 / WIDTH;  // pairs that lie in the mantissas of two halves
    constexpr unsigned MASK = ((1u << WIDTH) - 1u) * 0x00010001u;
    const unsigned base = j % HERE * WIDTH;
    const word_t turned = word >> j / HERE * HERE * WIDTH;
    return as_word(integers_at(and_or(turned, MASK << base, MANTISSAS), base));
}

// 8 columns of x, from values + x + at on, in every pair of slots.
__device__ __forceinline__ void load_columns(uint4 (&columns)[PAIRS], const __half *values, const int (&x)[PAIRS], int at) {
#pragma unroll
    for (int p = 0; p < PAIRS; p++) columns[p] = *reinterpret_cast<const uint4 *>(values + x[p] + at);
}

// Adds the products of A with the first or second half of 8 columns.
__device__ __forceinline__ void multiply_pairs(float4 (&dots)[PAIRS], Operands &of, const uint4 (&columns)[PAIRS], int half) {
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        of.b[0] = half ? columns[p].z : columns[p].x;
        of.b[1] = half ? columns[p].w : columns[p].y;
        dots[p] = multiply_add(of, dots[p]);
    }
}

// Adds the products of a word of row r and one of row r + 8 with the columns of x that begin at each values + x + at.
template <int WIDTH>
__device__ __forceinline__ void multiply_words(float4 (&dots)[PAIRS], word_t low, word_t high, const __half *values,
                                               const int (&x)[PAIRS], int at) {
#pragma unroll
    for (int j = 0; j < 16 / WIDTH; j += 4) {
        uint4 columns[PAIRS];
        load_columns(columns, values, x, at + 2 * j);
#pragma unroll
        for (int s = 0; s < 2; s++) {
            Operands of;
#pragma unroll
            for (int i = 0; i < 4; i++) of.a[i] = two_codes<WIDTH>(i % 2 ? high : low, j + 2 * s + i / 2);
            multiply_pairs(dots, of, columns, s);
        }
    }
}

// Sums of row m of x, of rows r and r + 8.
__device__ __forceinline__ float2 of_row(const float4 (&dots)[PAIRS], int m) {
    const float4 of = dots[PARTS == 2 ? m : m / 2];
    if (PARTS == 2) return make_float2(of.x + of.y, of.z + of.w);
    return m % 2 ? make_float2(of.y, of.w) : make_float2(of.x, of.z);
}

struct Sums {
    float2 narrow[BATCH];  // of rows r and r + 8
    float4 wide[PAIRS];

    // Of one group with its own scale and zero; total: the sum of its x, for each row of x GROUPS further.
    __device__ __forceinline__ void add_scaled(const float4 (&dots)[PAIRS], float2 scale, float2 zero, const float *total) {
#pragma unroll
        for (int m = 0; m < BATCH; m++) {
            const float2 dot = of_row(dots, m);
            const float of_x = total[m * GROUPS];
            narrow[m].x = fmaf(scale.x, fmaf(-zero.x, of_x, dot.x), narrow[m].x);
            narrow[m].y = fmaf(scale.y, fmaf(-zero.y, of_x, dot.y), narrow[m].y);
        }
    }
};

// ---- the product ----

// A scale and a zero point of 4 bits for all wide groups of a row.
struct RowScales {
    const __half *scale;  // [N]
    const word_t *zero;   // [ceil(N / 8)]
};
struct OutlierBuffers {
    const int *first;         // [N + 1]
    const unsigned *entries;  // value << 16 | place of the column in the order of slots
};
struct Sizes {
    int rows, columns, all, chunks, slice;  // N, K, M; of a tile, of a slice
};

// What a warp has still to copy: chunks of its tiles, all of one tile before the next.
struct Turns {
    int tiles;  // left; 0 of a warp that has no chunks
    int each, left;

    __device__ __forceinline__ Turns(int tiles, int first, int last)
        : tiles(first < last ? (tiles - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) / gridDim.x : 0),
          each((last - first + WARPS - 1) / WARPS), left(each) {}
    // After each chunk: whether it was the last of its tile.
    __device__ __forceinline__ bool ends_a_tile() {
        if (--left > 0) return false;
        left = each;
        tiles--;
        return true;
    }
};

// Weights: Next, whose fetch copies the warp's next chunk in two batches; Scales, whose decode reads the first of them and
// whose multiply both; first_wide(chunk): the first group of a lane that is wide, GROUPS where none is; BY_ROW.
template <class Weights>
__device__ __forceinline__ void multiply_tiles(const Weights &weights, RowScales of_rows, OutlierBuffers outliers,
                                               const int *source, const X_TYPE *x, X_TYPE *y, float *partial,
                                               unsigned *arrived, Sizes sizes, unsigned char *shared)
{
    const int rows = sizes.rows, columns = sizes.columns, all = sizes.all, chunks = sizes.chunks, slice = sizes.slice;
    __shared__ float of_warps[2][WARPS][2][BATCH][16], of_outliers[2][BATCH][16], units[BATCH], wide_totals[BATCH];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slices = gridDim.y, tiles = (rows + 15) / 16;
    const int first = blockIdx.y * slice, last = min(first + slice, chunks);
    const int from = blockIdx.z * BATCH, count = min(BATCH, all - from);

    XGroups of_x(shared, slice * LANES_OF_ROW);
    unsigned char *const ring = of_x.behind() + warp * STAGES * STAGE_BYTES;
    typename Weights::Next next(weights, tiles, chunks, first + warp, last, lane);
    if (ASYNC)
        for (int s = 0; s < STAGES - 1; s++) next.fetch(ring + s * STAGE_BYTES, lane);
    Outliers outlier, outlier_next;
    outlier.entries = outlier_next.entries = outliers.entries;
    if (AHEAD) outlier_next.find(outliers.first, blockIdx.x, rows);
    of_x.blocks = (last - first) * LANES_OF_ROW;
    load_x(of_x, units, x + static_cast<size_t>(from) * columns, source + first * LANES_OF_ROW * GROUPS, count, columns);
    for (int m = warp; m < BATCH; m += WARPS) {
        float total = 0.0f;
        for (int block = lane; block < of_x.blocks; block += 32)
            for (int g = weights.first_wide(first + block / LANES_OF_ROW); g < GROUPS; g++)
                total += of_x.totals[(block * BATCH + m) * GROUPS + g];
        total = warp_sum(total);
        if (lane == 0) wide_totals[m] = total;
    }

    // The lane's column of B is lane / 4: slot lane / 4 % 2 of a pair, where it is that of lane c = lane / 8.
    const bool mine = lane / 8 == lane % 4;
    int start[PAIRS], further[PAIRS];  // where it reads x, of the warp's first chunk and from one of them to the next
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        const int s = 2 * p + lane / 4 % 2;
        const bool there = mine && s < SLOTS;
        start[p] = there ? s * of_x.slot + (warp * LANES_OF_ROW + lane % 4) * BLOCK_HALVES : of_x.zeros();
        further[p] = there ? WARPS * LANES_OF_ROW * BLOCK_HALVES : 0;
    }
    int slot = 0, turn = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, turn ^= 1) {
        if (AHEAD) {
            outlier = outlier_next;
            outlier.load(outlier.begin);
            if (tile + static_cast<int>(gridDim.x) < tiles) outlier_next.find(outliers.first, tile + gridDim.x, rows);
        }
        Sums sums = {};
        int columns_of[PAIRS];
#pragma unroll
        for (int p = 0; p < PAIRS; p++) columns_of[p] = start[p];
        const float *totals = of_x.totals + (warp * LANES_OF_ROW + lane % 4) * BATCH * GROUPS;
#pragma unroll 1
        for (int chunk = first + warp; chunk < last; chunk += WARPS) {
            unsigned char *const stage = ring + slot * STAGE_BYTES;
            if (!ASYNC) next.fetch(stage, lane);
            typename Weights::Scales of;
            copy_wait<ASYNC ? 2 * STAGES - 3 : 0>();
            __syncwarp();
            of.decode(weights, stage, chunk, lane);
            copy_wait<ASYNC ? 2 * STAGES - 4 : 0>();
            __syncwarp();  // all lanes have what they copied, and none still reads the chunk before
            if (ASYNC) next.fetch(ring + (slot == 0 ? STAGES - 1 : slot - 1) * STAGE_BYTES, lane);
            of.multiply(sums, weights, stage, chunk, of_x.values, columns_of, totals, lane);
#pragma unroll
            for (int p = 0; p < PAIRS; p++) columns_of[p] += further[p];
            totals += WARPS * LANES_OF_ROW * BATCH * GROUPS;
            if (!ASYNC) __syncwarp();
            slot = slot + 1 == STAGES ? 0 : slot + 1;
        }
#pragma unroll
        for (int m = 0; m < BATCH; m++) {
            const float2 wide = of_row(sums.wide, m);
            const float of_lane[4] = {sums.narrow[m].x, sums.narrow[m].y, wide.x, wide.y};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float sum = of_four_lanes(of_lane[i]);
                if (lane % 4 == 0) of_warps[turn][warp][i / 2][m][i % 2 * 8 + lane / 4] = sum;
            }
        }
        if (AHEAD) {
            float of_outlier[BATCH];
            outlier.add(of_outlier, of_x, first * LANES_OF_ROW * GROUPS * GROUP);
#pragma unroll
            for (int m = 0; m < BATCH; m++)
                if (threadIdx.x % LANES == 0) of_outliers[turn][m][threadIdx.x / LANES] = of_outlier[m];
        }
        __syncthreads();  // sums of the next tile have places of their own, so that one barrier a tile is enough

        for (int i = threadIdx.x; i < 16 * count; i += THREADS) {
            const int m = i / 16, n = tile * 16 + i % 16;
            if (n >= rows) continue;
            float narrow = AHEAD ? of_outliers[turn][m][i % 16] : 0.0f, wide = 0.0f;
            for (int w = 0; w < WARPS; w++) {
                narrow += of_warps[turn][w][0][m][i % 16];
                wide += of_warps[turn][w][1][m][i % 16];
            }
            float sum = narrow;
            if (Weights::BY_ROW) {
                const float zero = static_cast<float>(of_rows.zero[n / 8] >> n % 8 * 4 & 15u);
                sum = fmaf(to_float(of_rows.scale[n]), fmaf(-zero, wide_totals[m], wide), narrow);
            }
            if (Wide<X_TYPE>::value) sum *= units[m];
            put(y, partial, from + m, n, rows, slices, rows, sum);
        }
        if (slices > 1 && last_to_arrive(arrived + blockIdx.z * tiles + tile, slices))
            add_put(y, partial, from, count, tile * 16, 16, rows, slices, rows);
    }
}
