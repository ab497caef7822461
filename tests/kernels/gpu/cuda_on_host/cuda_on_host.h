// What a .cu file below kernels/cuda needs of CUDA, for a C++ compiler: every thread of a block is a fiber
// (scheduler.cpp), so that barriers, warp collectives, shared memory and atomics do what they do on a GPU.
// Included before the kernel. No standard header: a kernel is compiled for many parameters, each in a moment.

#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __constant__ static const
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// Of a section of its own, so that the scheduler can poison it before each block.
#define __shared__ static __attribute__((section("cuda_shared"), aligned(128)))
#define DYNAMIC_SHARED(type, name) type *const name = static_cast<type *>(cuda_on_host::dynamic_shared())

struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static constexpr int warpSize = 32;

namespace cuda_on_host {
constexpr int SLOT = 64;                    // bytes between the lanes' values of an exchange
void *dynamic_shared();
void barrier(int line);                     // of the block
// Give `bytes` to the lanes of `mask` and get theirs: [32][SLOT], valid until the next exchange of this thread.
const unsigned char *exchange(unsigned mask, const void *mine, int bytes, int line);
unsigned lane();
void copy_start(void *to, const void *from, int bytes);
void copy_commit();
void copy_wait(int open);
[[noreturn]] void fail(const char *cause);

template <class T>
struct Lanes {                              // what every lane gave
    const unsigned char *at;
    T operator[](unsigned lane) const {
        T value;
        memcpy(&value, at + lane % 32 * SLOT, sizeof value);
        return value;
    }
};
template <class T>
inline Lanes<T> lanes(unsigned mask, const T &mine, int line = __builtin_LINE()) {
    static_assert(sizeof(T) <= SLOT, "an exchange holds 64 bytes");
    return {exchange(mask, &mine, sizeof(T), line)};
}
template <class T>
inline T of_lane(unsigned mask, const T &mine, unsigned from, int line) {
    const Lanes<T> all = lanes(mask, mine, line);
    if (from < 32 && !(mask >> from & 1)) fail("a shuffle reads a lane that is not in its mask");
    return from < 32 ? all[from] : mine;
}
}  // namespace cuda_on_host

// ---- the block ----
static inline void __syncthreads(int line = __builtin_LINE()) { cuda_on_host::barrier(line); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}

// ---- the warp ----
#define SHUFFLE(name, from) \
    template <class T> \
    static inline T name(unsigned mask, T value, unsigned by, int width = 32, int line = __builtin_LINE()) { \
        const unsigned lane = cuda_on_host::lane(), first = lane / width * width; \
        const unsigned source = from; \
        return cuda_on_host::of_lane(mask, value, source >= first && source < first + width ? source : lane, line); \
    }
SHUFFLE(__shfl_sync, first + by % width)
SHUFFLE(__shfl_xor_sync, lane ^ by)
SHUFFLE(__shfl_down_sync, lane + by)
SHUFFLE(__shfl_up_sync, lane - by)
#undef SHUFFLE
static inline void __syncwarp(unsigned mask = ~0u, int line = __builtin_LINE()) {
    cuda_on_host::lanes(mask, 0, line);
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    const auto all = cuda_on_host::lanes<int>(mask, predicate != 0, line);
    unsigned votes = 0;
    for (unsigned lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && all[lane]) votes |= 1u << lane;
    return votes;
}
static inline int __any_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return __ballot_sync(mask, predicate, line) != 0;
}
static inline int __all_sync(unsigned mask, int predicate, int line = __builtin_LINE()) {
    return __ballot_sync(mask, predicate, line) == mask;
}
static inline unsigned __reduce_max_sync(unsigned mask, unsigned value, int line = __builtin_LINE()) {
    const auto all = cuda_on_host::lanes(mask, value, line);
    unsigned most = 0;
    for (unsigned lane = 0; lane < 32; lane++)
        if (mask >> lane & 1 && all[lane] > most) most = all[lane];
    return most;
}

// ---- numbers ----
extern "C" {
float fmaf(float, float, float) noexcept;
float fmaxf(float, float) noexcept;
float fminf(float, float) noexcept;
float fabsf(float) noexcept;
float rintf(float) noexcept;
float floorf(float) noexcept;
float sqrtf(float) noexcept;
float ldexpf(float, int) noexcept;
}
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }
static inline float __int_as_float(int bits) { float f; memcpy(&f, &bits, 4); return f; }
static inline float __uint_as_float(unsigned bits) { return __int_as_float(static_cast<int>(bits)); }
static inline int __float_as_int(float value) { int i; memcpy(&i, &value, 4); return i; }
static inline unsigned __float_as_uint(float value) { return static_cast<unsigned>(__float_as_int(value)); }
static inline int __float2int_rn(float value) { return static_cast<int>(rintf(value)); }
static inline float __int2float_rn(int value) { return static_cast<float>(value); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline int __popc(unsigned value) { return __builtin_popcount(value); }
static inline int __clz(int value) { return value ? __builtin_clz(static_cast<unsigned>(value)) : 32; }
static inline int __ffs(int value) { return __builtin_ffs(value); }
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
    return static_cast<unsigned>((static_cast<uint64_t>(high) << 32 | low) >> (by % 32));
}
static inline unsigned __byte_perm(unsigned low, unsigned high, unsigned select) {
    const uint64_t bytes = static_cast<uint64_t>(high) << 32 | low;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned which = select >> 4 * i & 15;
        const unsigned octet = static_cast<unsigned>(bytes >> (which & 7) * 8) & 255;
        out |= (which & 8 ? (octet & 128 ? 255u : 0u) : octet) << 8 * i;
    }
    return out;
}

