// Memory-aligned blocks of 2/4/16-bit weights times x (Li et al., ICCAD 2024, section 5, Algorithm 1, Fig. 8).
//
//     y[m, n] = sum over groups of 2 bits of  step (code + second zero) ( sum_k code[n, k] x[m, k]  -  zero sum_k x[m, k] )
//             + row_scale[n] ( sum over groups of 4 bits of sum_k code[n, k] x[m, k]  -  row_zero[n] sum_k x[m, k] )
//             + sum over outliers of value x[m, column]
//
// A warp takes a tile of 16 rows and a chunk of 4 blocks (256 columns) at a time: lane 4 r + c has block c of rows r and
// r + 8. Their codes are made halves and multiplied by tensor cores, which add the 4 lanes of a row; x stands in B so that
// they do not: column 2 c + s of B has slot s of x in the rows of lane c and zeros in all others, and of the sums a lane
// gets just columns 2 c and 2 c + 1: those of its own blocks, whose scales are its own. Codes and half x are exact,
// products and sums float32. Groups of 4 bits are summed over all chunks before their scale.
//
// ASYNC 1: a warp has a ring of STAGES chunks to which cp.async copies, scales of a chunk in a batch before its codes; it
// dequantizes the scales while the codes are under way, and multiplies while the next chunks are. ASYNC 0: it copies a
// chunk, waits for all of it, dequantizes scales, multiplies: what asynchrony buys is the difference.
// The warps of a block take the chunks of its slice in turn, of one tile after the other, and add their sums in order.
// Outliers of a row are taken by 2 WARPS threads, which load the first AHEAD of theirs when the tile begins.
// Several slices: their sums go to `partial`, and the last block to arrive adds them in the order of slices.
// grid = (blocks that share the tiles, slices, ceil(M / BATCH)), 32 WARPS threads.
//
// Parameters: ASYNC 0, 1 · STAGES (1 where not ASYNC) · WARPS a power of two up to 16 · BLOCKS that shall share an SM ·
// BATCH 1 .. 4, of float x 1, 2 · AHEAD outliers of a thread, 0: there are none · STAGE_BYTES as the plan counts them · X_TYPE float,
// __half or bfloat_t.

#include "../common.cuh"
#include "../lut_gemv/half_mma.cuh"
#include "outliers.cuh"
#include "x_groups.cuh"

constexpr int CHUNK = 4;                     // blocks
constexpr int CODE_BYTES = 16 * CHUNK * 20;  // of a tile and chunk: blocks [2][32] uint4, apart [32][2]
constexpr int META_BYTES = 16 * CHUNK * 2;   // meta [32][2]; behind it, of each block, 3 steps and its second zeros
constexpr int SCALE_BYTES = META_BYTES + CHUNK * 8;
constexpr int CHUNK_BYTES = CODE_BYTES + SCALE_BYTES;
static_assert(CHUNK_BYTES == STAGE_BYTES, "the plan counts other stages");

// ---- what a warp copies ----

struct Next {
    const unsigned char *codes, *scales;  // of the lane's first 16 bytes
    int tiles;                            // left; 0 of a warp that has no chunks
    int each, left;                       // chunks of a tile, and those left
    int further;                          // chunks from behind the last of a tile to the first of the next

    __device__ __forceinline__ Next(const unsigned char *codes, const unsigned char *scales, int tiles, int chunks, int first,
                                    int last, int lane)
        : tiles(first < last ? (tiles - static_cast<int>(blockIdx.x) + static_cast<int>(gridDim.x) - 1) / gridDim.x : 0),
          each((last - first + WARPS - 1) / WARPS), left(each), further(gridDim.x * chunks - each * WARPS) {
        const size_t at = static_cast<size_t>(blockIdx.x) * chunks + first;
        this->codes = codes + at * CODE_BYTES + lane * 16;
        this->scales = scales + at * SCALE_BYTES + lane * 16;
    }
    // The next chunk, in two batches.
    __device__ __forceinline__ void fetch(unsigned char *stage, int lane) {
        if (tiles > 0) ::fetch<SCALE_BYTES>(stage + CODE_BYTES + lane * 16, scales, lane);
        copy_commit();
        if (tiles > 0) ::fetch<CODE_BYTES>(stage + lane * 16, codes, lane);
        copy_commit();
        codes += WARPS * CODE_BYTES;
        scales += WARPS * SCALE_BYTES;
        if (--left > 0) return;
        left = each;
        tiles--;
        codes += static_cast<ptrdiff_t>(further) * CODE_BYTES;
        scales += static_cast<ptrdiff_t>(further) * SCALE_BYTES;
    }
};

