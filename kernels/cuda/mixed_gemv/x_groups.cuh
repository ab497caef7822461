// Rows of x as operands of tensor cores that multiply groups of 16 columns, four of them a block (tiles.cuh).
//
//     x[k] = unit X[k]     unit: 1 where x is half, else the power of two of a row with max |X| < 2^15
//
// X is a half; of float32 x two, the nearest and what it lacks (PARTS), each in a slot of its own. A slot has the block's
// 64 columns in the order of pairs of codes: word j of a group of 2 bits is columns j and j + 8; of one of 4 bits that is
// a block's last (WIDE_LAST) j % 4 + 8 (j / 4) and 4 more. `source` says which 16 channels a group is; where it is none,
// and behind K, x is 0.
//
// Parameters: BATCH rows of x · WARPS · X_TYPE float, __half or bfloat_t.

#include "../common.cuh"
#include "../lut_gemv/half_mma.cuh"

constexpr int PARTS = sizeof(X_TYPE) == 4 ? 2 : 1;  // halves of an x
constexpr int SLOTS = BATCH * PARTS;
constexpr int PAIRS = (SLOTS + 1) / 2;              // of slots, which share a product
constexpr int GROUP = 16, GROUPS = 4;               // columns of a group; its block's groups, the last of 4 bits
constexpr int BLOCK_HALVES = GROUP * GROUPS + 8;    // 16 bytes more than it has: four blocks lie in different banks
constexpr int THREADS = 32 * WARPS;

// A slice of x in shared memory.
struct XGroups {
    __half *values;   // [SLOTS][slot], a block every BLOCK_HALVES, and a block of zeros
    float *totals;    // [blocks][BATCH][GROUPS]: sums of X
    int slot;         // halves of a slot: an odd number of 64 bytes, so that two slots lie in different banks
    int blocks;

    __device__ __forceinline__ XGroups(unsigned char *shared, int blocks)
        : values(reinterpret_cast<__half *>(shared)), slot((blocks * BLOCK_HALVES / 32 | 1) * 32), blocks(blocks) {
        totals = reinterpret_cast<float *>(values + zeros() + BLOCK_HALVES);
    }
    __device__ __forceinline__ int zeros() const { return SLOTS * slot; }
    __device__ __forceinline__ unsigned char *behind() const {
        return reinterpret_cast<unsigned char *>(totals + blocks * BATCH * GROUPS);
    }
};

// 16 channels from `first` on as floats; zeros behind `columns`, and all of them where first < 0.
__device__ __forceinline__ void load_group(float (&values)[GROUP], const X_TYPE *x, int first, int columns, bool vectors) {
    constexpr int EACH = 16 / sizeof(X_TYPE);
    struct alignas(16) Vector {
        X_TYPE of[EACH];
    };
    if (vectors && first >= 0 && first + GROUP <= columns) {
#pragma unroll
        for (int v = 0; v < GROUP / EACH; v++) {
            const Vector vector = reinterpret_cast<const Vector *>(x + first)[v];
#pragma unroll
            for (int i = 0; i < EACH; i++) values[v * EACH + i] = to_float(vector.of[i]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < GROUP; i++) values[i] = first >= 0 && first + i < columns ? to_float(x[first + i]) : 0.0f;
}

// The halves of a group in every slot of its row, and its total.
__device__ __forceinline__ void write_group(__half *at, int slot, float *total, const float (&values)[GROUP], bool wide) {
    float left[GROUP], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < GROUP; i++) left[i] = values[i];
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        unsigned words[8];
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int narrow = j, of_wide = j % 4 + j / 4 * 8;
            const float low = wide ? left[of_wide] : left[narrow], high = wide ? left[of_wide + 4] : left[narrow + 8];
            words[j] = as_word(__floats2half2_rn(low, high));
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float2 kept = __half22float2(as_halves(words[j]));
            sum += kept.x + kept.y;
            if (part + 1 == PARTS) continue;
            const int of_wide = j % 4 + j / 4 * 8;
            if (wide) left[of_wide] -= kept.x, left[of_wide + 4] -= kept.y;
            else left[j] -= kept.x, left[j + 8] -= kept.y;
        }
        uint4 *const to = reinterpret_cast<uint4 *>(at + part * slot);
        to[0] = make_uint4(words[0], words[1], words[2], words[3]);
        to[1] = make_uint4(words[4], words[5], words[6], words[7]);
    }
    *total = sum;
}

// The slice of `count` rows of x, whose blocks begin at source[0]; by a block of threads. units: of each row.
__device__ __forceinline__ void load_x(const XGroups &to, float *units, const X_TYPE *x, const int *source, int count,
                                       int columns) {
    const int groups = to.blocks * GROUPS;
    const bool vectors = columns % (16 / sizeof(X_TYPE)) == 0;
    for (int k = threadIdx.x; k < BLOCK_HALVES; k += THREADS) to.values[to.zeros() + k] = __float2half_rn(0.0f);
    float values[GROUP];
    if (Wide<X_TYPE>::value) {
        __shared__ unsigned largest[BATCH * WARPS];  // bits of |x|: as numbers they are in the order of floats
        for (int m = 0; m < BATCH; m++) {
            unsigned bits = 0;
            for (int group = threadIdx.x; group < groups; group += THREADS) {
                load_group(values, x + static_cast<size_t>(min(m, count - 1)) * columns, source[group] * GROUP, columns, vectors);
#pragma unroll
                for (int i = 0; i < GROUP; i++) bits = max(bits, __float_as_uint(fabsf(values[i])));
            }
            bits = __reduce_max_sync(0xffffffffu, bits);
            if (threadIdx.x % 32 == 0) largest[m * WARPS + threadIdx.x / 32] = bits;
        }
        __syncthreads();
        if (threadIdx.x < BATCH) {
            unsigned bits = 0;
            for (int w = 0; w < WARPS; w++) bits = max(bits, largest[threadIdx.x * WARPS + w]);
            units[threadIdx.x] = unit_below(__uint_as_float(bits), 15);
        }
        __syncthreads();
    }
    for (int item = threadIdx.x; item < groups * BATCH; item += THREADS) {
        const int m = item / groups, group = item % groups;
        load_group(values, x + static_cast<size_t>(m) * columns, m < count ? source[group] * GROUP : -GROUP, columns, vectors);
        if (Wide<X_TYPE>::value) {
            const float per_unit = 1.0f / units[m];
#pragma unroll
            for (int i = 0; i < GROUP; i++) values[i] *= per_unit;
        }
        write_group(to.values + m * PARTS * to.slot + group / GROUPS * BLOCK_HALVES + group % GROUPS * GROUP, to.slot,
                    to.totals + (group / GROUPS * BATCH + m) * GROUPS + group % GROUPS, values,
                    WIDE_LAST && group % GROUPS == GROUPS - 1);
    }
    __syncthreads();
}
