// R4: no table and no dequantization. x becomes planes of bits, and binary tensor cores count where both bits are 1.
//
//     y[m, n] = sum over blocks of 128 columns of  unit ( sum_b alpha[g, b, n] D_b  +  z[g, n] S )
//     D_b = sum_k B_b[n, k] X[k] = 2 sum_p w_p popc(plane b of row n & plane p of X) - S,   S = sum_k X[k]
//
// X = rint(x / unit) are integers of P bits in two's complement, unit = max |x| of the block / (2^(P-1) - 1); w_p = 2^p,
// and -2^p for the highest. D_b is exact; only unit, alpha and the sum over blocks are float32, always in one order, so
// that every run gives the same y. What is lost is |x - unit X| <= unit / 2.
//
// Planes are the columns of the product: lane j of four gets columns 2j and 2j + 1 of each 8 planes, that is its share
// of D_b and of S in units of 4^j; four lanes are added at the very end. Groups of 32 and 64 columns: PARTS products a
// block, in each of which the words of the other groups are zero. An inf or nan in a row of x: its whole y is nan.
//
// First launch: planes of x, grid (C, 1, M), 32 threads. Second: grid (ceil(T / TILES), slices of blocks, ceil(M / BATCH)),
// 32 WARPS threads; the warps of a block share its tiles of 32 rows and take the blocks of 128 columns in turn, each
// with a ring of STAGES blocks that are under way to shared memory. Several slices: as in R1.
//
// Parameters: BITS (q) · X_BITS (P) 8 .. 24 · PARTS 1, 2, 4 · BATCH rows of x · TILES · WARPS · STAGES · BLOCKS that shall
// share an SM · STAGE_BYTES, RECORD_BYTES as the plan counts them · X_TYPE, ALPHA_TYPE, OFFSET_TYPE float or __half ·
// HAS_OFFSET 0, 1.

#include "../common.cuh"

constexpr int EIGHTS = (X_BITS + 7) / 8;                     // eights of planes; those from X_BITS on repeat the sign
constexpr int TOP = 8 * EIGHTS - 1;                          // the plane that counts negative
constexpr int ROWS = 32 * TILES;
constexpr int PLANES_AHEAD = BATCH == 1 ? 4 : 1;             // of W, whose code stands in a row: more take more registers
constexpr int PLANE_BYTES = 32 * 16;                         // of a tile and block: a uint4 a lane
constexpr int ALPHA_BYTES = PARTS * BITS * 32 * static_cast<int>(sizeof(ALPHA_TYPE));
constexpr int OFFSET_BYTES = HAS_OFFSET * PARTS * 32 * static_cast<int>(sizeof(OFFSET_TYPE));
constexpr int TILE_BYTES = BITS * PLANE_BYTES + ALPHA_BYTES + OFFSET_BYTES;
// A block of x: planes [EIGHTS][32 lanes], lanes' shares of S [PARTS][4], unit times 4^j [4], S [PARTS], room for 4.
constexpr int SHARES_AT = EIGHTS * 128, UNITS_AT = SHARES_AT + PARTS * 16, SUMS_AT = UNITS_AT + 16;
static_assert(RECORD_BYTES == SUMS_AT + 16, "the plan counts other records of x");
static_assert(STAGE_BYTES == TILES * TILE_BYTES + BATCH * RECORD_BYTES, "the plan counts other stages");

// ---- planes of x ----

