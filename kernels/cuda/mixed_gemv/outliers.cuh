// Outliers of 2/4/16-bit weights, added to the sums of a tile of 16 rows by all threads of a block (tiles.cuh).
//
// Parameters: AHEAD outliers of a thread that are loaded when a tile begins · BATCH · WARPS · X_TYPE.

#include "../common.cuh"
#include "x_groups.cuh"

constexpr int LANES = 2 * WARPS;  // threads of a row

// Of the row threadIdx.x / LANES of a tile, those of a thread: value << 16 | column in the order of slots.
struct Outliers {
    const unsigned *entries;
    int begin, end;
    unsigned ahead[AHEAD > 0 ? AHEAD : 1];

    __device__ __forceinline__ void find(const int *first, int tile, int rows) {
        const int n = tile * 16 + threadIdx.x / LANES;
        begin = n < rows ? first[n] + threadIdx.x % LANES : 0;
        end = n < rows ? first[n + 1] : 0;
    }
    __device__ __forceinline__ void load(int from) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            ahead[i] = from + i * LANES < end ? __ldg(entries + from + i * LANES) : 0u;
    }
    // Of all of the row's, by the row's first thread.
    __device__ __forceinline__ void add(float (&sums)[BATCH], const XGroups &x, int start) {
#pragma unroll
        for (int m = 0; m < BATCH; m++) sums[m] = 0.0f;
        for (int from = begin; from < end; from += AHEAD * LANES) {
            if (from > begin) load(from);
#pragma unroll
            for (int i = 0; i < AHEAD; i++) {
                const int column = static_cast<int>(ahead[i] & 0xffffu) - start;
                const float value = to_float(__ushort_as_half(static_cast<unsigned short>(ahead[i] >> 16)));
                const bool here = column >= 0 && column < x.blocks * 64 && from + i * LANES < end;
                const __half *const at = x.values + (here ? column / 64 * BLOCK_HALVES + column % 64 : 0);
#pragma unroll
                for (int s = 0; s < SLOTS; s++)
                    sums[s / PARTS] = fmaf(here ? value : 0.0f, to_float(at[s * x.slot]), sums[s / PARTS]);
            }
        }
#pragma unroll
        for (int m = 0; m < BATCH; m++)
#pragma unroll
            for (int lanes = 1; lanes < LANES; lanes *= 2) sums[m] += __shfl_xor_sync(0xffffffffu, sums[m], lanes);
    }
};
