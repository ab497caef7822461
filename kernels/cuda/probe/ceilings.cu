// What a GPU can do at most, one resource a kernel: reading, lookups in shared memory, tensor cores, atomics.
//
// benchmarks/gpu_ceilings.py launches them and tells rates; each checks one term of the model that kernels/README.md
// rests on. Results are written so that no work can be left out. Needs PTX: these kernels are compiled, and never run
// on a CPU.
//
// Parameters: THREADS · REPEATS of the inner loop · STRIDE in bytes between two entries of a lookup table · ENTRY bytes
// of an entry, 2 or 4 · MASK of an index, entries - 1 · PRIVATE 0: lanes share a table, 1: each has its own in its bank.

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

// Lookups at random, 4 REPEATS a thread; 32 kB of tables. cycles: of each block.
extern "C" __global__ void __launch_bounds__(THREADS) look_up(const unsigned *random, unsigned *sink, long long *cycles) {
    __shared__ unsigned char tables[32768];
    for (int i = threadIdx.x; i < 8192; i += THREADS) reinterpret_cast<unsigned *>(tables)[i] = i;
    __syncthreads();
    unsigned index = random[blockIdx.x * THREADS + threadIdx.x], sum = 0;
    const unsigned lane = PRIVATE ? threadIdx.x % 32 * 4 : 0;
    const long long before = clock64();
    for (int i = 0; i < REPEATS; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const unsigned at = ((index >> 8 * j & MASK) * STRIDE + lane) % 32768u;
            sum += ENTRY == 2 ? *reinterpret_cast<unsigned short *>(tables + at) : *reinterpret_cast<unsigned *>(tables + at);
        }
        index = index * 1664525u + 1013904223u;
    }
    if (threadIdx.x == 0) cycles[blockIdx.x] = clock64() - before;
    sink[blockIdx.x * THREADS + threadIdx.x] = sum;
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
