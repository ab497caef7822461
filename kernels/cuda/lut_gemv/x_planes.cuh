// A block of 128 columns of x as planes of bits, for binary tensor cores: a record that a kernel reads again and again.
//
//     x[k] ~ unit X[k],  unit = max |x| / (2^(P-1) - 1),  X[k] = rint(x[k] / unit) = sum_p w_p bit p,  w_p = 2^p but the last
//
// The last plane counts negative (two's complement). Planes come in eights; those from P on repeat the sign. Plane p is
// column p % 8 of the product of its eight, so that lane j of four gets columns 2j and 2j + 1: its share of a sum over k
// is in units of 4^j. x below 1e-30 counts as if its block had a 1e-30; an inf or nan in a block makes its unit nan.
//
// A record: planes [EIGHTS][8][4 words] · shares of S = sum_k X[k], [PARTS][4 lanes] int · unit 4^j [4] float · S [PARTS]
// float, room for 4. PARTS groups of columns share a block.
//
// Parameters: X_BITS (P) 8 .. 24 · PARTS 1, 2, 4 · RECORD_BYTES as the plan counts it · X_TYPE float, __half or bfloat_t.

#include "../common.cuh"

constexpr int EIGHTS = (X_BITS + 7) / 8;
constexpr int TOP = 8 * EIGHTS - 1;                          // the last plane
constexpr int SHARES_AT = EIGHTS * 128, UNITS_AT = SHARES_AT + PARTS * 16, SUMS_AT = UNITS_AT + 16;
static_assert(RECORD_BYTES == SUMS_AT + 16, "the plan counts other records of x");

__device__ __forceinline__ int add_lanes(int value, int apart) {
    return value + __shfl_xor_sync(0xffffffffu, value, apart);
}

// The record of columns first .. last - 1, at most 128, of a row of x. All lanes of a warp call it.
__device__ __forceinline__ void write_record(unsigned char *record, const X_TYPE *x, int first, int last, int lane) {
    float values[4];
    unsigned bits = 0;  // of the largest |x|: as numbers they are in the order of floats, then inf, then nan
#pragma unroll
    for (int w = 0; w < 4; w++) {
        const int k = first + 32 * w + lane;
        values[w] = k < last ? to_float(x[k]) : 0.0f;
        bits = max(bits, __float_as_uint(fabsf(values[w])));
    }
    bits = __reduce_max_sync(0xffffffffu, bits);
    const bool finite = bits < 0x7f800000u;
    const float level = static_cast<float>((1 << (X_BITS - 1)) - 1);
    const float largest = finite ? fmaxf(__uint_as_float(bits), 1e-30f) : 1.0f, per_unit = level / largest;

    word_t words[4] = {};  // of plane `lane`
#pragma unroll
    for (int w = 0; w < 4; w++) {
        const float scaled = finite ? values[w] * per_unit : 0.0f;
        const int number = __float2int_rn(fmaxf(-level, fminf(level, scaled)));
#pragma unroll
        for (int p = 0; p <= TOP; p++) {
            const word_t word = __ballot_sync(0xffffffffu, number >> p & 1);
            if (lane == p) words[w] = word;
        }
    }
    if (lane <= TOP) reinterpret_cast<uint4 *>(record)[lane] = make_uint4(words[0], words[1], words[2], words[3]);

    const int weight = lane > TOP ? 0 : (lane == TOP ? -1 : 1) * (1 << (lane % 2 + lane / 8 * 8));  // of the plane, / 4^j
    const int j = lane / 2;
    float sums[4] = {};
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        int ones = 0;
#pragma unroll
        for (int w = part * (4 / PARTS); w < (part + 1) * (4 / PARTS); w++) ones += __popc(words[w]);
        const int share = add_lanes(add_lanes(add_lanes(weight * ones, 1), 8), 16);
        if (lane < 8 && lane % 2 == 0) reinterpret_cast<int *>(record + SHARES_AT)[part * 4 + j] = share;
        sums[part] = __int2float_rn(add_lanes(add_lanes(share * (1 << 2 * (j % 4)), 2), 4));
    }
    const float unit = finite ? largest / level : __int_as_float(0x7fffffff);
    if (lane < 4) reinterpret_cast<float *>(record + UNITS_AT)[lane] = unit * static_cast<float>(1 << 2 * lane);
    if (lane == 0) *reinterpret_cast<float4 *>(record + SUMS_AT) = make_float4(sums[0], sums[1], sums[2], sums[3]);
}

// The record of a block of a row of x. A run of blocks begins at a multiple of `span` columns and has no more than these.
__device__ __forceinline__ void write_record_of(unsigned char *records, const X_TYPE *x, int m, int block, int columns,
                                                int blocks, int span, int run, int lane) {
    const int start = block / run * span, first = start + block % run * 128;
    write_record(records + (static_cast<size_t>(m) * blocks + block) * RECORD_BYTES,
                 x + static_cast<size_t>(m) * columns, first, min(min(first + 128, start + span), columns), lane);
}
