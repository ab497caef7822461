// half_bits (r6): a bit where it stands in a word is a half already, a power of two or zero. Tensor cores multiply it by
// x, which was divided by that power; up to 16 rows of x share one reading of the weights. No table, no dequantization.
//
//     y[m, n] = sum over blocks of 128 columns of  2 unit ( sum_b alpha[g, b, n] D_b  -  z[g, n] t )
//     D_b = t + sum_k u_b[n, k] X[k] = sum_k B_b[n, k] X[k] / 2,   t = -sum_k X[k] / 2,   u = (B + 1) / 2 is the bit
//
// X = x / unit as halves. Alone in a half, the bit at place 6 .. 13 is a power of two, 2^-18 .. 2^-7, and its X was divided
// by it, so that all products are u X 2^-18 (x_halves.cuh). Places 6 .. 13 of a word and of the word rotated by 8 are all of
// its 32 bits, two a mask: a register of A costs one LOP3. t is where a sum starts, and costs nothing.
//
// What is lost. X keeps 11 bits down to 2^-17 of its block's largest, and is wrong by 2^-29 of it below. Tensor cores cut
// sums off (half_mma.cuh): 24 bits behind the largest product, where bits at places 6 .. 9, subnormal halves, count as
// 2^-14. So 4 bits of 24 are lost; at place 0 it would be 10. Places 7 .. 14 would leave X few bits. Errors: kernels/README.md.
//
// A warp takes `turns` tiles of 32 rows of W (lut_gemv/binary_tiles.py) one after the other, which come by cp.async through
// a ring of STAGES blocks of columns. The block of threads has its slice of x in shared memory.
// Groups of 32 and 64: PARTS of a block. Each has columns of B of its own, in which the words of other parts are zero.
// An inf or nan in a row of x: its whole y is nan, as t is inf or nan and no bit takes that away.
// Several slices: as in uniform_mma.cu.
//
// grid = (ceil(T / (WARPS turns)), slices of blocks, ceil(M / AT_ONCE)), 32 WARPS threads.
//
// Parameters: BITS (q) · PARTS 1, 2, 4 · TILES of 8 columns of B, 1, 2 or 4 · WARPS · STAGES · BLOCKS that shall share an
// SM · STAGE_BYTES, X_BYTES as the plan counts them · X_TYPE float, __half or bfloat_t · ALPHA_TYPE, OFFSET_TYPE float or
// __half · HAS_OFFSET 0, 1.

#include "../common.cuh"
#include "half_mma.cuh"
#include "x_halves.cuh"

constexpr int PLANES_AHEAD = TILES == 1 ? 4 : 1;             // whose code stands in a row: more take more registers
constexpr int PLANE_BYTES = 32 * 16;                         // of a tile and block: a uint4 a lane
constexpr int ALPHA_BYTES = PARTS * BITS * 32 * static_cast<int>(sizeof(ALPHA_TYPE));
constexpr int OFFSET_BYTES = HAS_OFFSET * PARTS * 32 * static_cast<int>(sizeof(OFFSET_TYPE));
static_assert(STAGE_BYTES == BITS * PLANE_BYTES + ALPHA_BYTES + OFFSET_BYTES, "the plan counts other stages");

// Where a lane reads next: blocks first .. last - 1 of a tile, then of the tile WARPS further on.
struct Source {
    const unsigned char *planes, *alpha, *offset;
    unsigned planes_gap, alpha_gap, offset_gap;  // bytes from a tile's end to the next one
    int tile, count, left, run, in_run, first_in_run;

    __device__ __forceinline__ void fetch_block(unsigned char *stage, int lane) {
        stage += lane * 16;
        fetch<BITS * PLANE_BYTES>(stage, planes, lane);
        fetch<ALPHA_BYTES>(stage + BITS * PLANE_BYTES, alpha, lane);
        fetch<OFFSET_BYTES>(stage + BITS * PLANE_BYTES + ALPHA_BYTES, offset, lane);
        planes += BITS * PLANE_BYTES;
        if (++in_run == run) {  // the next group, or the next PARTS groups
            in_run = 0;
            alpha += ALPHA_BYTES;
            offset += OFFSET_BYTES;
        }
        if (--left == 0) {
            left = count;
            in_run = first_in_run;
            planes += planes_gap;
            alpha += alpha_gap;
            offset += offset_gap;
            tile += WARPS;
        }
    }
};

__device__ __forceinline__ void add_scaled(float4 &sum, float of_x_y, float of_z_w, float4 value) {
    sum.x = fmaf(of_x_y, value.x, sum.x);
    sum.y = fmaf(of_x_y, value.y, sum.y);
    sum.z = fmaf(of_z_w, value.z, sum.z);
    sum.w = fmaf(of_z_w, value.w, sum.w);
}

