// The few words that all CUDA kernels share. codegen/cuda.py puts this file in the place of its #include.
//
// A kernel must also compile as plain C++ (tests/kernels/gpu/cuda_on_host runs it on a CPU): what needs PTX stands here
// once, behind one function, with its twin for the host; __CUDACC__ says which of the two is being compiled.

#ifdef __CUDACC__
#include <cuda_fp16.h>

// Shared memory whose size the launch gives, aligned to 128 bytes.
#define DYNAMIC_SHARED(type, name) \
    extern __shared__ __align__(128) unsigned char dynamic_shared[]; \
    type *const name = reinterpret_cast<type *>(dynamic_shared)
#endif

typedef unsigned int word_t;  // 32 weights of a plane, bit k % 32

// ---- numbers ----

// A bfloat16: the upper half of a float. It is only read and written, never computed in, which needs no header of CUDA's.
struct bfloat_t {
    unsigned short bits;
};

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(bfloat_t value) {
    return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
}

// round_to(value, T()) is value as a T: the nearest, ties to even; what is no number stays none.
__device__ __forceinline__ float round_to(float value, float) { return value; }
__device__ __forceinline__ __half round_to(float value, __half) { return __float2half_rn(value); }
__device__ __forceinline__ bfloat_t round_to(float value, bfloat_t) {
    const unsigned bits = __float_as_uint(value), nearest = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return {static_cast<unsigned short>(value != value ? 0x7fffu : nearest)};
}

// Whether sums of a few x may be beyond the range of a float, as x itself may be beyond that of a half.
template <class T> struct Wide { static constexpr bool value = true; };
template <> struct Wide<__half> { static constexpr bool value = false; };

// Two and four neighbours as float; the address is aligned to all of them.
__device__ __forceinline__ float2 load2(const float *at) { return *reinterpret_cast<const float2 *>(at); }
__device__ __forceinline__ float2 load2(const __half *at) {
    return __half22float2(*reinterpret_cast<const __half2 *>(at));
}
__device__ __forceinline__ float4 load4(const float *at) { return *reinterpret_cast<const float4 *>(at); }
__device__ __forceinline__ float4 load4(const __half *at) {
    const float2 low = load2(at), high = load2(at + 2);
    return make_float4(low.x, low.y, high.x, high.y);
}

// Four neighbours as they are loaded: made float where they are used, so that nothing waits for the load before.
template <class T> struct Four;
template <> struct Four<float> { uint4 raw; };
template <> struct Four<__half> { uint2 raw; };

__device__ __forceinline__ Four<float> load_four(const float *at) {
    return {__ldg(reinterpret_cast<const uint4 *>(at))};
}
__device__ __forceinline__ Four<__half> load_four(const __half *at) {
    return {__ldg(reinterpret_cast<const uint2 *>(at))};
}
template <class T>
__device__ __forceinline__ float4 widen(const Four<T> &four) { return load4(reinterpret_cast<const T *>(&four)); }

// 2^e for -126 <= e <= 127
__device__ __forceinline__ float power_of_two(int e) { return __int_as_float((e + 127) << 23); }

// The power of two by which all |x| <= largest are divided so that they are below 2^bits, 0 < bits <= 16; the least
// that does, but for largest < 2^-110, so that its inverse is a float.
__device__ __forceinline__ float unit_below(float largest, int bits) {
    const int exponent = static_cast<int>(__float_as_uint(largest) >> 23) - 127;  // largest < 2^(exponent + 1)
    return power_of_two(max(exponent, -110) + 1 - bits);
}

// ---- loads of weights, which are read once: they shall not push x and tables out of the L1 cache ----

#ifdef __CUDACC__
__device__ __forceinline__ uint4 load_stream(const uint4 *at) {
    uint4 v;
    asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(at));
    return v;
}
#else
static inline uint4 load_stream(const uint4 *at) { return *at; }
#endif

// ---- copies to shared memory that a thread does not wait for: start, close the batch, wait until N are left open ----

#ifdef __CUDACC__
__device__ __forceinline__ void copy_16_async(void *shared, const void *global) {
    const unsigned at = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(global) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#else
static inline void copy_16_async(void *shared, const void *global) { cuda_on_host::copy_start(shared, global, 16); }
static inline void copy_commit() { cuda_on_host::copy_commit(); }
template <int N>
static inline void copy_wait() { cuda_on_host::copy_wait(N); }
#endif

// By a warp: BYTES, from a lane's first 16 on, 16 a lane, not waited for.
template <int BYTES>
__device__ __forceinline__ void fetch(unsigned char *shared, const unsigned char *global, int lane) {
#pragma unroll
    for (int at = 0; at < BYTES; at += 512)
        if (at + 512 <= BYTES || lane * 16 < BYTES - at) copy_16_async(shared + at, global + at);
}

// ---- a warp and a block ----

// The sum, or largest, of one value a lane, in every lane; always in the same order.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(0xffffffffu, value, lanes);
    return value;
}
__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, lanes));
    return value;
}

