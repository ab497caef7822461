// bit_planes (r4): no table and no dequantization. x becomes planes of bits, and binary tensor cores count common ones.
//
//     y[m, n] = sum over blocks of 128 columns of  unit ( sum_b alpha[g, b, n] D_b  +  z[g, n] S )
//     D_b = sum_k B_b[n, k] X[k] = 2 sum_p w_p popc(plane b of row n & plane p of X) - S,   S = sum_k X[k]
//
// X are integers of P bits, kept as planes of bits (x_planes.cuh), w_p = 2^p and -2^p for the last; unit = max |x| of the
// block / (2^(P-1) - 1). D_b is exact; only unit, alpha and the sum over blocks are float32, always in one order, so that
// every run gives the same y. What is lost is |x - unit X| <= unit / 2. Lane j of four gets its share of D_b in units of
// 4^j; the four are added at the very end. Groups of 32 and 64 columns: PARTS products a block, in each of which the words
// of the other groups are zero. An inf or nan in a row of x: its whole y is nan.
//
// grid = (ceil(T / TILES), slices of blocks, ceil(M / BATCH)), 32 WARPS threads. The warps of a block share its tiles of
// 32 rows and take the blocks of 128 columns in turn, each with a ring of STAGES of them that are under way to shared
// memory. Planes of x are made by a launch before (LAUNCHES 2), or once by the first blocks of threads that come, while
// their first weights are under way (LAUNCHES 1). Several slices: as in lane_tables.cu.
//
// Parameters: BITS (q) · X_BITS (P) 8 .. 24 · PARTS 1, 2, 4 · BATCH rows of x · TILES · WARPS · STAGES · BLOCKS that shall
// share an SM · LAUNCHES 1, 2 · STAGE_BYTES, RECORD_BYTES as the plan counts them · X_TYPE float, __half or
// bfloat_t · ALPHA_TYPE, OFFSET_TYPE float or __half · HAS_OFFSET 0, 1.

#include "../common.cuh"
#include "x_planes.cuh"

constexpr int ROWS = 32 * TILES;
constexpr int PLANES_AHEAD = BATCH == 1 ? 4 : 1;             // of W, whose code stands in a row: more take more registers
constexpr int PLANE_BYTES = 32 * 16;                         // of a tile and block: a uint4 a lane
constexpr int ALPHA_BYTES = PARTS * BITS * 32 * static_cast<int>(sizeof(ALPHA_TYPE));
constexpr int OFFSET_BYTES = HAS_OFFSET * PARTS * 32 * static_cast<int>(sizeof(OFFSET_TYPE));
constexpr int TILE_BYTES = BITS * PLANE_BYTES + ALPHA_BYTES + OFFSET_BYTES;
static_assert(STAGE_BYTES == TILES * TILE_BYTES + BATCH * RECORD_BYTES, "the plan counts other stages");

// ---- planes of x ----

extern "C" __global__ void __launch_bounds__(32)
lut_gemv_bit_planes_of_x(const X_TYPE *x,          // [M][K]
                           unsigned char *records,   // [M][C] of RECORD_BYTES
                           int columns,              // K
                           int blocks,               // C
                           int span,                 // columns of `run` blocks, which begin together
                           int run)                  // grid = (C, 1, M)
{
    write_record_of(records, x, blockIdx.z, blockIdx.x, columns, blocks, span, run, threadIdx.x);
}

// Makes the records where no launch before did; all threads call it, and may read them with cp.async.cg afterwards.
// Who comes takes the next record that nobody has taken, so that those waited for are always in the hands of a block
// that runs. progress: records taken, records made, blocks of threads that are through.
__device__ __forceinline__ void make_records(unsigned *progress, unsigned char *records, const X_TYPE *x, int count,
                                             int columns, int blocks, int span, int run) {
    const int lane = threadIdx.x;
    const unsigned all = blocks * count;
    volatile unsigned *const made = progress + 1;
    if (lane < 32 && __any_sync(0xffffffffu, *made < all)) {
        for (;;) {
            const unsigned taken = __shfl_sync(0xffffffffu, lane == 0 ? atomicAdd(progress, 1u) : 0u, 0);
            if (taken >= all) break;
            write_record_of(records, x, taken / blocks, taken % blocks, columns, blocks, span, run, lane);
            __threadfence();
            __syncwarp();
            if (lane == 0) atomicAdd(progress + 1, 1u);
        }
        while (*made < all) {
        }
    }
    if (lane < 32) __threadfence();
    __syncthreads();
}