// Adds a block of 128 columns. sums[t][h]: rows lane / 4 + 16 h (x, y) and 8 more (z, w), of columns 8 t + 2 (lane % 4)
// (x, z) and one more (y, w) of B.
__device__ __forceinline__ void multiply(float4 (&sums)[TILES][2], const unsigned char *stage, const uint4 *fragments,
                                         const float4 *pairs, int lane) {
    word_t b[TILES][16];
    float4 starts[TILES], block[TILES][2];
    int parts[TILES];  // of the lane's columns
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        const int column = t * 8 + lane / 4;
        const bool mine = PARTS == 1 || lane % 4 * PARTS / 4 == column / X_ROWS;
        parts[t] = PARTS == 1 ? 0 : (t * 8 + lane % 4 * 2) / X_ROWS;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint4 four = make_uint4(0, 0, 0, 0);
            if (mine) four = fragments[i * FRAGMENTS + column % X_ROWS * 4 + lane % 4];
            b[t][4 * i] = four.x;
            b[t][4 * i + 1] = four.y;
            b[t][4 * i + 2] = four.z;
            b[t][4 * i + 3] = four.w;
        }
        const float2 start = load2(reinterpret_cast<const float *>(pairs + t * 4 + lane % 4));
        starts[t] = make_float4(start.x, start.y, start.x, start.y);
#pragma unroll
        for (int h = 0; h < 2; h++) block[t][h] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#if HAS_OFFSET
        const auto *offset = reinterpret_cast<const OFFSET_TYPE *>(stage + BITS * PLANE_BYTES + ALPHA_BYTES);
        const float4 z = load4(offset + parts[t] * 32 + lane / 4 * 4);
        add_scaled(block[t][0], -z.x, -z.y, starts[t]);
        add_scaled(block[t][1], -z.z, -z.w, starts[t]);
#endif
    }
    const auto *alpha = reinterpret_cast<const ALPHA_TYPE *>(stage + BITS * PLANE_BYTES) + lane / 4 * 4;
#pragma unroll PLANES_AHEAD
    for (int plane = 0; plane < BITS; plane++) {
        const uint4 words = reinterpret_cast<const uint4 *>(stage + plane * PLANE_BYTES)[lane];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const word_t low = h ? words.z : words.x, high = h ? words.w : words.y;
            const word_t low_turned = __funnelshift_r(low, low, 8), high_turned = __funnelshift_r(high, high, 8);
            float4 dots[TILES];
#pragma unroll
            for (int t = 0; t < TILES; t++) dots[t] = starts[t];
#pragma unroll
            for (int s = 0; s < 16; s += 2) {
                Operands of;
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    of.a[2 * i] = (s < 8 ? low : low_turned) & 0x00010001u << place(s + i);
                    of.a[2 * i + 1] = (s < 8 ? high : high_turned) & 0x00010001u << place(s + i);
                }
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    of.b[0] = b[t][s];
                    of.b[1] = b[t][s + 1];
                    dots[t] = multiply_add(of, dots[t]);
                }
            }
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                const float4 scale = load4(alpha + (parts[t] * BITS + plane) * 32);
                add_scaled(block[t][h], h ? scale.z : scale.x, h ? scale.w : scale.y, dots[t]);
            }
        }
    }
#pragma unroll
    for (int t = 0; t < TILES; t++) {
        const float2 unit = load2(reinterpret_cast<const float *>(pairs + t * 4 + lane % 4) + 2);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            sums[t][h].x = fmaf(unit.x, block[t][h].x, sums[t][h].x);
            sums[t][h].y = fmaf(unit.y, block[t][h].y, sums[t][h].y);
            sums[t][h].z = fmaf(unit.x, block[t][h].z, sums[t][h].z);
            sums[t][h].w = fmaf(unit.y, block[t][h].w, sums[t][h].w);
        }
    }
}