// ---- dequantizing ----

// Of groups a, b, c of a lane's block, rows r (x) and r + 8 (y).
struct Scales {
    float2 scale[3], zero[3];

    __device__ __forceinline__ void decode(const unsigned char *scales, int lane) {
        const unsigned meta = reinterpret_cast<const unsigned *>(scales)[lane];
        const uint2 second = reinterpret_cast<const uint2 *>(scales + META_BYTES)[lane % 4];
        const unsigned steps[3] = {second.x, second.x >> 16, second.y};
        const unsigned codes[3] = {meta >> 6 & 0x000f000fu, meta >> 10 & 0x00070007u, meta >> 13 & 0x00070007u};
#pragma unroll
        for (int g = 0; g < 3; g++) {
            const unsigned levels = codes[g] + (second.y >> (16 + 4 * g) & 15u) * 0x00010001u;  // at most 30
            const float step = to_float(__ushort_as_half(static_cast<unsigned short>(steps[g])));
            scale[g] = __half22float2(integers_at(levels | MANTISSAS, 0));
            scale[g].x *= step;
            scale[g].y *= step;
            zero[g] = __half22float2(integers_at(and_or(meta >> 2 * g, 0x00030003u, MANTISSAS), 0));
        }
    }
};

// Pair j of a word's codes of WIDTH bits as halves: those at bits WIDTH j of its lower and of its upper half.
template <int WIDTH>
__device__ __forceinline__ unsigned two_codes(word_t word, int j) {
    constexpr int HERE = 10 / WIDTH;  // pairs that lie in the mantissas of two halves
    constexpr unsigned MASK = ((1u << WIDTH) - 1u) * 0x00010001u;
    const unsigned base = j % HERE * WIDTH;
    const word_t turned = word >> j / HERE * HERE * WIDTH;
    return as_word(integers_at(and_or(turned, MASK << base, MANTISSAS), base));
}