extern "C" __global__ void __launch_bounds__(32)
lut_gemv_r4_planes(const X_TYPE *x,          // [M][K]
                   unsigned char *records,   // [M][C] of RECORD_BYTES
                   int columns,              // K
                   int blocks,               // C
                   int span,                 // columns of `run` blocks, which begin together
                   int run)
{
    const float level = static_cast<float>((1 << (X_BITS - 1)) - 1);
    const int lane = threadIdx.x, block = blockIdx.x;
    const int first = block / run * span + block % run * 128;
    const int last = min(min(first + 128, (block / run + 1) * span), columns);
    x += static_cast<size_t>(blockIdx.z) * columns;
    records += (static_cast<size_t>(blockIdx.z) * blocks + block) * RECORD_BYTES;

    float values[4], largest = 1e-30f;  // smaller x would need a unit that is no normal number
    bool finite = true;
#pragma unroll
    for (int w = 0; w < 4; w++) {
        const int k = first + 32 * w + lane;
        values[w] = k < last ? to_float(x[k]) : 0.0f;
        largest = fmaxf(largest, fabsf(values[w]));
        finite = finite && fabsf(values[w]) <= 3.402823466e38f;
    }
    largest = warp_max(largest);
    finite = __all_sync(0xffffffffu, finite);
    int numbers[4];
#pragma unroll
    for (int w = 0; w < 4; w++) {
        const float scaled = finite ? values[w] * (level / largest) : 0.0f;
        numbers[w] = __float2int_rn(fmaxf(-level, fminf(level, scaled)));
    }
    word_t words[EIGHTS];
    int shares[PARTS] = {};      // of lane % 4
#pragma unroll
    for (int p = 0; p <= TOP; p++) {
        const int weight = (p == TOP ? -1 : 1) * (1 << (p % 2 + 8 * (p / 8)));  // without 4^j
#pragma unroll
        for (int w = 0; w < 4; w++) {
            const word_t word = __ballot_sync(0xffffffffu, numbers[w] >> p & 1);
            if (lane == p % 8 * 4 + w) words[p / 8] = word;
            if (lane % 4 == p % 8 / 2) shares[w * PARTS / 4] += weight * __popc(word);
        }
    }
#pragma unroll
    for (int i = 0; i < EIGHTS; i++) reinterpret_cast<word_t *>(records)[i * 32 + lane] = words[i];
#pragma unroll
    for (int part = 0; part < PARTS; part++)
        if (lane / 4 == part) reinterpret_cast<int *>(records + SHARES_AT)[lane] = shares[part];
#pragma unroll
    for (int part = 0; part < 4; part++) {
        int sum = part < PARTS ? shares[part % PARTS] * (1 << 2 * (lane % 4)) : 0;
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (lane == part) reinterpret_cast<float *>(records + SUMS_AT)[part] = __int2float_rn(sum);
    }
    const float unit = finite ? largest / level : __int_as_float(0x7fffffff);
    if (lane < 4) reinterpret_cast<float *>(records + UNITS_AT)[lane] = unit * static_cast<float>(1 << 2 * lane);
}

// ---- the product ----

// BYTES from a lane's first 16 on, 16 a lane, not waited for.
template <int BYTES>
__device__ __forceinline__ void fetch(unsigned char *shared, const unsigned char *global, int lane) {
#pragma unroll
    for (int at = 0; at < BYTES; at += 512)
        if (at + 512 <= BYTES || lane * 16 < BYTES - at) copy_16_async(shared + at, global + at);
}

// Where a lane reads next: what a warp needs of one block of columns, then of the one WARPS further on.
struct Sources {
    const unsigned char *planes[TILES], *alpha[TILES], *offset[TILES], *records[BATCH];