// The last block of threads to come here, behind make_records, leaves zeros for the next launch.
__device__ __forceinline__ void reset(unsigned *progress) {
    const unsigned others = gridDim.x * gridDim.y * gridDim.z - 1;
    if (threadIdx.x == 0 && atomicInc(progress + 2, others) == others) progress[0] = progress[1] = 0;
}

// ---- the product ----

// Where a lane reads next: what a warp needs of one block of columns, then of the one WARPS further on.
struct Sources {
    const unsigned char *planes[TILES], *alpha[TILES], *offset[TILES], *records[BATCH];

    __device__ __forceinline__ void fetch_weights(unsigned char *stage, int lane, int further) {
        stage += lane * 16;
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            unsigned char *weights = stage + t * TILE_BYTES;
            fetch<BITS * PLANE_BYTES>(weights, planes[t], lane);
            fetch<ALPHA_BYTES>(weights + BITS * PLANE_BYTES, alpha[t], lane);
            fetch<OFFSET_BYTES>(weights + BITS * PLANE_BYTES + ALPHA_BYTES, offset[t], lane);
            planes[t] += WARPS * BITS * PLANE_BYTES;
            alpha[t] += further * (ALPHA_BYTES / PARTS);  // groups
            offset[t] += further * (OFFSET_BYTES / PARTS);
        }
    }
    __device__ __forceinline__ void fetch_x(unsigned char *stage, int lane) {
        stage += TILES * TILE_BYTES + lane * 16;
#pragma unroll
        for (int m = 0; m < BATCH; m++) {
            fetch<RECORD_BYTES>(stage + m * RECORD_BYTES, records[m], lane);
            records[m] += WARPS * RECORD_BYTES;
        }
    }
};

// Shares of D_b of rows lane / 4 + 0, 8 (a0, a1) and 16, 24 (a2, a3). top: -2 in the lanes of plane TOP, otherwise 2.
__device__ __forceinline__ float4 product(uint4 a, const word_t *columns, int share, int top) {
    int4 low = popc_mma(a.x, a.y, columns[EIGHTS - 1]), high = popc_mma(a.z, a.w, columns[EIGHTS - 1]);
    int sums[4] = {low.x + top * low.y, low.z + top * low.w, high.x + top * high.y, high.z + top * high.w};
#pragma unroll
    for (int i = EIGHTS - 2; i >= 0; i--) {
        low = popc_mma(a.x, a.y, columns[i]);
        high = popc_mma(a.z, a.w, columns[i]);
        sums[0] = sums[0] * 256 + (low.x + 2 * low.y);
        sums[1] = sums[1] * 256 + (low.z + 2 * low.w);
        sums[2] = sums[2] * 256 + (high.x + 2 * high.y);
        sums[3] = sums[3] * 256 + (high.z + 2 * high.w);
    }
    return make_float4(__int2float_rn(2 * sums[0] - share), __int2float_rn(2 * sums[1] - share),
                       __int2float_rn(2 * sums[2] - share), __int2float_rn(2 * sums[3] - share));
}

__device__ __forceinline__ void add_scaled(float4 &sum, float4 scale, float4 value) {
    sum.x = fmaf(scale.x, value.x, sum.x);
    sum.y = fmaf(scale.y, value.y, sum.y);
    sum.z = fmaf(scale.z, value.z, sum.z);
    sum.w = fmaf(scale.w, value.w, sum.w);
}
__device__ __forceinline__ float4 four(float value) { return make_float4(value, value, value, value); }