// Adds the products of a word of row r and one of row r + 8 with the columns of x that begin at each values + x.
template <int WIDTH>
__device__ __forceinline__ void multiply_words(float4 (&dots)[PAIRS], word_t low, word_t high, const __half *values,
                                               const int (&x)[PAIRS], int at) {
#pragma unroll
    for (int j = 0; j < 16 / WIDTH; j += 4) {
        uint4 columns[PAIRS];
#pragma unroll
        for (int p = 0; p < PAIRS; p++) columns[p] = *reinterpret_cast<const uint4 *>(values + x[p] + at + 2 * j);
#pragma unroll
        for (int s = 0; s < 2; s++) {
            Operands of;
            of.a[0] = two_codes<WIDTH>(low, j + 2 * s);
            of.a[1] = two_codes<WIDTH>(high, j + 2 * s);
            of.a[2] = two_codes<WIDTH>(low, j + 2 * s + 1);
            of.a[3] = two_codes<WIDTH>(high, j + 2 * s + 1);
#pragma unroll
            for (int p = 0; p < PAIRS; p++) {
                of.b[0] = s ? columns[p].z : columns[p].x;
                of.b[1] = s ? columns[p].w : columns[p].y;
                dots[p] = multiply_add(of, dots[p]);
            }
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

    __device__ __forceinline__ void add(const unsigned char *codes, const Scales &of, const __half *values,
                                        const int (&x)[PAIRS], const float *totals, int lane) {
        const uint4 low = reinterpret_cast<const uint4 *>(codes)[lane], high = reinterpret_cast<const uint4 *>(codes)[32 + lane];
        const uint2 apart = reinterpret_cast<const uint2 *>(codes + 1024)[lane];
        float4 sums_of_x[BATCH];
#pragma unroll
        for (int m = 0; m < BATCH; m++) sums_of_x[m] = load4(totals + m * GROUPS);
        const word_t words[3][2] = {{low.x, high.x}, {low.y, high.y}, {low.z, high.z}};
#pragma unroll
        for (int g = 0; g < 3; g++) {
            float4 dots[PAIRS] = {};
            multiply_words<2>(dots, words[g][0], words[g][1], values, x, g * GROUP);
#pragma unroll
            for (int m = 0; m < BATCH; m++) {
                const float2 dot = of_row(dots, m);
                const float total = g == 0 ? sums_of_x[m].x : g == 1 ? sums_of_x[m].y : sums_of_x[m].z;
                narrow[m].x = fmaf(of.scale[g].x, fmaf(-of.zero[g].x, total, dot.x), narrow[m].x);
                narrow[m].y = fmaf(of.scale[g].y, fmaf(-of.zero[g].y, total, dot.y), narrow[m].y);
            }
        }
        multiply_words<4>(wide, low.w, high.w, values, x, 3 * GROUP);
        multiply_words<4>(wide, apart.x, apart.y, values, x, 3 * GROUP + 8);
    }
};

__device__ __forceinline__ float of_four_lanes(float value) {
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// ---- the product ----

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
    __shared__ float of_warps[2][WARPS][2][BATCH][16], of_outliers[2][BATCH][16], units[BATCH], wide_totals[BATCH];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slices = gridDim.y, tiles = (rows + 15) / 16;
    const int first = blockIdx.y * slice, last = min(first + slice, chunks);
    const int from = blockIdx.z * BATCH, count = min(BATCH, all - from);

    XGroups of_x(shared, slice * CHUNK);
    unsigned char *const ring = of_x.behind() + warp * STAGES * CHUNK_BYTES;
    Next next(codes, scales, tiles, chunks, first + warp, last, lane);
    if (ASYNC)
        for (int s = 0; s < STAGES - 1; s++) next.fetch(ring + s * CHUNK_BYTES, lane);
    Outliers outlier, outlier_next;
    outlier.entries = outlier_next.entries = outliers;
    if (AHEAD) outlier_next.find(outlier_first, blockIdx.x, rows);
    of_x.blocks = (last - first) * CHUNK;
    load_x(of_x, units, x + static_cast<size_t>(from) * columns, source + first * CHUNK * GROUPS, count, columns);
    for (int m = warp; m < BATCH; m += WARPS) {
        float total = 0.0f;
        for (int block = lane; block < of_x.blocks; block += 32) total += of_x.totals[(block * BATCH + m) * GROUPS + GROUPS - 1];
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
        start[p] = there ? s * of_x.slot + (warp * CHUNK + lane % 4) * BLOCK_HALVES : of_x.zeros();
        further[p] = there ? WARPS * CHUNK * BLOCK_HALVES : 0;
    }
    int slot = 0, turn = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, turn ^= 1) {
        if (AHEAD) {
            outlier = outlier_next;
            outlier.load(outlier.begin);
            if (tile + static_cast<int>(gridDim.x) < tiles) outlier_next.find(outlier_first, tile + gridDim.x, rows);
        }
        Sums sums = {};
        int columns_of[PAIRS];
#pragma unroll
        for (int p = 0; p < PAIRS; p++) columns_of[p] = start[p];
        const float *totals = of_x.totals + (warp * CHUNK + lane % 4) * BATCH * GROUPS;
#pragma unroll 1
        for (int chunk = first + warp; chunk < last; chunk += WARPS) {
            unsigned char *const stage = ring + slot * CHUNK_BYTES;
            if (!ASYNC) next.fetch(stage, lane);
            Scales of;
            copy_wait<ASYNC ? 2 * STAGES - 3 : 0>();
            __syncwarp();
            of.decode(stage + CODE_BYTES, lane);
            copy_wait<ASYNC ? 2 * STAGES - 4 : 0>();
            __syncwarp();  // all lanes have what they copied, and none still reads the chunk before
            if (ASYNC) next.fetch(ring + (slot == 0 ? STAGES - 1 : slot - 1) * CHUNK_BYTES, lane);
            sums.add(stage, of, of_x.values, columns_of, totals, lane);
#pragma unroll
            for (int p = 0; p < PAIRS; p++) columns_of[p] += further[p];
            totals += WARPS * CHUNK * BATCH * GROUPS;
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
            outlier.add(of_outlier, of_x, first * CHUNK * 64);
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
            const float zero = static_cast<float>(row_zero[n / 8] >> n % 8 * 4 & 15u);
            float sum = fmaf(to_float(row_scale[n]), fmaf(-zero, wide_totals[m], wide), narrow);
            if (Wide<X_TYPE>::value) sum *= units[m];
            if (slices == 1)
                y[static_cast<size_t>(from + m) * rows + n] = round_to(sum, X_TYPE());
            else
                __stcg(partial + (static_cast<size_t>(from + m) * slices + blockIdx.y) * rows + n, sum);
        }
        if (slices == 1 || !last_to_arrive(arrived + blockIdx.z * tiles + tile, slices)) continue;
        for (int i = threadIdx.x; i < 16 * count; i += THREADS) {
            const int m = i / 16, n = tile * 16 + i % 16;
            if (n >= rows) continue;
            float sum = 0.0f;
            for (int s = 0; s < slices; s++) sum += __ldcg(partial + (static_cast<size_t>(from + m) * slices + s) * rows + n);
            y[static_cast<size_t>(from + m) * rows + n] = round_to(sum, X_TYPE());
        }
    }
}