    __device__ __forceinline__ void fetch_block(unsigned char *stage, int lane) const {
        stage += lane * 16;
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            unsigned char *weights = stage + t * TILE_BYTES;
            fetch<BITS * PLANE_BYTES>(weights, planes[t], lane);
            fetch<ALPHA_BYTES>(weights + BITS * PLANE_BYTES, alpha[t], lane);
            fetch<OFFSET_BYTES>(weights + BITS * PLANE_BYTES + ALPHA_BYTES, offset[t], lane);
        }
#pragma unroll
        for (int m = 0; m < BATCH; m++)
            fetch<RECORD_BYTES>(stage + TILES * TILE_BYTES + m * RECORD_BYTES, records[m], lane);
    }
    __device__ __forceinline__ void advance(int groups) {
#pragma unroll
        for (int t = 0; t < TILES; t++) {
            planes[t] += WARPS * BITS * PLANE_BYTES;
            alpha[t] += groups * (ALPHA_BYTES / PARTS);
            offset[t] += groups * (OFFSET_BYTES / PARTS);
        }
#pragma unroll
        for (int m = 0; m < BATCH; m++) records[m] += WARPS * RECORD_BYTES;
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

__device__ __forceinline__ float of_four_lanes(float value) {
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
lut_gemv_r4(const word_t *planes,            // [T][C][BITS][32][4]
            const ALPHA_TYPE *alpha,         // [T][G][BITS][32]
            const OFFSET_TYPE *offset,       // [T][G][32], if HAS_OFFSET
            const unsigned char *records,    // [M][C] of RECORD_BYTES
            X_TYPE *y,                       // [M][N]
            float *partial,                  // [M][slices][N], if there are several slices
            unsigned *arrived,               // [ceil(M / BATCH)][ceil(T / TILES)], zeros
            int count,                       // M
            int rows,                        // N
            int blocks,                      // C
            int slice,                       // blocks of a slice
            int groups,                      // G, a multiple of PARTS
            int run)                         // blocks of a group
{
    DYNAMIC_SHARED(unsigned char, rings);    // [WARPS][STAGES] of STAGE_BYTES
    __shared__ float of_warps[WARPS][BATCH][ROWS];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slices = gridDim.y;
    const int first = blockIdx.y * slice + warp, last = min(static_cast<int>(blockIdx.y + 1) * slice, blocks);
    unsigned char *const ring = rings + warp * STAGES * STAGE_BYTES;

    Sources next;  // not read where `ahead`, the block they are at, is behind the last
    int ahead = first, of_group = first % run;  // blocks
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
    const auto fetch_next = [&](unsigned char *stage) {
        if (ahead < last) {
            next.fetch_block(stage, lane);
            int further = WARPS * PARTS;  // groups
            if (run > 1)
                for (further = 0, of_group += WARPS; of_group >= run; of_group -= run) further++;
            next.advance(further);
        }
        ahead += WARPS;
        copy_commit();
    };

    float4 sums[BATCH][TILES] = {};
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) fetch_next(ring + s * STAGE_BYTES);
    int slot = 0;
    for (int block = first; block < last; block += WARPS) {
        copy_wait<STAGES - 2>();
        __syncwarp();  // all lanes have what they fetched, and none still reads the stage that is fetched next
        fetch_next(ring + (slot == 0 ? STAGES - 1 : slot - 1) * STAGE_BYTES);
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

    partial += static_cast<size_t>(blockIdx.z) * BATCH * slices * rows;
    y += static_cast<size_t>(blockIdx.z) * BATCH * rows;
    const int n0 = blockIdx.x * ROWS, batch = min(BATCH, count - static_cast<int>(blockIdx.z) * BATCH);
    for (int i = threadIdx.x; i < batch * ROWS; i += 32 * WARPS) {
        const int m = i / ROWS, n = n0 + i % ROWS;
        float sum = 0.0f;
        for (int w = 0; w < WARPS; w++) sum += of_warps[w][m][i % ROWS];
        if (n >= rows) continue;
        if (slices == 1)
            y[static_cast<size_t>(m) * rows + n] = round_to(sum, X_TYPE());
        else
            __stcg(partial + (static_cast<size_t>(m) * slices + blockIdx.y) * rows + n, sum);
    }
    if (slices == 1 || !last_to_arrive(arrived + blockIdx.z * gridDim.x + blockIdx.x, slices)) return;
    for (int i = threadIdx.x; i < batch * ROWS; i += 32 * WARPS) {
        const int m = i / ROWS, n = n0 + i % ROWS;
        if (n >= rows) continue;
        float sum = 0.0f;
        for (int s = 0; s < slices; s++) sum += __ldcg(partial + (static_cast<size_t>(m) * slices + s) * rows + n);
        y[static_cast<size_t>(m) * rows + n] = round_to(sum, X_TYPE());
    }
}
