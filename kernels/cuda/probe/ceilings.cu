// What a GPU can do at most, one resource a kernel: reading, lookups in shared memory, tensor cores, atomics.
//
// benchmarks/gpu_ceilings.py launches them and tells rates; each checks one term of the model that kernels/README.md
// rests on. Results are written so that no work can be left out. Needs PTX: these kernels are compiled, and never run
// on a CPU.
//
// Parameters: THREADS · REPEATS of the inner loop · STRIDE in bytes between two of the ENTRIES of a lookup table ·
// ENTRY bytes of one, 2 or 4 · PRIVATE 0: lanes share a table, 1: each has its own in its bank.

#include "../common.cuh"

// Reads `count` uint4; grid-stride. grid: any.
extern "C" __global__ void __launch_bounds__(THREADS) read_all(const uint4 *from, unsigned *sink, long long count) {
    unsigned sum = 0;
    const long long step = static_cast<long long>(gridDim.x) * THREADS;
    for (long long i = static_cast<long long>(blockIdx.x) * THREADS + threadIdx.x; i < count; i += 4 * step) {
        uint4 loaded[4];
#pragma unroll
        for (int j = 0; j < 4; j++) loaded[j] = i + j * step < count ? load_stream(from + i + j * step) : make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < 4; j++) sum ^= loaded[j].x ^ loaded[j].y ^ loaded[j].z ^ loaded[j].w;
    }
    if (sum == 0x12345678u) *sink = sum;  // hardly ever
}

// Lookups, 4 REPEATS a thread, in 4 chains: an entry is the byte of the next one to look up, so that a lookup is one
// instruction, and a warp's takes as many clocks as it has wavefronts once enough of them are under way. next is a
// permutation: lanes that begin at different entries never meet. cycles: of each block.
extern "C" __global__ void __launch_bounds__(THREADS)
look_up(const unsigned *next, const unsigned *first, unsigned *sink, long long *cycles) {
    __shared__ unsigned words[8192];
    unsigned char *const tables = reinterpret_cast<unsigned char *>(words);
    for (int i = threadIdx.x; i < ENTRIES * (PRIVATE ? 32 : 1); i += THREADS) {
        const unsigned table = i / ENTRIES * 4, then = next[i % ENTRIES] * STRIDE + table;
        unsigned char *const entry = tables + i % ENTRIES * STRIDE + table;
        if (ENTRY == 2)
            *reinterpret_cast<unsigned short *>(entry) = static_cast<unsigned short>(then);
        else
            *reinterpret_cast<unsigned *>(entry) = then;
    }
    __syncthreads();
    const int thread = blockIdx.x * THREADS + threadIdx.x;
    unsigned at[4];
    for (int j = 0; j < 4; j++) at[j] = first[4 * thread + j] % ENTRIES * STRIDE + (PRIVATE ? threadIdx.x % 32 * 4 : 0);
    const long long before = clock64();
#pragma unroll 16
    for (int i = 0; i < REPEATS; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            at[j] = ENTRY == 2 ? *reinterpret_cast<const unsigned short *>(tables + at[j])
                               : *reinterpret_cast<const unsigned *>(tables + at[j]);
    sink[thread] = at[0] + at[1] + at[2] + at[3];
    if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - before;
}

#ifdef __CUDACC__
#define RATE(name, instruction, accumulator, type) \
    extern "C" __global__ void __launch_bounds__(THREADS) name(unsigned *sink, long long *cycles) { \
        const unsigned a = threadIdx.x * 0x9e3779b9u, b = a ^ 0x85ebca6bu; \
        type d[4][4] = {}; \
        const long long before = clock64(); \
        for (int i = 0; i < REPEATS; i++) { \
            _Pragma("unroll") for (int j = 0; j < 4; j++) \
                asm volatile(instruction \
                             : "+" accumulator(d[j][0]), "+" accumulator(d[j][1]), "+" accumulator(d[j][2]), \
                               "+" accumulator(d[j][3]) \
                             : "r"(a), "r"(b), "r"(a + 1), "r"(b + 1), "r"(a), "r"(b)); \
        } \
        if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - before; \
        type sum = 0; \
        for (int j = 0; j < 16; j++) sum += d[j / 4][j % 4]; \
        sink[blockIdx.x * THREADS + threadIdx.x] = static_cast<unsigned>(sum); \
    }
#define TO_D "{%0, %1, %2, %3}, "
RATE(bmma_k128, "mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.and.popc " TO_D "{%4, %5}, {%6}, {%0, %1, %2, %3};",
     "r", int)
RATE(bmma_k256,
     "mma.sync.aligned.m16n8k256.row.col.s32.b1.b1.s32.and.popc " TO_D "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};",
     "r", int)
RATE(imma_k32, "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 " TO_D "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};",
     "r", int)
RATE(hmma_k16, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 " TO_D "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};",
     "f", float)
#endif

// Each thread adds REPEATS times, neighbours beside each other, every turn elsewhere in `count` cells.
extern "C" __global__ void __launch_bounds__(THREADS) add_floats(float *cells, int count) {
    int at = blockIdx.x * THREADS + threadIdx.x;
    for (int i = 0; i < REPEATS; i++) {
        atomicAdd(cells + at % count, 1.0f);
        at += gridDim.x * THREADS;
    }
}
extern "C" __global__ void __launch_bounds__(THREADS) add_half_pairs(__half2 *cells, int count) {
    int at = blockIdx.x * THREADS + threadIdx.x;
    for (int i = 0; i < REPEATS; i++) {
        atomicAdd(cells + at % count, __float2half2_rn(1.0f));
        at += gridDim.x * THREADS;
    }
}