// Adds the parts; what stays are columns 0 .. X_ROWS - 1, in the lanes that have them.
__device__ __forceinline__ void add_parts(float4 (&sums)[TILES][2]) {
    constexpr int KEPT = (X_ROWS + 7) / 8;
#pragma unroll
    for (int t = 0; t < KEPT; t++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float4 &sum = sums[t][h];
#pragma unroll
            for (int other = t + KEPT; other < TILES; other += KEPT) add_scaled(sum, 1.0f, 1.0f, sums[other][h]);
#pragma unroll
            for (int lanes = 2; lanes >= X_ROWS / 2; lanes /= 2)
                add_scaled(sum, 1.0f, 1.0f,
                           make_float4(__shfl_xor_sync(0xffffffffu, sum.x, lanes), __shfl_xor_sync(0xffffffffu, sum.y, lanes),
                                       __shfl_xor_sync(0xffffffffu, sum.z, lanes), __shfl_xor_sync(0xffffffffu, sum.w, lanes)));
        }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
lut_gemv_half_bits(const word_t *planes,            // [T][C][BITS][32][4]
                   const ALPHA_TYPE *alpha,         // [T][G][BITS][32]
                   const OFFSET_TYPE *offset,       // [T][G][32], if HAS_OFFSET
                   const X_TYPE *x,                 // [M][K]
                   X_TYPE *y,                       // [M][N]
                   float *partial,                  // [M][slices][32 WARPS turns gridDim.x], if there are several slices
                   unsigned *arrived,               // [ceil(M / AT_ONCE)][gridDim.x], zeros
                   int all,                         // M
                   int rows,                        // N
                   int columns,                     // K
                   int blocks,                      // C
                   int turns,                       // tiles of a warp
                   int slice,                       // blocks of a slice
                   int groups,                      // G, a multiple of PARTS
                   int span,                        // columns of `run` blocks, which begin together
                   int run)                         // blocks of a group, 1 where groups share one
{
    DYNAMIC_SHARED(unsigned char, memory);   // words of B and pairs of `slice` blocks, rings [WARPS][STAGES] of STAGE_BYTES
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slices = gridDim.y;
    const int from = blockIdx.z * AT_ONCE, m = min(all - from, AT_ONCE);
    const int first = blockIdx.y * slice, last = min(first + slice, blocks);
    uint4 *const fragments = reinterpret_cast<uint4 *>(memory);
    float4 *const pairs = reinterpret_cast<float4 *>(fragments + slice * 4 * FRAGMENTS);
    unsigned char *const ring = memory + slice * X_BYTES + warp * STAGES * STAGE_BYTES;

    const int tiles = (rows + 31) / 32, first_tile = blockIdx.x * turns * WARPS + warp;
    const int end_tile = min(first_tile + turns * WARPS, tiles);
    const size_t begin = static_cast<size_t>(first_tile) * blocks + first;
    const int first_group = first / run, runs = last / run - first_group, gap = WARPS * (groups / PARTS) - runs;
    const size_t group = static_cast<size_t>(first_tile) * groups + first_group * PARTS;
    Source next = {reinterpret_cast<const unsigned char *>(planes + begin * BITS * 128) + lane * 16,
                   reinterpret_cast<const unsigned char *>(alpha + group * BITS * 32) + lane * 16,
                   reinterpret_cast<const unsigned char *>(offset + group * 32) + lane * 16,
                   static_cast<unsigned>(WARPS * blocks - (last - first)) * (BITS * PLANE_BYTES),
                   static_cast<unsigned>(gap) * ALPHA_BYTES, static_cast<unsigned>(gap) * OFFSET_BYTES,
                   first_tile, last - first, last - first, run, first % run, first % run};
    const auto fetch_next = [&](int slot) {
        if (next.tile < end_tile) next.fetch_block(ring + slot * STAGE_BYTES, lane);
        copy_commit();
    };
#pragma unroll 1
    for (int s = 0; s < STAGES - 1; s++) fetch_next(s);
    load_x(fragments, pairs, x + static_cast<size_t>(from) * columns, m, first, last - first, columns, span, run);
    __syncthreads();

    const int stride = 32 * WARPS * turns * gridDim.x;
    int slot = 0;
#pragma unroll 1
    for (int tile = first_tile; tile < end_tile; tile += WARPS) {
        float4 sums[TILES][2] = {};
        for (int block = 0; block < last - first; block++) {
            copy_wait<STAGES - 2>();
            __syncwarp();  // all lanes have what they fetched, and none still reads the stage that is fetched next
            fetch_next(slot == 0 ? STAGES - 1 : slot - 1);
            multiply(sums, ring + slot * STAGE_BYTES, fragments + block * 4 * FRAGMENTS, pairs + block * PAIRS, lane);
            slot = slot == STAGES - 1 ? 0 : slot + 1;
        }
        add_parts(sums);
#pragma unroll
        for (int t = 0; t < (X_ROWS + 7) / 8; t++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const float4 sum = sums[t][h];
                const float of[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
                for (int i = 0; i < 4; i += HALVES) {
                    const int n = (t * 8 + lane % 4 * 2 + i % 2) / HALVES, row = tile * 32 + 16 * h + i / 2 * 8 + lane / 4;
                    const float value = 32.0f * (HALVES == 2 ? of[i] + of[i + HALVES - 1] : of[i]);
                    if (n >= m || lane % 4 * 2 >= X_ROWS) continue;
                    put(y, partial, from + n, row, rows, slices, stride, value);
                }
            }
    }
    if (slices == 1 || !last_to_arrive(arrived + blockIdx.z * gridDim.x + blockIdx.x, slices)) return;
    const int fours = 8 * WARPS * turns;  // of rows
    for (int item = threadIdx.x; item < fours * m; item += 32 * WARPS) {
        const size_t n = from + item / fours;
        const int row = (blockIdx.x * fours + item % fours) * 4;
        if (row >= rows) continue;
        const float4 sum = sum_of_slices(partial + n * slices * stride + row, slices, stride);
        const float of[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (row + i < rows) y[n * rows + row + i] = round_to(of[i], X_TYPE());
    }
}