// Adds a block of 128 columns: TILES tiles times BATCH rows of x. stage: tiles, then records.
__device__ __forceinline__ void multiply(float4 (&sums)[BATCH][TILES], const unsigned char *stage, int lane) {
    const unsigned char *records = stage + TILES * TILE_BYTES;
    const int top = lane % 4 == 3 ? -2 : 2;
    word_t columns[BATCH][EIGHTS];
#pragma unroll
    for (int i = 0; i < BATCH * EIGHTS; i++)
        columns[i / EIGHTS][i % EIGHTS] = reinterpret_cast<const word_t *>(
            records + i / EIGHTS * RECORD_BYTES)[i % EIGHTS * 32 + lane];
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        const unsigned char *weights = stage + tile * TILE_BYTES;
        const auto *alpha = reinterpret_cast<const ALPHA_TYPE *>(weights + BITS * PLANE_BYTES) + lane / 4 * 4;
        float4 block[BATCH] = {};
#pragma unroll 1
        for (int part = 0; part < PARTS; part++) {
            const bool mine = lane % 4 * PARTS / 4 == part;  // the lane's word of columns is of this group
            int shares[BATCH];
#pragma unroll
            for (int m = 0; m < BATCH; m++)
                shares[m] = reinterpret_cast<const int *>(records + m * RECORD_BYTES + SHARES_AT)[part * 4 + lane % 4];
#if HAS_OFFSET
            const auto *offset = reinterpret_cast<const OFFSET_TYPE *>(weights + BITS * PLANE_BYTES + ALPHA_BYTES);
            const float4 z = load4(offset + part * 32 + lane / 4 * 4);
#pragma unroll
            for (int m = 0; m < BATCH; m++) {  // by one of the four lanes: the shares of S are larger than S
                const float sum = reinterpret_cast<const float *>(records + m * RECORD_BYTES + SUMS_AT)[part];
                add_scaled(block[m], z, four(lane % 4 == 0 ? sum : 0.0f));
            }
#endif
#pragma unroll PLANES_AHEAD
            for (int b = 0; b < BITS; b++) {
                const uint4 a = reinterpret_cast<const uint4 *>(weights + b * PLANE_BYTES)[lane];
                const float4 scale = load4(alpha + (part * BITS + b) * 32);
#pragma unroll
                for (int m = 0; m < BATCH; m++) {
                    word_t masked[EIGHTS];
#pragma unroll
                    for (int i = 0; i < EIGHTS; i++) masked[i] = mine ? columns[m][i] : 0u;
                    add_scaled(block[m], scale, product(a, masked, shares[m], top));
                }
            }
        }
#pragma unroll
        for (int m = 0; m < BATCH; m++) {
            const float unit = reinterpret_cast<const float *>(records + m * RECORD_BYTES + UNITS_AT)[lane % 4];
            add_scaled(sums[m][tile], four(unit), block[m]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
lut_gemv_bit_planes(const word_t *planes,            // [T][C][BITS][32][4]
                    const ALPHA_TYPE *alpha,         // [T][G][BITS][32]
                    const OFFSET_TYPE *offset,       // [T][G][32], if HAS_OFFSET
                    const X_TYPE *x,                 // [M][K]
                    unsigned char *records,          // [M][C] of RECORD_BYTES
                    unsigned *progress,              // [3], zeros
                    X_TYPE *y,                       // [M][N]
                    float *partial,                  // [M][slices][N], if there are several slices
                    unsigned *arrived,               // [ceil(M / BATCH)][ceil(T / TILES)], zeros
                    int count,                       // M
                    int rows,                        // N
                    int columns,                     // K
                    int blocks,                      // C
                    int slice,                       // blocks of a slice
                    int groups,                      // G, a multiple of PARTS
                    int span,                        // columns of `run` blocks, which begin together
                    int run)                         // blocks of a group, 1 where groups share one
{
    DYNAMIC_SHARED(unsigned char, rings);    // [WARPS][STAGES] of STAGE_BYTES
    __shared__ float of_warps[WARPS][BATCH][ROWS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slices = gridDim.y;
    const int first = blockIdx.y * slice + warp, last = min(static_cast<int>(blockIdx.y + 1) * slice, blocks);
    unsigned char *const ring = rings + warp * STAGES * STAGE_BYTES;

    Sources next;
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        const size_t tile = min(static_cast<int>(blockIdx.x) * TILES + t, (rows - 1) / 32);
        const size_t group = tile * groups + (PARTS > 1 ? first * PARTS : first / run);
        next.planes[t] = reinterpret_cast<const unsigned char *>(planes + (tile * blocks + first) * BITS * 128) + lane * 16;
        next.alpha[t] = reinterpret_cast<const unsigned char *>(alpha + group * BITS * 32) + lane * 16;
        next.offset[t] = reinterpret_cast<const unsigned char *>(offset + group * 32) + lane * 16;
    }
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        const size_t m = min(static_cast<int>(blockIdx.z) * BATCH + i, count - 1);
        next.records[i] = records + (m * blocks + first) * RECORD_BYTES + lane * 16;
    }
    int of_group = first % run;  // blocks of its group before the next block
    const auto fetch_weights = [&](int block, int slot) {
        if (block >= last) return;
        int further = WARPS * PARTS;
        if (run > 1)
            for (further = 0, of_group += WARPS; of_group >= run; of_group -= run) further++;
        next.fetch_weights(ring + slot * STAGE_BYTES, lane, further);
    };
    const auto fetch_x = [&](int block, int slot) {
        if (block < last) next.fetch_x(ring + slot * STAGE_BYTES, lane);
        copy_commit();
    };

    float4 sums[BATCH][TILES] = {};
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) fetch_weights(first + s * WARPS, s);
    if (LAUNCHES == 1) make_records(progress, records, x, count, columns, blocks, span, run);
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) fetch_x(first + s * WARPS, s);
    int slot = 0;
    for (int block = first; block < last; block += WARPS) {
        const int then = block + (STAGES - 1) * WARPS, free_slot = slot == 0 ? STAGES - 1 : slot - 1;
        copy_wait<STAGES - 2>();
        __syncwarp();  // all lanes have what they fetched, and none still reads the stage that is fetched next
        fetch_weights(then, free_slot);
        fetch_x(then, free_slot);
        multiply(sums, ring + slot * STAGE_BYTES, lane);
        slot = slot == STAGES - 1 ? 0 : slot + 1;
    }
#pragma unroll
    for (int i = 0; i < BATCH * TILES; i++) {
        const float4 mine = sums[i / TILES][i % TILES];
        const float of_rows[4] = {of_four_lanes(mine.x), of_four_lanes(mine.y), of_four_lanes(mine.z), of_four_lanes(mine.w)};
#pragma unroll
        for (int r = 0; r < 4; r++)
            if (lane % 4 == 0) of_warps[warp][i / TILES][i % TILES * 32 + 8 * r + lane / 4] = of_rows[r];
    }
    __syncthreads();
    if (LAUNCHES == 1) reset(progress);

    const int n0 = blockIdx.x * ROWS, from = blockIdx.z * BATCH, batch = min(BATCH, count - from);
    for (int i = threadIdx.x; i < batch * ROWS; i += 32 * WARPS) {
        const int m = i / ROWS, n = n0 + i % ROWS;
        float sum = 0.0f;
        for (int w = 0; w < WARPS; w++) sum += of_warps[w][m][i % ROWS];
        if (n < rows) put(y, partial, from + m, n, rows, slices, rows, sum);
    }
    if (slices > 1 && last_to_arrive(arrived + blockIdx.z * gridDim.x + blockIdx.x, slices))
        add_put(y, partial, from, batch, n0, ROWS, rows, slices, rows);
}
