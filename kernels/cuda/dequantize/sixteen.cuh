// 16 neighbours of a row of a dense matrix, written by a thread. Parameters: OUT_TYPE float, __half or bfloat_t.

#include "../common.cuh"

struct alignas(16) Sixteen {
    OUT_TYPE of[16];
};

// Columns first .. first + 15 of a row, those before `columns`; -0, of no scale, as 0.
__device__ __forceinline__ void write_sixteen(OUT_TYPE *row, const float (&values)[16], int first, int columns) {
    Sixteen all;
#pragma unroll
    for (int j = 0; j < 16; j++) all.of[j] = round_to(values[j] + 0.0f, OUT_TYPE());
    if (columns % 16 == 0) {
        *reinterpret_cast<Sixteen *>(row + first) = all;
        return;
    }
#pragma unroll
    for (int j = 0; j < 16; j++)
        if (first + j < columns) row[first + j] = all.of[j];
}