// No operators and no conversions: a kernel says where it rounds, by the functions below. float holds every sum and
// product of two halves so well that rounding it once more, to half, gives what one rounding gives.
struct __half {
    _Float16 value;
    __half() = default;
    explicit __half(float from) : value(static_cast<_Float16>(from)) {}
};
typedef __half half;
struct alignas(4) __half2 { __half x, y; };
typedef __half2 half2;
static inline float __half2float(__half value) { return static_cast<float>(value.value); }
static inline __half __float2half(float value) { return __half(value); }
static inline __half __float2half_rn(float value) { return __half(value); }
static inline unsigned short __half_as_ushort(__half value) { unsigned short b; memcpy(&b, &value, 2); return b; }
static inline __half __ushort_as_half(unsigned short bits) { __half value; memcpy(&value, &bits, 2); return value; }
static inline __half __hadd(__half a, __half b) { return __half(__half2float(a) + __half2float(b)); }
static inline __half __hsub(__half a, __half b) { return __half(__half2float(a) - __half2float(b)); }
static inline __half __hmul(__half a, __half b) { return __half(__half2float(a) * __half2float(b)); }
static inline __half __hneg(__half a) { return __half(-__half2float(a)); }
static inline __half __hfma(__half a, __half b, __half c) {
    __half out;
    out.value = static_cast<_Float16>(static_cast<double>(a.value) * static_cast<double>(b.value) +
                                      static_cast<double>(c.value));
    return out;
}
static inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
static inline __half2 __floats2half2_rn(float x, float y) { return {__half(x), __half(y)}; }
static inline __half2 __float2half2_rn(float x) { return {__half(x), __half(x)}; }
static inline __half2 __half2half2(__half x) { return {x, x}; }
static inline float2 __half22float2(__half2 v) { return {__half2float(v.x), __half2float(v.y)}; }
static inline __half __low2half(__half2 v) { return v.x; }
static inline __half __high2half(__half2 v) { return v.y; }
static inline __half2 __hadd2(__half2 a, __half2 b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }
static inline __half2 __hsub2(__half2 a, __half2 b) { return {__hsub(a.x, b.x), __hsub(a.y, b.y)}; }
static inline __half2 __hmul2(__half2 a, __half2 b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }
static inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }

// ---- memory ----
template <class T> static inline T __ldg(const T *at) { return *at; }
template <class T> static inline T __ldcg(const T *at) { return *at; }
template <class T> static inline T __ldcs(const T *at) { return *at; }
template <class T> static inline void __stcg(T *at, T value) { *at = value; }

// One fiber runs at a time, so that what stands between two barriers is atomic.
template <class T> static inline T atomicAdd(T *at, T value) { const T old = *at; *at = old + value; return old; }
static inline __half atomicAdd(__half *at, __half value) { const __half old = *at; *at = __hadd(old, value); return old; }
static inline __half2 atomicAdd(__half2 *at, __half2 value) {
    const __half2 old = *at;
    *at = __hadd2(old, value);
    return old;
}
static inline unsigned atomicInc(unsigned *at, unsigned most) {
    const unsigned old = *at;
    *at = old >= most ? 0 : old + 1;
    return old;
}
template <class T> static inline T atomicMax(T *at, T value) { const T old = *at; if (old < value) *at = value; return old; }
template <class T> static inline T atomicOr(T *at, T value) { const T old = *at; *at = old | value; return old; }
template <class T> static inline T atomicExch(T *at, T value) { const T old = *at; *at = value; return old; }

// ---- a kernel called with an array of pointers to its arguments, as cuLaunchKernel takes them ----
namespace cuda_on_host {
template <int... I> struct Indices {};
template <int N, int... I> struct Count : Count<N - 1, N - 1, I...> {};
template <int... I> struct Count<0, I...> { typedef Indices<I...> type; };
template <class... A, int... I>
inline void call(void (*kernel)(A...), void **arguments, Indices<I...>) {
    kernel(*static_cast<A *>(arguments[I])...);
}
template <class... A>
inline int arguments(void (*)(A...)) { return sizeof...(A); }
template <class... A>
inline void call(void (*kernel)(A...), void **arguments) {
    call(kernel, arguments, typename Count<sizeof...(A)>::type());
}
}  // namespace cuda_on_host
// Written behind the kernel's source, once for each kernel.
#define CALLABLE(kernel) \
    extern "C" void call_##kernel(void **arguments) { cuda_on_host::call(kernel, arguments); } \
    extern "C" int arguments_of_##kernel() { return cuda_on_host::arguments(kernel); }