// Whether this block is the last of `blocks` to come here with this counter; all its threads call it, after the block
// has written its partial sums. Then the sums of all blocks can be read, with __ldcg. The counter starts at zero and
// is zero again after the last block, so that a graph can be replayed.
__device__ __forceinline__ bool last_to_arrive(unsigned *counter, unsigned blocks) {
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) last = atomicInc(counter, blocks - 1) == blocks - 1;
    __syncthreads();
    __threadfence();
    return last;
}

// partial[0], partial[1], ... one stride after the other, added in this order, of four rows; 16 bytes aligned. Many slices
// are read at once, since reading is all that this does.
__device__ __forceinline__ float4 sum_of_slices(const float *partial, int slices, int stride) {
    constexpr int AT_ONCE = 12;
    float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int s = 0; s < slices; s += AT_ONCE) {
        float4 parts[AT_ONCE];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            parts[i] = s + i < slices ? __ldcg(reinterpret_cast<const float4 *>(partial + static_cast<size_t>(s + i) * stride))
                                      : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            sums.x += parts[i].x;
            sums.y += parts[i].y;
            sums.z += parts[i].z;
            sums.w += parts[i].w;
        }
    }
    return sums;
}

// y[n] for rows first .. end - 1 of which there are partial sums; by a block. first and stride are multiples of 4.
template <class T>
__device__ __forceinline__ void add_slices(T *y, const float *partial, int slices, int stride, int first, int end) {
    for (int n = first + 4 * static_cast<int>(threadIdx.x); n < end; n += 4 * static_cast<int>(blockDim.x)) {
        const float4 sums = sum_of_slices(partial + n, slices, stride);
        const float of[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (n + i < end) y[n + i] = round_to(of[i], T());
    }
}

// y[m][n], or of several slices what this one has of it: partial[m][slice][n], whose rows are `stride` long.
template <class T>
__device__ __forceinline__ void put(T *y, float *partial, int m, int n, int rows, int slices, int stride, float value) {
    if (slices > 1)
        __stcg(partial + (static_cast<size_t>(m) * slices + blockIdx.y) * stride + n, value);
    else if (n < rows)
        y[static_cast<size_t>(m) * rows + n] = round_to(value, T());
}

// y of `count` rows of x from `from` on, rows first .. first + each - 1 of W, of what slices have put; by a block.
template <class T>
__device__ __forceinline__ void add_put(T *y, const float *partial, int from, int count, int first, int each, int rows,
                                        int slices, int stride) {
    for (int i = threadIdx.x; i < each * count; i += blockDim.x) {
        const size_t m = from + i / each;
        const int n = first + i % each;
        if (n >= rows) continue;
        float sum = 0.0f;
        for (int s = 0; s < slices; s++) sum += __ldcg(partial + (m * slices + s) * stride + n);
        y[m * rows + n] = round_to(sum, T());
    }
}

// The sum of a value of the four lanes 4 r .. 4 r + 3.
__device__ __forceinline__ float of_four_lanes(float value) {
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// ---- binary tensor cores ----

// d[i][j] = number of k with a[i][k] = b[k][j] = 1, for 16 x 128 and 128 x 8 bits: mma.m16n8k128 ... and.popc. A lane has
// a0 = row lane / 4, a1 = row lane / 4 + 8, b = column lane / 4: of each the bits k = 32 (lane % 4) + 0 .. 31. It gets
// rows lane / 4 (x, y) and lane / 4 + 8 (z, w), of each the columns 2 (lane % 4) and 2 (lane % 4) + 1.
#ifdef __CUDACC__
__device__ __forceinline__ int4 popc_mma(word_t a0, word_t a1, word_t b) {
    int4 d;
    asm("mma.sync.aligned.m16n8k128.row.col.s32.b1.b1.s32.and.popc {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=r"(d.x), "=r"(d.y), "=r"(d.z), "=r"(d.w)
        : "r"(a0), "r"(a1), "r"(b), "r"(0));
    return d;
}
#else
static inline int4 popc_mma(word_t a0, word_t a1, word_t b) {
    struct Fragment { word_t a0, a1, b; };
    const auto all = cuda_on_host::lanes(0xffffffffu, Fragment{a0, a1, b});
    const unsigned row = cuda_on_host::lane() / 4 * 4, column = cuda_on_host::lane() % 4 * 8;
    int4 d = {0, 0, 0, 0};
    for (unsigned w = 0; w < 4; w++) {
        const Fragment left = all[row + w];
        const word_t even = all[column + w].b, odd = all[column + 4 + w].b;
        d.x += __popc(left.a0 & even);
        d.y += __popc(left.a0 & odd);
        d.z += __popc(left.a1 & even);
        d.w += __popc(left.a1 & odd);
    }
    return d;
}
#endif
